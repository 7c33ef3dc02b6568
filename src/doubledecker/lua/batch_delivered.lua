-- Settle a delivered batch: its job, the batch, every count of it, and the journal, together.
--
-- key pending           jobs:pending:<queue>:<slot>  list    the job that the slot holds
-- key job_index         jobs:index:<queue>           set     jobs in any state
-- key batch             batch:<bid>                  list    token, creation time, attempts, then messages
-- key index             batches:index                zset    all batches by creation time
-- key token_index       batches:index:<token>        zset    one subscriber's batches by creation time
-- key sizes             batches:bytes                hash    payload bytes, by batch
-- key gauge_events      batches:gauges:event         hash    events waiting, by subscriber
-- key gauge_batches     batches:gauges:batch         hash    batches waiting, by subscriber
-- key counters          counters                     hash    telemetry
-- key journal           journal                      hash    attempts_bytes: what the attempt journal holds
-- key journal_attempts  journal:attempts             stream  one entry a delivery attempt
-- arg job       text  the job as it was taken
-- arg bid       text  the batch
-- arg token     text  the subscriber
-- arg attempt   text  the attempt as JSON, for the journal
-- arg counts    pack  pairs of a counter and how much to add
-- returns       {1 or 0 when the slot no longer held the job and nothing was changed, attempt journal's bytes}

if redis.call("LREM", pending, 1, job) == 0 then
  return {0, 0}
end
redis.call("SREM", job_index, job)
local events = redis.call("LLEN", batch) - 3
if events >= 0 then
  redis.call("DEL", batch)
  redis.call("ZREM", index, bid)
  redis.call("ZREM", token_index, bid)
  redis.call("HDEL", sizes, bid)
  redis.call("HINCRBY", gauge_events, token, -events)
  redis.call("HINCRBY", gauge_batches, token, -1)
  redis.call("HINCRBY", counters, "events.removed:subscriber=" .. token, events)
end
for _, count in ipairs(counts) do
  redis.call("HINCRBY", counters, count[1], count[2])
end
redis.call("XADD", journal_attempts, "*", "attempt", attempt)
return {1, redis.call("HINCRBY", journal, "attempts_bytes", #attempt)}
