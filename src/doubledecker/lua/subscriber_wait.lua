-- Note that a partition has parked jobs of a subscriber, and invite some back if places became free meanwhile.
--
-- key subscriber   subscriber:<token>   hash  failures
-- key holds        holds:<token>        zset  slots that call it now, by when their hold ends
-- key invitations  invitations:<token>  zset  places kept for jobs that were put back, by when that ends
-- key waiting      waiting:<token>      hash  partitions with jobs set aside for it, and a mark of the last time
-- arg concurrency  int  how many may call at once
-- arg partition    int  where the jobs are
-- arg invite_ms    int  how long an invitation lasts
-- arg uid          text  to tell this parking, and these invitations, from others
-- now
-- returns          {how many parked jobs are invited back, all invitations now}; none while it is failing

if redis.call("EXISTS", subscriber) == 0 then
  return {0, 0}
end
redis.call("HSET", waiting, partition, uid)
if tonumber(redis.call("HGET", subscriber, "failures") or 0) > 0 then
  return {0, 0}
end
redis.call("ZREMRANGEBYSCORE", holds, "-inf", now)
redis.call("ZREMRANGEBYSCORE", invitations, "-inf", now)
local free = math.max(0, concurrency - redis.call("ZCARD", holds) - redis.call("ZCARD", invitations))
for i = 1, free do
  redis.call("ZADD", invitations, now + invite_ms, uid .. i)
end
return {free, redis.call("ZCARD", invitations)}
