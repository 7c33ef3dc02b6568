-- End a call to a subscriber: free its place, keep score, and invite parked jobs to the free places.
--
-- Who goes on with the next job keeps its place, if it still has it, and if there are not fewer places than are taken.
--
-- key subscriber   subscriber:<token>   hash  health_points, failures, failing_since, last_attempted_at, retry_at
-- key holds        holds:<token>        zset  slots that call it now, by when their hold ends
-- key invitations  invitations:<token>  zset  places kept for jobs that were put back, by when that ends
-- key waiting      waiting:<token>      hash  partitions with jobs set aside for it, and a mark of the last time
-- arg slot         text  who called
-- arg concurrency  int   how many may call at once
-- arg points       int   health won, or lost when negative; 0 when there was no attempt after all
-- arg delay_ms     int   how long until the next try, after a failure
-- arg took_ms      int   how long ago the call began
-- arg invite_ms    int   how long an invitation lasts
-- arg uid          text  to tell these invitations from others
-- arg lease_ms     int   how long a place that is kept lasts; 0 to free it
-- now
-- returns          {failures in a row before, failures in a row now, 1 if the place is kept, invited, all invitations now, {partition with parked jobs, mark, …}}

redis.call("ZREMRANGEBYSCORE", holds, "-inf", now)
redis.call("ZREMRANGEBYSCORE", invitations, "-inf", now)
if redis.call("EXISTS", subscriber) == 0 then
  redis.call("ZREM", holds, slot)
  return {0, 0, 0, 0, 0, {}}
end
local before = tonumber(redis.call("HGET", subscriber, "failures") or 0)
local failures = before
if points ~= 0 then
  failures = points > 0 and 0 or before + 1
  local health = tonumber(redis.call("HGET", subscriber, "health_points") or 100) + points
  redis.call("HSET", subscriber, "health_points", math.max(0, math.min(100, health)), "failures", failures)
  redis.call("HSET", subscriber, "last_attempted_at", now - took_ms)
end
if points < 0 then
  redis.call("HSET", subscriber, "retry_at", now + delay_ms)
  redis.call("HSETNX", subscriber, "failing_since", now)
elseif points > 0 and before > 0 then
  redis.call("HDEL", subscriber, "failing_since")
end
local parked = redis.call("HGETALL", waiting)
local taken = redis.call("ZCARD", holds) + redis.call("ZCARD", invitations)
local is_kept = lease_ms > 0 and failures == 0 and taken <= concurrency and redis.call("ZSCORE", holds, slot)
if is_kept then
  redis.call("ZADD", holds, now + lease_ms, slot)
else
  taken = taken - redis.call("ZREM", holds, slot)
end
local invited = 0
if failures == 0 and #parked > 0 then
  invited = math.max(0, concurrency - taken)
  for i = 1, invited do
    redis.call("ZADD", invitations, now + invite_ms, uid .. i)
  end
end
return {before, failures, is_kept and 1 or 0, invited, redis.call("ZCARD", invitations), parked}
