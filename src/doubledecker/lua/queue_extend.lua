-- Hold messages longer: their consumer is still at work.
--
-- uses queue_records
-- arg  ids       pack  the messages
-- arg  attempts  pack  the attempt that goes on, of each
-- arg  lease_ms  int   how long from now
-- returns        {when the leases end, the ids that were still the consumer's}

if is_anothers then
  return {now, {}}
end
local kept, words = {}, {}
for i, record in ipairs(still_held(ids, attempts)) do
  kept[i] = record.id
  words[2 * i - 1], words[2 * i] = now + lease_ms, record.id
end
if #kept > 0 then
  redis.call("ZADD", pending, "XX", unpack(words))
end
return {now + lease_ms, kept}
