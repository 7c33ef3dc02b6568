-- Raise this partition's copy of the registry's version; it never falls.
--
-- key registry  registry  hash  routing_version
-- arg version   int  home's version
-- returns       the version it has now

if tonumber(redis.call("HGET", registry, "routing_version") or 0) < version then
  redis.call("HSET", registry, "routing_version", version)
end
return tonumber(redis.call("HGET", registry, "routing_version") or 0)
