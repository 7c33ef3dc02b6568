-- Say what changed in the registry since a version that the caller has.
--
-- key registry   registry          hash  routing_version; log_from: the oldest version the change log reaches back to
-- key changes    registry:changes  zset  what changed, by version
-- arg since      int  the caller's version
-- arg keep_max   int  how many changes the log keeps
-- returns        {version, 1 when the log does not reach back so far and all must be read, changes}

local version = tonumber(redis.call("HGET", registry, "routing_version") or 0)
local excess = redis.call("ZCARD", changes) - keep_max
if excess > 0 then
  local last = redis.call("ZRANGE", changes, excess - 1, excess - 1, "WITHSCORES")
  redis.call("HSET", registry, "log_from", last[2])
  redis.call("ZREMRANGEBYRANK", changes, 0, excess - 1)
end
if since < tonumber(redis.call("HGET", registry, "log_from") or 0) then
  return {version, 1, {}}
end
return {version, 0, redis.call("ZRANGE", changes, since + 1, "+inf", "BYSCORE")}
