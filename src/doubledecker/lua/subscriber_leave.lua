-- End a call to a subscriber: free its place, and keep score.
--
-- key subscriber  subscriber:<token>          hash  health_points, failures, retry_at
-- key holds       subscriber:holds:<token>    zset  slots that call it now, by when their hold ends
-- key waiting     subscriber:waiting:<token>  set   partitions with jobs set aside for it
-- arg slot         text  who called
-- arg concurrency  int   how many may call at once
-- arg points       int   health won, or lost when negative; 0 when there was no attempt after all
-- arg delay_ms     int   how long until the next try, after a failure
-- now
-- returns          {failures in a row before, failures in a row now, places free, partitions with parked jobs}

redis.call("ZREM", holds, slot)
redis.call("ZREMRANGEBYSCORE", holds, "-inf", now)
if redis.call("EXISTS", subscriber) == 0 then
  return {0, 0, 0, {}}
end
local before = tonumber(redis.call("HGET", subscriber, "failures") or 0)
local failures = before
if points ~= 0 then
  failures = points > 0 and 0 or before + 1
  local health = tonumber(redis.call("HGET", subscriber, "health_points") or 100) + points
  redis.call("HSET", subscriber, "health_points", math.max(0, math.min(100, health)), "failures", failures)
end
if points < 0 then
  redis.call("HSET", subscriber, "retry_at", now + delay_ms)
end
local free = (failures > 0 and 1 or concurrency) - redis.call("ZCARD", holds)
return {before, failures, math.max(0, free), redis.call("SMEMBERS", waiting)}
