-- Count one more of what a client may do so often in a minute, and as often at once, in all processes together.
--
-- key  pace     minute:<kind>:<token>  string  until when all that it did is paid for at its rate, in ms since 1970
-- arg  each_ms  int   how long each one takes to be paid for
-- now
-- returns       0 when it may, else in how many milliseconds it may

local MINUTE_MS = 60000

local paid_at = math.max(tonumber(redis.call("GET", pace) or 0), now) + each_ms
local ahead = paid_at - now
if ahead > MINUTE_MS then
  return ahead - MINUTE_MS
end
redis.call("SET", pace, string.format("%d", paid_at), "PX", ahead)
return 0
