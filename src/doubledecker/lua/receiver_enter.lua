-- Ask to call a receiver, a queue's or one of the bulk tier: at most so many batches are on their way to it, over all processes.
--
-- A place comes before the pull, so that what cannot be delivered now stays in the queue. One that fails gets a single
-- batch, no sooner than its next try is due. A hold ends by itself unless it is renewed, as a process that died cannot.
--
-- key receiver  subscriber:<token>  hash  callback, failures, retry_at
-- key holds     holds:<token>       zset  who calls it now, by when their hold ends
-- key invitations  invitations:<token>  zset  places kept for workers' jobs, of a subscriber that was live before
-- arg slot         text  who wants to call
-- arg callback     text  where; a process that has not heard of a change must not call where the queue was before
-- arg concurrency  int   how many may at once
-- arg lease_ms     int   how long a hold lasts
-- now
-- returns          {"go", failures in a row}, or "full" or "failing" or "gone" and milliseconds until it may be different

if redis.call("HGET", receiver, "callback") ~= callback then
  return {"gone", 0}
end
redis.call("ZREMRANGEBYSCORE", holds, "-inf", now)
redis.call("ZREMRANGEBYSCORE", invitations, "-inf", now)
local failures = tonumber(redis.call("HGET", receiver, "failures") or 0)
local left_ms = tonumber(redis.call("HGET", receiver, "retry_at") or 0) - now
if failures > 0 and left_ms > 0 then
  return {"failing", left_ms}
end
local taken = redis.call("ZCARD", holds) + redis.call("ZCARD", invitations)
if taken >= (failures > 0 and 1 or concurrency) then
  local first = redis.call("ZRANGE", holds, 0, 0, "WITHSCORES")[2] or redis.call("ZRANGE", invitations, 0, 0, "WITHSCORES")[2]
  return {failures > 0 and "failing" or "full", first - now}
end
redis.call("ZADD", holds, now + lease_ms, slot)
return {"go", failures}
