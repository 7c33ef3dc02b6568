-- Add a job, a recurring one before all others, unless the same one is there in any state, or was added less than `every_ms` ago.
--
-- uses job_placing
-- key index      jobs:index:aux  set   jobs in any state
-- key ticks      jobs:ticks      hash  when a recurring job was last added
-- arg job        text  name and arguments, as MessagePack
-- arg delay_ms   int   how long from now; 0 means now
-- arg every_ms   int   the least time between two of the same recurring job; 0 for a job that does not recur
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
-- There are few chores, and one of each at most: they need not wait behind what publishers may have caused any number of.
place(job, delay_ms, every_ms > 0 and "RPUSH" or "LPUSH")
return 1
