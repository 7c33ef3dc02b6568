-- End messages for good: their consumer is done with them.
--
-- uses queue_lines
-- uses queue_facets
-- uses queue_records
-- arg  ids       pack  the messages
-- arg  attempts  pack  the attempt that is acked, of each
-- returns        the ids that were still the consumer's; nothing changed for the others

local done, moved = {}, {}
local records = still_held(ids, attempts)
for i = 1, #records do
  done[i] = records[i].id
  let_go("acked", records[i])
end
if #done == 0 then
  return done
end
redis.call("ZREM", pending, unpack(done))
redis.call("HDEL", tried, unpack(done))
redis.call("HDEL", data, unpack(done))
-- Lines have not changed: one without rules stays where it is, unless its tag moved or nothing of it is in flight.
for facet = 1, facet_count do
  if rule_of[facet] or tag_of[facet] ~= stood_at[facet] or held_of[facet] == 0 then
    moved[#moved + 1] = facet
  end
end
seat_all(moved)
save()
conclude()
return done
