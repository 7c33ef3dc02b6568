-- part: lanes of ordered receivers: their events keep their order though one of them is put aside.
--
-- A lane is the events of a tenant that have the same key or, of those without one, the same topic. An ordered receiver is
-- called with one batch at a time, so all that could change the order is an event that is put aside. It *holds* its lane. A
-- later batch is given with the lanes that are held: the worker takes the events of these out before it posts the batch,
-- and they wait, in order, in a list of their lane. When the event that holds a lane is delivered, given up or dropped, the
-- lane is let go: its list is served before the line until it is empty, and until then later events of the lane go to its end.
-- An event of it that is put aside meanwhile holds it again.
--
-- Where an event that is given up is to block its lane, its dead letter holds the lane in its place, until it is redriven or
-- destroyed: redriven, it holds the lane itself again, and is delivered before all that waits. Several letters may hold a lane,
-- in the order of their events; the lane is let go when none of them is left. One that is redriven while another is before it
-- is a batch without a job, which has the letter's place; it comes into the line when it is the first.
--
-- A lane is let go only when no batch is in a slot's hands, as one may hold later events of the lane that are about to join
-- its list. Without held lanes all this costs nothing.
--
-- uses receiver_ring
-- keys held_lanes  order:held:<token>     hash  lanes that are held, with the batch or letter that holds each; empty once let go
-- keys holders     order:holders:<token>  hash  batches and letters that hold a lane, with the lane
-- keys behind      order:behind:<token>:<lane>  list  letters, and batches of some, that hold a lane behind the first, in order;
--                  few: of one batch, of which 25 events at most are given up at a time
-- keys let_go      order:let_go:<token>   list  lanes that were let go and are not served yet, next one last

-- Beyond this the receiver waits with what it does not take, instead of putting it aside.
local LANES_MAX = 1000

-- A letter is named `<partition>-<uid>`; a batch `<uid>` or, if it is a part of one, `<uid>.<path>`. A uid has 20 characters.
local function is_letter(holder)
  local uid = string.match(holder, "^%d+%-([%w_-]+)$")
  return uid ~= nil and #uid == 20
end

-- Nothing of a lane is held or waits any more.
local function end_lane(it)
  redis.call("HDEL", held_lanes(it.token), it.served)
  it.lanes, it.served = it.lanes - 1, ""
end

-- A batch of one event, which is put aside, holds its lane. Returns whether it may.
local function hold_lane(it, bid, lane)
  local holder = redis.call("HGET", held_lanes(it.token), lane)
  if not holder and it.lanes >= LANES_MAX then
    return false
  end
  -- Held by another: both were on their way before the receiver was ordered.
  if not holder or holder == "" then
    redis.call("HSET", held_lanes(it.token), lane, bid)
    redis.call("HSET", holders(it.token), bid, lane)
    it.lanes = it.lanes + (holder and 0 or 1)
  end
  if it.served == lane then
    it.due, it.served = it.due - redis.call("LLEN", first_line(it)), ""
  end
  return true
end

-- Whether letters may hold their lanes; those that are held already are no more of them.
local function has_room(it, lanes)
  local room, seen = LANES_MAX - it.lanes, {}
  for _, lane in ipairs(#lanes > room and lanes or {}) do
    if not seen[lane] and redis.call("HEXISTS", held_lanes(it.token), lane) == 0 then
      room = room - 1
    end
    if room < 0 then
      return false
    end
    seen[lane] = true
  end
  return true
end

-- A batch or letter is done or gone: if it held a lane, the next that does is the first, or the lane is let go.
local function release_lane(it, holder)
  local lane = it.lanes > 0 and redis.call("HGET", holders(it.token), holder)
  if not lane then
    return
  end
  redis.call("HDEL", holders(it.token), holder)
  if redis.call("HGET", held_lanes(it.token), lane) ~= holder then
    redis.call("LREM", behind(it.token, lane), 1, holder)
    return
  end
  local first = redis.call("LPOP", behind(it.token, lane)) or ""
  redis.call("HSET", held_lanes(it.token), lane, first)
  if first == "" then
    redis.call("LPUSH", let_go(it.token), lane)
  elseif not is_letter(first) then
    line_up(it, first, "RPUSH")
  end
end

-- The event of a batch is given up: its letter holds its lane, in the batch's place or behind all others.
local function block_lane(it, bid, letter, lane)
  local holder = redis.call("HGET", held_lanes(it.token), lane)
  redis.call("HDEL", holders(it.token), bid)
  redis.call("HSET", holders(it.token), letter, lane)
  if not holder or holder == "" or holder == bid then
    redis.call("HSET", held_lanes(it.token), lane, letter)
    it.lanes = it.lanes + (holder and 0 or 1)
  else
    redis.call("RPUSH", behind(it.token, lane), letter)
  end
  if it.served == lane then
    it.due, it.served = it.due - redis.call("LLEN", first_line(it)), ""
  end
end

-- Serve the next lane that was let go. One that is ordered no more may have several batches on their way at any time.
local function serve_lane(it)
  while it.lanes > 0 and it.served == "" and (it.held == 0 or it.limit > 1) do
    local lane = redis.call("RPOP", let_go(it.token))
    if not lane then
      return
    end
    if redis.call("HGET", held_lanes(it.token), lane) == "" then
      it.served = lane
      local count = redis.call("LLEN", first_line(it))
      it.due = it.due + count
      if count == 0 then
        end_lane(it)
      end
    end
  end
end

-- Its next job; empty if it has none.
local function next_job(it)
  local bid = redis.call("RPOP", first_line(it)) or ""
  it.due = math.max(0, it.due - 1)
  if it.served ~= "" and redis.call("EXISTS", first_line(it)) == 0 then
    end_lane(it)
  end
  return bid
end

-- The lanes whose events must not be delivered with a batch: all that are held, but those that it is of itself.
local function lanes_before(it, bid)
  local flat, found = redis.call("HGETALL", held_lanes(it.token)), {}
  for i = 1, #flat, 2 do
    if flat[i] ~= it.served and flat[i + 1] ~= bid then
      found[#found + 1] = flat[i]
    end
  end
  return found
end

-- Jobs of batches that were dropped leave a lane that is not served: two for each that comes, so that they do not add up.
local function skip_dropped(it, lane)
  for _ = 1, 2 do
    local first = redis.call("LINDEX", lane_line(it.token, lane), -1)
    if not first or is_there(first, it.token) then
      return
    end
    redis.call("RPOP", lane_line(it.token, lane))
  end
end

-- A batch whose events are all of one lane waits behind the one that holds it.
local function wait_in_lane(it, bid, lane)
  if redis.call("HEXISTS", held_lanes(it.token), lane) == 0 then
    put_first(it, bid)
    return
  end
  if it.served ~= lane then
    skip_dropped(it, lane)
  end
  redis.call("LPUSH", lane_line(it.token, lane), bid)
  it.due = it.due + (it.served == lane and 1 or 0)
end

-- What waits in lanes is set aside with all else.
local function forget_lanes(it)
  local gone = {held_lanes(it.token), holders(it.token), let_go(it.token)}
  for _, lane in ipairs(redis.call("HKEYS", gone[1])) do
    gone[#gone + 1] = lane_line(it.token, lane)
    gone[#gone + 1] = behind(it.token, lane)
  end
  it.due = it.due - (it.served ~= "" and redis.call("LLEN", first_line(it)) or 0)
  redis.call("UNLINK", unpack(gone))
  it.lanes, it.served = 0, ""
end
