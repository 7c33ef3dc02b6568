-- Write down an attempt at a queue's receiver, in the journal and in the counters.
--
-- key counters          counters          hash    telemetry
-- key journal           journal           hash    attempts_bytes: what the attempt journal holds
-- key journal_attempts  journal:attempts  stream  one entry a delivery attempt
-- arg attempt  text  the attempt as JSON, for the journal
-- arg counts   pack  pairs of a counter and how much to add
-- returns      0

for _, count in ipairs(counts) do
  redis.call("HINCRBY", counters, count[1], count[2])
end
redis.call("XADD", journal_attempts, "*", "attempt", attempt)
redis.call("HINCRBY", journal, "attempts_bytes", #attempt)
return 0
