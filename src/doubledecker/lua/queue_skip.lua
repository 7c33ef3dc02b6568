-- Count events that routing kept out of queues, because their owners have reached a bound.
--
-- key  counters  counters             hash  telemetry
-- key  index     queues:index         set   queues that hold something here: the sweep finds what is left of deleted ones by it
-- keys state     queue:state:<queue>  hash  skipped: how many events did not enter the queue
-- arg  counts    pack  queue and number of events, in turns
-- returns        how many queues there were

for i = 1, #counts, 2 do
  local queue, count = counts[i], counts[i + 1]
  redis.call("HINCRBY", state(queue), "skipped", count)
  redis.call("HINCRBY", counters, "queue.skipped:queue=" .. queue, count)
  redis.call("SADD", index, queue)
end
return #counts / 2
