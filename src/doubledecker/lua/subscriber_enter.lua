-- Ask to call a subscriber: at most so many batches are in flight to it, over all workers; one while it is failing.
--
-- A hold ends by itself, so that a worker that died does not keep the subscriber's places. While jobs of this partition
-- are parked, those that come now queue behind them; one that was put back has an invitation, which keeps its place.
--
-- key subscriber  subscriber:<token>   hash  failures
-- key holds       holds:<token>        zset  slots that call it now, by when their hold ends
-- key invitations  invitations:<token>  zset  places kept for jobs that were put back, by when that ends
-- key waiting     waiting:<token>      hash  partitions with jobs set aside for it, and a mark of the last time
-- arg slot         text  who wants to call
-- arg concurrency  int   how many may at once
-- arg lease_ms     int   how long a hold lasts
-- arg partition    int   where the batch is
-- arg is_retry     int   1 for a batch that has waited its turn after a failure
-- arg is_called    int   1 for one that was parked and put back
-- now
-- returns          "go", "full", "failing" or "gone"

if redis.call("EXISTS", subscriber) == 0 then
  return "gone"
end
redis.call("ZREMRANGEBYSCORE", holds, "-inf", now)
redis.call("ZREMRANGEBYSCORE", invitations, "-inf", now)
-- A slot makes one call at a time: a hold that it still has is of a call whose end got lost.
redis.call("ZREM", holds, slot)
if is_called == 1 then
  redis.call("ZPOPMIN", invitations)
end
local is_failing = tonumber(redis.call("HGET", subscriber, "failures") or 0) > 0
if is_failing and is_retry == 0 then
  return "failing"
end
local must_queue = is_retry == 0 and is_called == 0 and redis.call("HEXISTS", waiting, partition) == 1
local taken = redis.call("ZCARD", holds) + redis.call("ZCARD", invitations)
if must_queue or taken >= (is_failing and 1 or concurrency) then
  return "full"
end
redis.call("ZADD", holds, now + lease_ms, slot)
return "go"
