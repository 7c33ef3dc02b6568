-- Give messages back: to their place in their own line, or later, or to the dead letters after too many attempts.
--
-- uses queue_facets
-- key  scheduled     queue:scheduled:<queue>  zset  ids of messages that come back later, by when
-- arg  messages      pack  an id, the attempt that is given up, milliseconds to wait, and 1 if the attempt does not count
-- arg  attempts_max  int   how many times a message is tried
-- arg  why           text  what a dead letter will say
-- returns            the ids that were still the consumer's; nothing changed for the others

local ids, touched = {}, {}
for i, held in ipairs(still_held(messages)) do
  local id, record = held.id, held.record
  local facet = let_go("nacked", id, record)
  touched[facet.name] = facet
  ids[i] = id
  if held.is_spared then
    record[6] = (record[6] or 0) + 1
    redis.call("HSET", tried, id, cmsgpack.pack(record))
  end
  if is_spent(record, attempts_max) then
    note("dead", id, facet.name, record[1], 0)
    bury(id, facet.name, record[1], why)
  elseif held.delay_ms > 0 then
    redis.call("ZADD", scheduled, now + held.delay_ms, id)
  else
    give_back(id, facet.name)
  end
end
if #ids == 0 then
  return ids
end
redis.call("ZREM", pending, unpack(ids))
return_all()
for _, facet in pairs(touched) do
  seat(facet)
end
save()
conclude()
return ids
