-- Write down an attempt of bulk delivery: how far its shard has come, the journal, the counters, in one atom.
--
-- The caller names where the shard stood, so a task that was given up for dead changes nothing. A batch that may itself be
-- to blame is put aside as one for the workers, who split it and give it up; the shard goes on.
--
-- uses job_bell
-- uses receiver_ring
-- key ledger            <ledger>          hash    how far each shard has come; passed events by topic
-- key counters          counters          hash    telemetry
-- key journal           journal           hash    attempts_bytes: what the attempt journal holds
-- key journal_attempts  journal:attempts  stream  one entry a delivery attempt
-- key index             batches:index     zset    all batches by creation time
-- key sizes             batches:bytes     hash    payload bytes, by batch
-- key gauge_events      batches:gauges:event  hash  events waiting, by subscriber
-- key gauge_batches     batches:gauges:batch  hash  batches waiting, by subscriber
-- key scheduled         jobs:scheduled:main   zset  `<bid> <token>` by time
-- keys batch            batch:<bid>       list    token, creation time, attempts, number of events, then events as lines
-- arg field      text  the shard
-- arg former     text  where it stood
-- arg checkpoint text  where it stands now
-- arg passed     pack  topic, events, … : those that are delivered or given up
-- arg attempt    text  the attempt as JSON, for the journal
-- arg counts     pack  pairs of a counter and how much to add
-- arg aside      pack  empty, or the batch for the workers: name, subscriber, creation time, attempts, events, lines, bytes, and how
--                      long until it is due
-- returns      1, or 0 when it stood elsewhere and nothing was changed

local kept = redis.call("HGET", ledger, field)
if kept == checkpoint then
  return 1
end
if kept ~= former then
  return 0
end
redis.call("HSET", ledger, field, checkpoint)
-- A topic that is not wanted any more is not counted, but by a ledger that is for all topics.
local is_for_all = redis.call("HEXISTS", ledger, "passed:*") == 1
for i = 1, #passed, 2 do
  if is_for_all or redis.call("HEXISTS", ledger, "topic:" .. passed[i]) == 1 then
    redis.call("HINCRBY", ledger, "passed:" .. (is_for_all and "*" or passed[i]), passed[i + 1])
  end
end
for _, count in ipairs(counts) do
  redis.call("HINCRBY", counters, count[1], count[2])
end
local function put_aside(bid, token, created, attempts, events, lines, bytes, delay_ms)
  redis.call("RPUSH", batch(bid), token, created, attempts, events, lines)
  redis.call("ZADD", index, created, bid)
  redis.call("ZADD", token_index(token), created, bid)
  redis.call("HSET", sizes, bid, bytes)
  redis.call("HINCRBY", gauge_batches, token, 1)
  redis.call("HINCRBY", gauge_events, token, events)
  redis.call("HINCRBY", counters, "events.added:subscriber=" .. token, events)
  if delay_ms > 0 then
    note_time(scheduled, now + delay_ms)
    redis.call("ZADD", scheduled, now + delay_ms, bid .. " " .. token)
  else
    line_up(read_receiver(token), bid, "LPUSH")
  end
  save_receivers()
  if is_news or is_sooner then
    ring_bell(hungry)
  end
end
if #aside > 0 then
  put_aside(unpack(aside))
end
redis.call("XADD", journal_attempts, "*", "attempt", attempt)
redis.call("HINCRBY", journal, "attempts_bytes", #attempt)
return 1
