-- Add a job, unless the same one is there in any state, or was added less than `every_ms` ago.
--
-- key index      jobs:index:<queue>      set     jobs in any state
-- key scheduled  jobs:scheduled:<queue>  zset    jobs by deadline
-- key instant    jobs:instant:<queue>    list    jobs to run now, next one last
-- key ticks      jobs:ticks              hash    when a recurring job was last added
-- key bell       jobs:bell               stream  rung when there is something to take or to wait for
-- arg job        text  name and arguments, as MessagePack
-- arg delay_ms   int   how long from now; 0 means now
-- arg every_ms   int   the least time between two of the same recurring job; 0 for a job that does not recur
-- now
-- returns        1 if it was added

if every_ms > 0 and tonumber(redis.call("HGET", ticks, job) or 0) + every_ms > now then
  return 0
end
if redis.call("SADD", index, job) == 0 then
  return 0
end
if every_ms > 0 then
  redis.call("HSET", ticks, job, now)
end
local must_ring
if delay_ms > 0 then
  local head = redis.call("ZRANGE", scheduled, 0, 0, "WITHSCORES")
  must_ring = not head[1] or tonumber(head[2]) > now + delay_ms
  redis.call("ZADD", scheduled, now + delay_ms, job)
else
  must_ring = redis.call("LPUSH", instant, job) == 1
end
if must_ring then
  redis.call("XADD", bell, "MAXLEN", 1, "*", "rung", 1)
end
return 1
