-- Give a job back, to be run again after a delay, or at once before all others.
--
-- key pending    jobs:pending:<queue>:<slot>  list    the job that the slot holds
-- key scheduled  jobs:scheduled:<queue>       zset    jobs by deadline
-- key instant    jobs:instant:<queue>         list    jobs to run now, next one last
-- key bell       jobs:bell                    stream  rung when there is something to take or to wait for
-- arg job        text  the job as it was taken
-- arg delay_ms   int   how long to wait; 0 puts it in front
-- now
-- returns        1, or 0 when the slot no longer held it and nothing was changed

if redis.call("LREM", pending, 1, job) == 0 then
  return 0
end
local must_ring
if delay_ms > 0 then
  local head = redis.call("ZRANGE", scheduled, 0, 0, "WITHSCORES")
  must_ring = not head[1] or tonumber(head[2]) > now + delay_ms
  redis.call("ZADD", scheduled, now + delay_ms, job)
else
  must_ring = redis.call("RPUSH", instant, job) == 1
end
if must_ring then
  redis.call("XADD", bell, "MAXLEN", 1, "*", "rung", 1)
end
return 1
