-- Remember a request by its idempotency key, or say what is remembered of it.
--
-- deny-oom
-- key kept       idempotency:<token>       hash  what is remembered, by key
-- key ages       ages:<token>  zset  the keys by age
-- arg key        text  the client's idempotency key
-- arg record     text  what to remember
-- arg window_ms  int   for how long
-- arg keys_max   int   how many of one client; the oldest are forgotten first
-- now
-- returns        what was remembered before, or false

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
redis.call("HSET", kept, key, record)
redis.call("ZADD", ages, now, key)
local excess = redis.call("ZCARD", ages) - keys_max
if excess > 0 then
  forget(redis.call("ZRANGE", ages, 0, excess - 1))
end
return false
