-- Take events from a client's token bucket, so that all processes together accept no more of it than they may.
--
-- key  pace      pace:<token>  string  when all that was taken is paid for at the client's rate, in ms since 1970
-- arg  count     int   how many events
-- arg  rate      int   events a second
-- arg  burst_ms  int   how far that may lie ahead before no more is given
-- now
-- returns        0 when they were taken, else in how many milliseconds to ask again

local paid_at = math.max(tonumber(redis.call("GET", pace) or 0), now)
if paid_at - now >= burst_ms then
  return math.ceil(paid_at - now - burst_ms) + 1
end
-- More than the burst is given at once too, and paid for by waiting longer: else a large request would never pass.
paid_at = paid_at + count * 1000 / rate
redis.call("SET", pace, string.format("%.3f", paid_at), "PX", string.format("%d", math.ceil(paid_at - now) + 1000))
return 0
