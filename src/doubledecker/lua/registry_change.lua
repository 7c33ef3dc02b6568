-- part: changing the registry: each change raises its version, and the log says what changed with it.
--
-- key registry  registry          hash  routing_version
-- key changes   registry:changes  zset  what changed, by version

-- Note what has changed, as the kind of a thing and its name; returns the new version.
local function note_change(what)
  local version = redis.call("HINCRBY", registry, "routing_version", 1)
  redis.call("ZADD", changes, version, what)
  return version
end
