-- part: going by a copy of the registry, which may be old.
--
-- A caller whose registry is older than the partition's is refused. One whose is newer raises the partition's, so that it refuses all that goes by less from
-- then on: nothing is done to a subscriber by a process that does not know that it has left, or that it is back.
--
-- key registry  registry  hash  routing_version: grows with every change of routing
-- arg version   int  of the registry that the caller goes by

local function is_stale()
  local known = tonumber(redis.call("HGET", registry, "routing_version") or 0)
  if known < version then
    redis.call("HSET", registry, "routing_version", version)
  end
  return known > version
end
