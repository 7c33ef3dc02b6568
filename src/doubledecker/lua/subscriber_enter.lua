-- Ask to call a subscriber: at most so many batches are in flight to it, over all workers; one while it is failing.
--
-- A hold ends by itself, so that a worker that died does not keep the subscriber's places.
--
-- key subscriber  subscriber:<token>          hash  failures, last_attempted_at
-- key holds       subscriber:holds:<token>    zset  slots that call it now, by when their hold ends
-- key waiting     subscriber:waiting:<token>  set   partitions with jobs set aside for it
-- arg slot         text  who wants to call
-- arg concurrency  int   how many may at once
-- arg lease_ms     int   how long a hold lasts
-- arg partition    int   where the batch is
-- arg is_retry     int   1 for a batch that has waited its turn after a failure
-- now
-- returns          "go", "full", "failing" or "gone"

if redis.call("EXISTS", subscriber) == 0 then
  return "gone"
end
redis.call("ZREMRANGEBYSCORE", holds, "-inf", now)
-- A slot makes one call at a time: a hold that it still has is of a call whose end got lost.
redis.call("ZREM", holds, slot)
local is_failing = tonumber(redis.call("HGET", subscriber, "failures") or 0) > 0
if is_failing and is_retry == 0 then
  redis.call("SADD", waiting, partition)
  return "failing"
end
if redis.call("ZCARD", holds) >= (is_failing and 1 or concurrency) then
  redis.call("SADD", waiting, partition)
  return "full"
end
redis.call("ZADD", holds, now + lease_ms, slot)
redis.call("HSET", subscriber, "last_attempted_at", now)
return "go"
