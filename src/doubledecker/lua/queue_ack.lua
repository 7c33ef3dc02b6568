-- End messages for good: their consumer has handled them.
--
-- uses queue_records
-- key  data  queue:data:<queue>  hash  messages by id
-- arg  ids       pack  the messages
-- arg  attempts  pack  the attempt that is acked, of each
-- returns        the ids that were still the consumer's; nothing changed for the others

if is_anothers then
  return {}
end
local done = {}
local records = still_held(ids, attempts)
for i = 1, #records do
  done[i] = records[i].id
end
if #done == 0 then
  return done
end
let_go("acked", records)
redis.call("ZREM", pending, unpack(done))
redis.call("HDEL", tried, unpack(done))
redis.call("HDEL", data, unpack(done))
free_lanes(done)
return_all()
-- Autodrop knows by it whether somebody consumes this queue.
redis.call("HSET", state, "acked_at", now)
conclude()
return done
