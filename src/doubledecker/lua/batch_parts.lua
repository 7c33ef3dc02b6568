-- part: what a batch is replaced with: halves, what is left of it, or parts that wait in lanes.
--
-- Each has a bid of its own and is a batch like any other, as old as the one it is of.
--
-- uses receiver_order
-- key  index          batches:index          zset  all batches by creation time
-- key  sizes          batches:bytes          hash  payload bytes, by batch
-- key  gauge_events   batches:gauges:event   hash  events waiting, by subscriber
-- key  gauge_batches  batches:gauges:batch   hash  batches waiting, by subscriber
-- keys batch          batch:<bid>            list  token, creation time, attempts, number of events, then events as lines

-- Events join a batch that began so much earlier at most: when it is dropped, they are missed with it (lua/backlog_drop.lua).
local JOINED_MS_MAX = 1000

-- A batch gives way to parts of it, which are as old.
local function replace(bid, token, parts, bytes)
  local scores, lengths = {}, {}
  local created = redis.call("ZSCORE", index, bid)
  for i, part in ipairs(parts) do
    scores[2 * i - 1], scores[2 * i] = created, part
    lengths[2 * i - 1], lengths[2 * i] = part, bytes[i]
  end
  redis.call("HDEL", sizes, bid)
  for _, zset in ipairs({index, token_index(token)}) do
    redis.call("ZREM", zset, bid)
    if #parts > 0 then
      redis.call("ZADD", zset, unpack(scores))
    end
  end
  if #parts > 0 then
    redis.call("HSET", sizes, unpack(lengths))
  end
end

-- The name of a part: the path from the batch that was published, a 0 or 1 for each step.
local function part_of(bid, step)
  return bid .. (string.find(bid, ".", 1, true) and step or "." .. step)
end

-- Cut a batch in two, which come first in line. Copied whole by the server and then trimmed, no event goes through Lua but
-- those of the chunk that is cut.
local function split(it, bid, chunk, offset, events, bytes, attempts)
  local first, second = part_of(bid, "0"), part_of(bid, "1")
  local token, created, _, total = unpack(redis.call("LRANGE", batch(bid), 0, 3))
  redis.call("COPY", batch(bid), batch(second))
  redis.call("RENAME", batch(bid), batch(first))
  redis.call("LTRIM", batch(second), 4 + chunk, -1)
  redis.call("LTRIM", batch(first), 0, 3 + chunk + (offset > 0 and 1 or 0))
  if offset > 0 then
    local lines = redis.call("LINDEX", batch(second), 0)
    redis.call("LSET", batch(first), -1, string.sub(lines, 1, offset - 1))
    redis.call("LSET", batch(second), 0, string.sub(lines, offset + 1))
  end
  redis.call("LPUSH", batch(second), total - events, attempts, created, token)
  redis.call("LSET", batch(first), 2, attempts)
  redis.call("LSET", batch(first), 3, events)
  replace(bid, it.token, {first, second}, {bytes, math.max(0, tonumber(redis.call("HGET", sizes, bid) or 0) - bytes)})
  redis.call("HINCRBY", gauge_batches, it.token, 1)
  put_first(it, second)
  put_first(it, first)
end

-- Of a batch only these events are left, as a part; the others are done. Returns the name of what is left, and how
-- many are done.
local function keep(it, bid, lines, events, bytes)
  local part = part_of(bid, "0")
  local token, created, attempts, total = unpack(redis.call("LRANGE", batch(bid), 0, 3))
  if tonumber(total) == events then
    redis.call("LSET", batch(bid), 2, attempts + 1)
    return bid, 0
  end
  redis.call("DEL", batch(bid))
  redis.call("RPUSH", batch(part), token, created, attempts + 1, events, lines)
  replace(bid, it.token, {part}, {bytes})
  redis.call("HINCRBY", gauge_events, it.token, events - total)
  return part, total - events
end

-- The last batch of a lane takes further events of it, if it has room, was not tried yet and is of about the same time.
local function join(it, lane, created, lines, events, bytes, events_max, bytes_max)
  local last = redis.call("LINDEX", lane_line(it.token, lane), 0)
  local began, attempts, count = unpack(last and redis.call("LRANGE", batch(last), 1, 3) or {})
  if attempts ~= "0" or created - began > JOINED_MS_MAX then
    return false
  end
  local size = tonumber(redis.call("HGET", sizes, last) or 0)
  if count + events > events_max or size + bytes > bytes_max then
    return false
  end
  redis.call("RPUSH", batch(last), lines)
  redis.call("LSET", batch(last), 3, count + events)
  redis.call("HINCRBY", sizes, last, bytes)
  return true
end

-- Take the events of lanes that are held out of a batch: they wait in their lanes, and what is left of it comes first.
local function divide(it, bid, chunks, events, bytes, lanes, events_max, bytes_max)
  local token, created = unpack(redis.call("LRANGE", batch(bid), 0, 1))
  local parts, part_bytes = {}, {}
  if events > 0 then
    for i = 1, #chunks, 2 do
      redis.call("LSET", batch(bid), 4 + chunks[i], chunks[i + 1])
    end
    redis.call("LREM", batch(bid), 0, "")
    redis.call("LSET", batch(bid), 3, events)
    parts[1], part_bytes[1] = bid, bytes
    put_first(it, bid)
  else
    redis.call("DEL", batch(bid))
  end
  for _, each in ipairs(lanes) do
    local lane, part, lines, count, size = unpack(each)
    if not join(it, lane, created, lines, count, size, events_max, bytes_max) then
      redis.call("RPUSH", batch(part), token, created, 0, count, lines)
      parts[#parts + 1], part_bytes[#parts + 1] = part, size
      wait_in_lane(it, part, lane)
    end
  end
  replace(bid, it.token, parts, part_bytes)
  redis.call("HINCRBY", gauge_batches, it.token, #parts - 1)
end
