-- Note that a partition has no more parked jobs of a subscriber, unless some were parked since one looked.
--
-- key waiting    waiting:<token>  hash  partitions with jobs set aside for it, and how often some were
-- arg partition  int  where there are none
-- arg seen       int  how often some had been set aside when one looked
-- returns        1, or 0 when more were set aside since

if tonumber(redis.call("HGET", waiting, partition) or 0) ~= seen then
  return 0
end
redis.call("HDEL", waiting, partition)
return 1
