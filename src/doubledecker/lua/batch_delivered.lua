-- Settle a delivered batch: its job, the batch, every count of it, and the journal, together.
--
-- The slot may go on with the next job that is parked for the subscriber, unless a retry is there to be preferred, or
-- as many that were put back stand in line as may be called, or another's job waits and it is time to yield.
--
-- uses batch_opening
-- key pending           jobs:pending:<queue>:<slot>  list    the job that the slot holds
-- key job_index         jobs:index:<queue>           set     jobs in any state
-- key parked_index      jobs:parked:index            set     subscribers with jobs set aside
-- keys parked           jobs:parked:<in_queue>:<of_token>  list  jobs set aside, next one last
-- keys instant          jobs:instant:<in_queue>      list    jobs to run now, next one last
-- key called_index      jobs:called:index            hash    how many jobs were put back and not taken yet, by subscriber
-- key batch             batch:<bid>                  list    token, creation time, attempts, then messages
-- key index             batches:index                zset    all batches by creation time
-- key token_index       batches:index:<token>        zset    one subscriber's batches by creation time
-- key sizes             batches:bytes                hash    payload bytes, by batch
-- key gauge_events      batches:gauges:event         hash    events waiting, by subscriber
-- key gauge_batches     batches:gauges:batch         hash    batches waiting, by subscriber
-- key counters          counters                     hash    telemetry
-- key journal           journal                      hash    attempts_bytes: what the attempt journal holds
-- key journal_attempts  journal:attempts             stream  one entry a delivery attempt
-- arg queue     text  where the job is from; the next one is too
-- arg job       text  the job as it was taken
-- arg bid       text  the batch
-- arg token     text  the subscriber
-- arg attempt   text  the attempt as JSON, for the journal
-- arg counts    pack  pairs of a counter and how much to add
-- arg places    int   how many calls the subscriber may have, when the slot wants the next job; 0 when not
-- arg yields    int   1 when it does only if nobody else's waits
-- returns       {1 or 0 when the slot no longer held the job and nothing was changed, attempt journal's bytes, next job or "", its batch}

if redis.call("LREM", pending, 1, job) == 0 then
  return {0, 0, "", {}}
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
local goes_on = places > 0 and tonumber(redis.call("HGET", called_index, token) or 0) < places
if goes_on and yields == 1 then
  local first = redis.call("LINDEX", instant(queue), -1)
  goes_on = not first or cmsgpack.unpack(first)[2][2] == token
end
local after
if goes_on and (queue == "retry" or redis.call("LLEN", parked("retry", token)) == 0) then
  after = redis.call("LMOVE", parked(queue, token), pending, "RIGHT", "LEFT")
end
if after and redis.call("EXISTS", parked("retry", token), parked("main", token)) == 0 then
  redis.call("SREM", parked_index, token)
end
local opened = after and open_batch(cmsgpack.unpack(after)[2][1], token) or {}
return {1, redis.call("HINCRBY", journal, "attempts_bytes", #attempt), after or "", opened}
