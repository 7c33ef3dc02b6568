-- Keep places among the calls to a queue's receiver, for those who still have them.
--
-- key holds     holds:<token>  zset  who calls it now, by when their hold ends
-- arg slots     pack  who is still calling
-- arg lease_ms  int   how long their holds last from now
-- now
-- returns       how many there were to keep

local words = {}
for _, slot in ipairs(slots) do
  words[#words + 1] = now + lease_ms
  words[#words + 1] = slot
end
redis.call("ZADD", holds, "XX", unpack(words))
local kept = 0
for _, ends_at in ipairs(redis.call("ZMSCORE", holds, unpack(slots))) do
  kept = kept + (ends_at and 1 or 0)
end
return kept
