-- part: a batch that is dropped, and holds a lane of an ordered subscriber.
--
-- uses job_bell
-- key  hungry     jobs:hungry:main       set   processes that wait for jobs
-- key  scheduled  jobs:scheduled:main    zset  `<bid> <token>` by time
-- keys holders    order:holders:<token>  hash  batches and letters that hold a lane, with the lane
-- now

local is_rung = false

-- Its job stays, and is due now: it lets the lane go (lua/receiver_order.lua). Returns whether it holds one.
local function hasten_holder(token, bid)
  if redis.call("HEXISTS", holders(token), bid) == 0 then
    return false
  end
  redis.call("ZADD", scheduled, "XX", now, bid .. " " .. token)
  if not is_rung then
    ring_bell(hungry)
    is_rung = true
  end
  return true
end
