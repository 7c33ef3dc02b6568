-- part: putting a job where it waits, and telling a process that waits if it has to look earlier than it thought.
--
-- uses job_bell
-- key scheduled  jobs:scheduled:aux  zset  jobs by deadline
-- key instant    jobs:instant:aux    list  jobs to run now, next one last
-- key hungry     jobs:hungry:aux     set   processes that wait for jobs
-- now

-- After a delay, or now: before all others (`RPUSH`) or behind them (`LPUSH`).
local function place(job, delay_ms, push)
  local is_news = delay_ms == 0
  if is_news then
    redis.call(push, instant, job)
  else
    local head = redis.call("ZRANGE", scheduled, 0, 0, "WITHSCORES")
    is_news = not head[1] or tonumber(head[2]) > now + delay_ms
    redis.call("ZADD", scheduled, now + delay_ms, job)
  end
  if is_news then
    ring_bell(hungry)
  end
end
