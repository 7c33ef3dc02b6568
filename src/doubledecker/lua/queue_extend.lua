-- Hold messages longer: their consumer is still at work.
--
-- uses queue_facets
-- arg  messages  pack  pairs of an id and the attempt that goes on
-- arg  lease_ms  int   how long from now
-- returns        {when the leases end, the ids that were still the consumer's}

local ids, words = {}, {}
for i, held in ipairs(still_held(messages)) do
  ids[i] = held.id
  words[#words + 1] = now + lease_ms
  words[#words + 1] = held.id
end
if #ids > 0 then
  redis.call("ZADD", pending, "XX", unpack(words))
end
return {now + lease_ms, ids}
