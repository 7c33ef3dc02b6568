-- Give a permit back and record the outcome of the call, in the receiver's state, the journal and the counters.
--
-- The outcome is recorded also when the permit has ended meanwhile: the call was made. It is written once, however
-- often the caller says so because replies were lost.
--
-- uses job_bell
-- uses receiver_ring
-- uses receiver_notices
-- key counters          counters          hash    telemetry
-- key journal           journal           hash    attempts_bytes: what the attempt journal holds
-- key journal_attempts  journal:attempts  stream  one entry a delivery attempt
-- key settled           permits:settled:<of_token>  zset  permits with which a call was settled lately, by when
-- arg of_token  text  the receiver
-- arg lease     text  the permit
-- arg what      text  delivered, refused, failed, or returned when nobody was called
-- arg anew_since  int  the version of the registry with which the receiver, as it was called, began anew
-- arg failures  int   failures in a row when the permit was given
-- arg raises    int   1 if this one is evidence of its own
-- arg probe_ms  int   how long until the next probe
-- arg why       text  what went wrong, for a notice
-- arg attempt   text  the attempt as JSON, for the journal; empty when it is journaled elsewhere, or was none
-- arg counts    pack  a counter, how much to add, a counter, …
-- arg settled_ms  int  how long to remember that it was settled
-- returns       {failures before, failures after}

local it = read_receiver(of_token)
local before = it.failures
local is_repeat = false
if what ~= "returned" then
  redis.call("ZREMRANGEBYSCORE", settled, "-inf", now - settled_ms)
  is_repeat = redis.call("ZADD", settled, now, lease) == 0
  redis.call("PEXPIRE", settled, settled_ms)
end
if is_repeat then
  save_receivers()
  return {before, before}
end
it.leased = it.leased - redis.call("ZREM", leases(of_token), lease)
leave(it, lease)
end_call(it, what, anew_since, failures, raises, probe_ms, "", 0)
notice_change(it, before, why)
if #attempt > 0 then
  redis.call("XADD", journal_attempts, "*", "attempt", attempt)
  redis.call("HINCRBY", journal, "attempts_bytes", #attempt)
end
for i = 1, #counts, 2 do
  redis.call("HINCRBY", counters, counts[i], counts[i + 1])
end
save_receivers()
if is_news or is_sooner then
  ring_bell(hungry)
end
return {before, it.failures}
