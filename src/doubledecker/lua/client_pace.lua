-- Take events from a client's token bucket, so that all processes together accept no more of it than they may.
--
-- key  pace      pace:<token>  hash  paid_at: when all that was taken is paid for at the client's rate, in ms since 1970;
--                                    second, taken: the second in which events were last taken, and how many;
--                                    before: how many in the second before that one
-- arg  count     int   how many events
-- arg  rate      int   events a second
-- arg  burst_ms  int   how far that may lie ahead before no more is given
-- now
-- returns        0 when they were taken, else in how many milliseconds to ask again

local kept = redis.call("HMGET", pace, "paid_at", "second", "taken", "before")
local paid_at = math.max(tonumber(kept[1] or 0), now)
if paid_at - now >= burst_ms then
  return math.ceil(paid_at - now - burst_ms) + 1
end
local second, former = math.floor(now / 1000), tonumber(kept[2] or 0)
local taken, before = tonumber(kept[3] or 0), tonumber(kept[4] or 0)
if former ~= second then
  taken, before = 0, former == second - 1 and taken or 0
end
-- More than the burst is given at once too, and paid for by waiting longer: else a large request would never pass.
paid_at = paid_at + count * 1000 / rate
redis.call("HSET", pace, "paid_at", string.format("%.3f", paid_at),
  "second", second, "taken", taken + count, "before", before)
-- Two seconds longer, for callers that ask how many were taken in the last second.
redis.call("PEXPIRE", pace, string.format("%d", math.ceil(paid_at - now) + 2000))
return 0
