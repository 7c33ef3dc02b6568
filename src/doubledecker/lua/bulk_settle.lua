-- Write down an attempt of bulk delivery: how far its strand has come, the journal, the counters, in one atom.
--
-- Only for whoever knows where the strand stood: a task that was given up for dead changes nothing.
--
-- key ledger            <ledger>          hash    how far each strand has come; passed events by topic
-- key counters          counters          hash    telemetry
-- key journal           journal           hash    attempts_bytes: what the attempt journal holds
-- key journal_attempts  journal:attempts  stream  one entry a delivery attempt
-- arg field    text  the strand
-- arg former   text  where it stood
-- arg reach    text  where it stands now
-- arg passed   pack  topic, events, … : those that are delivered or given up
-- arg attempt  text  the attempt as JSON, for the journal
-- arg counts   pack  pairs of a counter and how much to add
-- returns      1, or 0 when it stood elsewhere and nothing was changed

local kept = redis.call("HGET", ledger, field)
if kept == reach then
  return 1
end
if kept ~= former then
  return 0
end
redis.call("HSET", ledger, field, reach)
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
redis.call("XADD", journal_attempts, "*", "attempt", attempt)
redis.call("HINCRBY", journal, "attempts_bytes", #attempt)
return 1
