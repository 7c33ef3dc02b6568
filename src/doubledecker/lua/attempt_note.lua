-- Write down an attempt at a queue's receiver: in the journal, in the counters, and when it was.
--
-- key receiver          subscriber:<token>  hash    last_attempted_at
-- key counters          counters            hash    telemetry
-- key journal           journal             hash    attempts_bytes: what the attempt journal holds
-- key journal_attempts  journal:attempts    stream  one entry a delivery attempt
-- arg attempt  text  the attempt as JSON, for the journal
-- arg took_ms  int   how long it took
-- arg counts   pack  pairs of a counter and how much to add
-- now
-- returns      the attempt journal's bytes

if redis.call("EXISTS", receiver) == 1 then
  redis.call("HSET", receiver, "last_attempted_at", now - took_ms)
end
for _, count in ipairs(counts) do
  redis.call("HINCRBY", counters, count[1], count[2])
end
redis.call("XADD", journal_attempts, "*", "attempt", attempt)
return redis.call("HINCRBY", journal, "attempts_bytes", #attempt)
