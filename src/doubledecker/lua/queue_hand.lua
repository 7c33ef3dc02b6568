-- Note in this partition whose a queue is from now on, unless something later is known.
--
-- key held_by  queue:owner:<queue>  string  version of the registry and client with which it changed hands last
-- arg version  int   the registry's version with which it changed hands
-- arg owner    text  the client; empty for root
-- returns      1 if it was noted, else 0

local known = tonumber(string.match(redis.call("GET", held_by) or "0", "^%d+"))
if known >= version then
  return 0
end
redis.call("SET", held_by, version .. " " .. owner)
return 1
