-- Give messages back: to their place in their own line, or later, or to the dead letters after too many attempts.
--
-- uses queue_facets
-- key  scheduled     queue:scheduled:<queue>  zset  ids of messages that come back later, by when
-- arg  messages      pack  triples of an id, the attempt that is given up, and milliseconds to wait before the next
-- arg  attempts_max  int   how many times a message is tried
-- arg  why           text  what a dead letter will say
-- returns            the ids that were still the consumer's; nothing changed for the others

local mine = still_held(messages)
local ids, touched = {}, {}
for _, message in ipairs(messages) do
  local id, delay_ms = message[1], message[3]
  local record = mine[id]
  if record then
    mine[id] = nil
    local facet = let_go("nacked", id, record)
    touched[facet.name] = facet
    ids[#ids + 1] = id
    redis.call("ZREM", pending, id)
    if record[1] >= attempts_max then
      note("dead", id, facet.name, record[1], 0)
      bury(id, facet.name, record[1], why)
    elseif delay_ms > 0 then
      redis.call("ZADD", scheduled, now + delay_ms, id)
    else
      give_back(id, facet.name)
    end
  end
end
if #ids == 0 then
  return ids
end
for _, facet in pairs(touched) do
  seat(facet)
end
save()
conclude()
return ids
