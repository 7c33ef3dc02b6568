-- Settle a failed attempt: count it, and schedule the batch's job again, apart from first tries.
--
-- key pending           jobs:pending:<queue>:<slot>  list    the job that the slot holds
-- key job_index         jobs:index:<queue>           set     jobs in any state, of the queue it was taken from
-- key retry_index       jobs:index:retry             set     jobs in any state, of the retry queue
-- key scheduled         jobs:scheduled:retry         zset    jobs by deadline
-- key batch             batch:<bid>                  list    token, creation time, attempts, then messages
-- key counters          counters                     hash    telemetry
-- key journal           journal                      hash    attempts_bytes: what the attempt journal holds
-- key journal_attempts  journal:attempts             stream  one entry a delivery attempt
-- key bell              jobs:bell                    stream  rung when there is something to take or to wait for
-- arg job       text  the job as it was taken
-- arg attempts  int   how many there have been, with this one
-- arg delay_ms  int   how long to wait before the next
-- arg attempt   text  the attempt as JSON, for the journal
-- arg counts    pack  pairs of a counter and how much to add
-- now
-- returns       {1 or 0 when the slot no longer held the job and nothing was changed, attempt journal's bytes}

if redis.call("LREM", pending, 1, job) == 0 then
  return {0, 0}
end
redis.call("SREM", job_index, job)
if redis.call("EXISTS", batch) == 1 then
  redis.call("LSET", batch, 2, attempts)
  redis.call("SADD", retry_index, job)
  local head = redis.call("ZRANGE", scheduled, 0, 0, "WITHSCORES")
  if not head[1] or tonumber(head[2]) > now + delay_ms then
    redis.call("XADD", bell, "MAXLEN", 1, "*", "rung", 1)
  end
  redis.call("ZADD", scheduled, now + delay_ms, job)
end
for _, count in ipairs(counts) do
  redis.call("HINCRBY", counters, count[1], count[2])
end
redis.call("XADD", journal_attempts, "*", "attempt", attempt)
return {1, redis.call("HINCRBY", journal, "attempts_bytes", #attempt)}
