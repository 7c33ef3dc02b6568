-- Hold messages longer: their consumer is still at work.
--
-- uses queue_facets
-- arg  messages  pack  pairs of an id and the attempt that goes on
-- arg  lease_ms  int   how long from now
-- returns        {when the leases end, the ids that were still the consumer's}

local ids, words = {}, {}
for id in pairs(still_held(messages)) do
  ids[#ids + 1] = id
  words[#words + 1] = now + lease_ms
  words[#words + 1] = id
end
if #ids > 0 then
  redis.call("ZADD", pending, "XX", unpack(words))
end
return {now + lease_ms, ids}
