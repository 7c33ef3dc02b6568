-- Remove what a queue held that is gone: lines of some tenants, and at last all but its dead letters.
--
-- Where its messages' numbers ended is kept for a while: one who still holds a message of it must not settle another with
-- the same id, should a queue take the name.
--
-- uses registry_fence
-- uses queue_lanes
-- key  index      queues:index              set     queues that have held a message here
-- key  state      queue:state:<queue>       hash    sequence, virtual time, mean cost, counters
-- key  former     queue:former:<queue>      string  the sequence of the queue that had this name
-- key  facets     queue:facets:<queue>      hash    facets
-- key  rules      queue:rules:<queue>       hash    rules of facets
-- key  ring       queue:ring:<queue>        zset    facets that can be served
-- key  parked     queue:parked:<queue>      zset    facets that cannot
-- key  wake       queue:wake:<queue>        zset    facets that can be served later
-- key  idle       queue:idle:<queue>        zset    facets that have nothing waiting
-- key  held_by    queue:owner:<queue>       string  whose it was
-- key  data       queue:data:<queue>        hash    messages by id
-- key  pending    queue:pending:<queue>     zset    messages in consumers' hands
-- key  tried      queue:tried:<queue>       hash    records of messages once pulled
-- key  scheduled  queue:scheduled:<queue>   zset    messages that come back later
-- key  letters    dead:index:<receiver>      zset    its dead letters
-- key  noticed    notices:open:<receiver>    string  when its owner was notified that its callback fails
-- key  lettered   notices:letter:<receiver>  string  that its owner was notified of a dead letter
-- keys line       queue:new:<of_queue>:<facet>  list  tails of lines
-- arg  queue      text  the queue's name
-- arg  tenants    pack  whose lines are removed
-- arg  held       pack  lanes behind which nothing is to wait any more
-- arg  is_last    int   1 when there are no others, and the rest is removed
-- arg  kept_ms    int   how long to know where its numbers ended
-- returns         how many of its keys there are besides lines, or -1 when the registry has changed since

if is_stale() then
  return -1
end
local all = {
  state, facets, rules, ring, parked, wake, idle, data, pending, tried, scheduled, noticed, lettered, held_by,
  queue_lanes(queue), queue_freed(queue),
}
local count = redis.call("EXISTS", letters, unpack(all))
local lists = {}
for i, tenant in ipairs(tenants) do
  lists[i] = line(queue, tenant)
end
for _, lane in ipairs(held) do
  lists[#lists + 1] = queue_behind(queue, lane)
end
if #lists > 0 then
  redis.call("UNLINK", unpack(lists))
end
if is_last == 1 then
  local sequence = redis.call("HGET", state, "sequence")
  if sequence then
    redis.call("SET", former, sequence, "PX", kept_ms)
  end
  redis.call("UNLINK", unpack(all))
  redis.call("SREM", index, queue)
end
return count
