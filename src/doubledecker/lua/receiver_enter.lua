-- Ask to call a queue's receiver: at most so many batches are on their way to it, over all processes.
--
-- A place comes before the pull, so that what cannot be delivered now stays in the queue. One that fails gets a single
-- batch, no sooner than its next try is due. A hold ends by itself unless it is renewed, as a process that died cannot.
--
-- key receiver  subscriber:<token>  hash  callback, failures, retry_at
-- key holds     holds:<token>       zset  who calls it now, by when their hold ends
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
local failures = tonumber(redis.call("HGET", receiver, "failures") or 0)
local left_ms = tonumber(redis.call("HGET", receiver, "retry_at") or 0) - now
if failures > 0 and left_ms > 0 then
  return {"failing", left_ms}
end
if redis.call("ZCARD", holds) >= (failures > 0 and 1 or concurrency) then
  return {failures > 0 and "failing" or "full", redis.call("ZRANGE", holds, 0, 0, "WITHSCORES")[2] - now}
end
redis.call("ZADD", holds, now + lease_ms, slot)
return {"go", failures}
