-- End messages for good: their consumer is done with them.
--
-- uses queue_facets
-- arg  messages  pack  pairs of an id and the attempt that is acked
-- returns        the ids that were still the consumer's; nothing changed for the others

local ids, touched = {}, {}
for i, held in ipairs(still_held(messages)) do
  local facet = let_go("acked", held.id, held.record)
  touched[facet.name] = facet
  ids[i] = held.id
end
if #ids == 0 then
  return ids
end
redis.call("ZREM", pending, unpack(ids))
redis.call("HDEL", tried, unpack(ids))
redis.call("HDEL", data, unpack(ids))
seat_again(touched)
save()
conclude()
return ids
