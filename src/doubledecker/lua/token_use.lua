-- Note when tokens were last used, of those that are there still.
--
-- key tokens  api_tokens       hash  tokens as JSON, by id
-- key used    api_tokens:used  hash  when each token was last used, by id
-- arg uses    pack  a token's id and a time in milliseconds, in turns
-- returns     how many were noted

local noted = 0
for i = 1, #uses, 2 do
  local id, at = uses[i], tonumber(uses[i + 1])
  if redis.call("HEXISTS", tokens, id) == 1 and at > tonumber(redis.call("HGET", used, id) or 0) then
    redis.call("HSET", used, id, at)
    noted = noted + 1
  end
end
return noted
