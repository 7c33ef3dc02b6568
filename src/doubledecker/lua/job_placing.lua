-- part: putting a job where it waits, and ringing if whoever waits has to look earlier than it thought.
--
-- key scheduled  jobs:scheduled:<queue>  zset    jobs by deadline
-- key instant    jobs:instant:<queue>    list    jobs to run now, next one last
-- key bell       jobs:bell               stream  rung when there is something to take or to wait for
-- now

-- After a delay, or now: before all others (`RPUSH`) or behind them (`LPUSH`).
local function place(job, delay_ms, push)
  local must_ring
  if delay_ms > 0 then
    local head = redis.call("ZRANGE", scheduled, 0, 0, "WITHSCORES")
    must_ring = not head[1] or tonumber(head[2]) > now + delay_ms
    redis.call("ZADD", scheduled, now + delay_ms, job)
  else
    must_ring = redis.call(push, instant, job) == 1
  end
  if must_ring then
    redis.call("XADD", bell, "MAXLEN", 1, "*", "rung", 1)
  end
end
