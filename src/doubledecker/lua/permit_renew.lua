-- Keep permits for longer, for callers who still have them.
--
-- key leases    permits:<token>  zset  permits of callers that have no slot, by when they end
-- arg names     pack  the permits
-- arg lease_ms  int   how long they last from now
-- now
-- returns       how many there were to keep

local words = {}
for _, name in ipairs(names) do
  words[#words + 1] = now + lease_ms
  words[#words + 1] = name
end
redis.call("ZADD", leases, "XX", unpack(words))
local kept = 0
for _, ends_at in ipairs(redis.call("ZMSCORE", leases, unpack(names))) do
  kept = kept + (ends_at and 1 or 0)
end
return kept
