-- Drop the oldest dead letters of a queue, because memory is short.
--
-- key state       queue:state:<queue>       hash  dropped: how many messages the queue has dropped
-- key dead        queue:dead:<queue>        hash  dead letters by id
-- key dead_index  queue:dead:index:<queue>  zset  their ids by time of death
-- key counters    counters                  hash  telemetry
-- arg queue         text  the queue's name
-- arg messages_max  int   how many to drop at most
-- arg bytes_enough  int   stop when so many bytes of them are gone
-- returns           {dead letters dropped, their bytes}

local gone, bytes = {}, 0
for i, id in ipairs(redis.call("ZRANGE", dead_index, 0, messages_max - 1)) do
  if bytes >= bytes_enough then
    break
  end
  gone[i], bytes = id, bytes + redis.call("HSTRLEN", dead, id)
end
if #gone > 0 then
  redis.call("HDEL", dead, unpack(gone))
  redis.call("ZREM", dead_index, unpack(gone))
  redis.call("HINCRBY", state, "dropped", #gone)
  redis.call("HINCRBY", counters, "queue.dropped:queue=" .. queue, #gone)
end
return {#gone, bytes}
