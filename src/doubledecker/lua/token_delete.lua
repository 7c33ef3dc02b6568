-- Revoke a client's token.
--
-- uses registry_change
-- key tokens    api_tokens           hash  tokens as JSON, by id
-- key ids       ids:<id>             zset  the client's own event ids
-- key requests  idempotency:<id>     hash  the client's idempotency keys
-- key ages      ages:<id>  zset  the same by age
-- key used      api_tokens:used      hash  when each token was last used
-- arg id        text  the token's public id
-- returns       the registry's new version, or 0 when there was no such token

if redis.call("HDEL", tokens, id) == 0 then
  return 0
end
redis.call("DEL", ids, requests, ages)
redis.call("HDEL", used, id)
return note_change("token " .. id)
