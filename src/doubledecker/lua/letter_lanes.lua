-- part: lanes of ordered subscribers that dead letters hold, when these are redriven or destroyed.
--
-- uses job_bell
-- uses receiver_order

-- A letter is redriven as a batch: if it held a lane, the batch does, in its place, and is delivered when it is the first that
-- does. Returns whether it did.
local function unblock_lane(it, letter, bid)
  local lane = it.lanes > 0 and redis.call("HGET", holders(it.token), letter)
  local is_first = lane and redis.call("HGET", held_lanes(it.token), lane) == letter
  local at = lane and not is_first and redis.call("LPOS", behind(it.token, lane), letter)
  if not is_first and not at then
    return false
  end
  redis.call("HDEL", holders(it.token), letter)
  redis.call("HSET", holders(it.token), bid, lane)
  if is_first then
    redis.call("HSET", held_lanes(it.token), lane, bid)
    -- Not into a lane that is served just now: that may be held again, and this one then waited for it.
    line_up(it, bid, "RPUSH")
  else
    redis.call("LSET", behind(it.token, lane), at, bid)
  end
  return true
end

-- Write what is known of receivers; a process that waits for jobs is woken. Also without lanes: to read a receiver ends those
-- of its leases that are over.
local function save_and_wake()
  save_receivers()
  if is_news or is_sooner then
    ring_bell(hungry)
  end
end

-- Letters are gone: the lanes that they held are let go.
local function let_lanes_go(receiver, letters)
  local it = read_receiver(receiver)
  for _, letter in ipairs(it.lanes > 0 and letters or {}) do
    release_lane(it, letter.id)
  end
  serve_lane(it)
  save_and_wake()
end
