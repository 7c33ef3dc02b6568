-- part: lanes of ordered queues: messages of a key are handed out one at a time, in order.
--
-- A lane is the messages of a tenant that have the same key or, of those without one, the same topic. A message of an ordered
-- queue that is pulled *holds* its lane until it is acked, dead or gone, also while it waits for its next attempt. A later one
-- that comes to its turn meanwhile leaves its facet's line and waits behind the lane. When the lane is let go, the first that
-- waits there holds it, and comes back to its place in the line. Where nothing is held all this costs one EXISTS.
--
-- keys queue_lanes   queue:lanes:<of_queue>          hash  lanes that are held, with the message that holds each; and by message its lane
-- keys queue_behind  queue:behind:<of_queue>:<lane>  list  messages that wait behind a lane, next one first
-- keys queue_freed   queue:freed:<of_queue>          set   lanes whose messages were dropped: the next pull lets them go

-- Let a lane go; returns the message that holds it now and comes back to its line, if there is one.
local function pass_lane(of_queue, lane, former)
  local id = redis.call("LPOP", queue_behind(of_queue, lane))
  redis.call("HDEL", queue_lanes(of_queue), lane, former)
  if id then
    redis.call("HSET", queue_lanes(of_queue), lane, id, id, lane)
  end
  return id
end

-- The facet of a lane: no tenant has a `/` or a `:` in its name.
local function facet_of_lane(lane)
  return string.match(lane, "^[^/:]*")
end

-- Messages that waited in their lines are dropped.
local function drop_holders(of_queue, ids)
  if #ids == 0 or redis.call("EXISTS", queue_lanes(of_queue)) == 0 then
    return
  end
  for i, lane in ipairs(redis.call("HMGET", queue_lanes(of_queue), unpack(ids))) do
    if lane then
      redis.call("SADD", queue_freed(of_queue), lane)
    end
  end
end
