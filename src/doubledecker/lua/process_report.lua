-- Keep what a process reports of itself, and forget processes that have been silent for long.
--
-- key processes  processes          zset  processes, by when they last reported
-- key reports    processes:reports  hash  what each reported
-- arg process    text  the process
-- arg report     text  what it reports; store/processes.py packs it
-- arg dead_ms    int   the silence after which a process is forgotten
-- arg most       int   how many are forgotten at once
-- now
-- returns        0

redis.call("ZADD", processes, now, process)
redis.call("HSET", reports, process, report)
local dead = redis.call("ZRANGEBYSCORE", processes, "-inf", now - dead_ms, "LIMIT", 0, most)
if #dead > 0 then
  redis.call("ZREM", processes, unpack(dead))
  redis.call("HDEL", reports, unpack(dead))
end
return 0
