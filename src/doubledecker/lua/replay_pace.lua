-- Keep a turn for some events of a replay, so that all its tasks together send no faster than they may.
--
-- key  pace     replay:pace:<id>  string  when the next event may be sent, in microseconds since 1970
-- arg  count    int   how many events
-- arg  gap_us   int   microseconds between two
-- now
-- returns       in how many milliseconds these may be sent

-- A pause is not made up for: what could have been sent meanwhile is not sent all at once.
local at = math.max(tonumber(redis.call("GET", pace) or 0), now * 1000)
local next_at = at + count * gap_us
local kept_ms = math.ceil((next_at - now * 1000) / 1000) + 1000
redis.call("SET", pace, string.format("%d", next_at), "PX", string.format("%d", kept_ms))
return math.ceil((at - now * 1000) / 1000)
