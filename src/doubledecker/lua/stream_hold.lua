-- Count streams of a client for the length of a lease, over all processes, unless it would have too many.
--
-- key  streams   streams:<token>  zset  the client's open streams; the score is the end of the lease
-- arg  lease_ms  int   how long they are counted without being held anew
-- arg  most      int   how many the client may have; 0 is no bound
-- rest held      text  the streams
-- now
-- returns        1 when they are counted, 0 when they would be too many

redis.call("ZREMRANGEBYSCORE", streams, "-inf", now)
if most > 0 and redis.call("ZCARD", streams) + #held > most then
  return 0
end
local scored = {}
for _, stream in ipairs(held) do
  scored[#scored + 1] = now + lease_ms
  scored[#scored + 1] = stream
end
redis.call("ZADD", streams, unpack(scored))
redis.call("PEXPIRE", streams, lease_ms)
return 1
