-- part: putting events into receivers' current batches, as publishing does.
--
-- A batch that is full is closed and comes into its receiver's line; a new one has its job scheduled for when it is due.
--
-- uses event_plan
-- uses receiver_ring
-- key  gauge_events   batches:gauges:event   hash    events waiting, by subscriber
-- key  gauge_batches  batches:gauges:batch   hash    batches waiting, by subscriber
-- key  sizes          batches:bytes          hash    payload bytes, by batch
-- key  index          batches:index          zset    all batches by creation time
-- key  scheduled      jobs:scheduled:main    zset    `<bid> <token>` by time
-- keys batch          batch:<bid>            list    token, creation time, attempts, number of events, then events as lines
-- keys current        batches:current:<token>  set   the batch that still takes events

local uids_used = 0

-- A receiver that is new here gets its permits and its rate with its first batch.
local function open(token, timeout_ms, permits, every_ms)
  local it = read_receiver(token)
  if it.limit == 0 then
    it.limit = permits
    set_pace(it, every_ms)
  end
  local bid = string.sub(plan.uids, uids_used * 20 + 1, uids_used * 20 + 20)
  uids_used = uids_used + 1
  redis.call("RPUSH", batch(bid), token, now, 0, 0)
  redis.call("SADD", current(token), bid)
  redis.call("ZADD", index, now, bid)
  redis.call("ZADD", token_index(token), now, bid)
  redis.call("HINCRBY", gauge_batches, token, 1)
  if timeout_ms == 0 then
    line_up(it, bid, "LPUSH")
    return bid
  end
  note_time(scheduled, now + timeout_ms)
  redis.call("ZADD", scheduled, now + timeout_ms, bid .. " " .. token)
  return bid
end

local function close(bid, token)
  redis.call("SREM", current(token), bid)
  if redis.call("ZREM", scheduled, bid .. " " .. token) == 1 then
    heads[scheduled] = nil
    line_up(read_receiver(token), bid, "LPUSH")
  end
end

local function append(receiver, texts)
  local token, events_max, bytes_max, timeout_ms, permits, every_ms = unpack(receiver)
  local bid = redis.call("SRANDMEMBER", current(token))
  local count, bytes = 0, 0
  if bid then
    count = tonumber(redis.call("LINDEX", batch(bid), 3))
    bytes = tonumber(redis.call("HGET", sizes, bid) or 0)
  end
  local first = 1
  while first <= #texts do
    if bid and (count >= events_max or (count > 0 and bytes + #texts[first] > bytes_max)) then
      close(bid, token)
      bid = nil
    end
    if not bid then
      bid, count, bytes = open(token, timeout_ms, permits, every_ms), 0, 0
    end
    local last, added = first, #texts[first]
    while last < #texts and count + last - first + 1 < events_max and bytes + added + #texts[last + 1] <= bytes_max do
      last = last + 1
      added = added + #texts[last]
    end
    redis.call("RPUSH", batch(bid), table.concat(texts, "\n", first, last))
    count = count + last - first + 1
    redis.call("LSET", batch(bid), 3, count)
    bytes = redis.call("HINCRBY", sizes, bid, added)
    first = last + 1
  end
  if bid and (count >= events_max or bytes >= bytes_max) then
    close(bid, token)
  end
  redis.call("HINCRBY", gauge_events, token, #texts)
  redis.call("HINCRBY", counters, "events.added:subscriber=" .. token, #texts)
end
