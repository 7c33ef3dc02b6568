-- Note that a partition has no more parked jobs of a subscriber, unless some were parked since one looked.
--
-- key waiting    waiting:<token>  hash  partitions with jobs set aside for it, and a mark of the last time
-- arg partition  int  where there are none
-- arg mark       text  the mark that was there when one looked
-- returns        1, or 0 when more were set aside since

if redis.call("HGET", waiting, partition) ~= mark then
  return 0
end
redis.call("HDEL", waiting, partition)
return 1
