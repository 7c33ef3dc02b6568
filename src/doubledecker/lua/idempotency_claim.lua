-- Remember a request by its idempotency key, or return what is remembered of it.
--
-- deny-oom
-- key kept       idempotency:<token>       hash  what is remembered, by key
-- key ages       ages:<token>  zset  the keys by age
-- arg key        text  the client's idempotency key
-- arg record     text  what to remember
-- arg window_ms  int   for how long
-- arg keys_max   int   how many of one client, 0 is no bound; the oldest are forgotten first
-- arg keep_ms    int   but none that is younger than this
-- now
-- returns        what was remembered before, false when it is new, or -1 when there are too many that are young

local function forget(keys)
  if #keys > 0 then
    redis.call("HDEL", kept, unpack(keys))
    redis.call("ZREM", ages, unpack(keys))
  end
end

forget(redis.call("ZRANGE", ages, "-inf", now - window_ms, "BYSCORE", "LIMIT", 0, 100))
local age = redis.call("ZSCORE", ages, key)
if age and tonumber(age) > now - window_ms then
  return redis.call("HGET", kept, key)
end
local excess = keys_max > 0 and redis.call("ZCARD", ages) + 1 - keys_max or 0
if excess > 0 then
  local oldest = redis.call("ZRANGE", ages, "-inf", now - keep_ms, "BYSCORE", "LIMIT", 0, math.min(excess, 100))
  if #oldest == 0 then
    return -1
  end
  forget(oldest)
end
redis.call("HSET", kept, key, record)
redis.call("ZADD", ages, now, key)
return false
