-- Ask for a permit to call a receiver, for a caller that has no slot: a watch, or a Spark task.
--
-- A permit comes before the pull, so that what cannot be delivered now stays where it is. A failing receiver has one, when
-- its next probe is due. Where slots hold more than leases do, the next that becomes free is left to a caller that asks again soon.
-- A lease ends by itself unless it is renewed, as a process that died cannot. Who has the permit and asks again, because the
-- reply was lost, still has it, for as long as a new one.
--
-- uses registry_fence
-- uses job_bell
-- uses receiver_ring
-- arg token     text  the receiver
-- arg lease     text  a name for the permit
-- arg bounds    pack  how many permits the receiver has here, how far apart its calls begin, and the version with which it began
--                     anew
-- arg lease_ms  int   how long the permit lasts
-- arg wish_ms   int   how long the next free permit is left to one who found none
-- returns       {"go", failures in a row}, {"full", "failing" or "paced", ms until that may change} or {"stale" or "paused", 0}

if is_stale() then
  return {"stale", 0}
end
local it = read_receiver(token)
it.limit = bounds[1]
set_pace(it, bounds[2])
if it.anew_since < bounds[3] then
  begin_anew(it, bounds[3])
end
local answer
if it.leased > 0 and redis.call("ZSCORE", leases(token), lease) then
  redis.call("ZADD", leases(token), now + lease_ms, lease)
  answer = {"go", it.failures}
elseif it.halt ~= NONE then
  answer = {"paused", 0}
elseif it.failures > 0 and it.retry_at > now then
  answer = {"failing", until_ms(it.retry_at)}
elseif it.held + it.leased >= (it.failures > 0 and 1 or permits(it)) then
  local first = redis.call("ZRANGE", leases(token), 0, 0, "WITHSCORES")[2]
  answer = {it.failures > 0 and "failing" or "full", first and until_ms(first) or lease_ms}
  it.wish = it.failures == 0 and it.leased < it.held and now + wish_ms or it.wish
elseif not may_begin(it) then
  answer = {"paced", until_ms(it.next_at)}
else
  redis.call("ZADD", leases(token), now + lease_ms, lease)
  it.leased, it.wish = it.leased + 1, 0
  pace(it)
  it.prober = it.failures > 0 and lease or it.prober
  answer = {"go", it.failures}
end
save_receivers()
-- Leases that ended made room for the jobs in its line.
if is_news or is_sooner then
  ring_bell(hungry)
end
return answer
