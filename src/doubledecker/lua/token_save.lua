-- Add a client's token, or change one.
--
-- uses registry_change
-- key tokens    api_tokens        hash  tokens as JSON, by id
-- arg id        text  the token's public id
-- arg record    text  name and hashes, as JSON
-- arg seen      int   the registry version that the record was decided with: no two tokens may have the same secret
-- arg most      int   how many tokens there may be
-- returns       the registry's new version, 0 when there are too many tokens, -1 when the registry has changed since

if tonumber(redis.call("HGET", registry, "routing_version") or 0) ~= seen then
  return -1
end
if redis.call("HEXISTS", tokens, id) == 0 and redis.call("HLEN", tokens) >= most then
  return 0
end
redis.call("HSET", tokens, id, record)
return note_change("token " .. id)
