-- Drop a subscriber's oldest waiting batches, as more wait than it lets wait, and record what it lost and from when.
--
-- A batch in flight stays, so that nothing is both delivered and lost; so does the one that still takes events.
--
-- uses backlog_loss
-- uses holder_drop
-- key  token_index       batches:index:<token>     zset    one subscriber's batches by creation time
-- key  current           batches:current:<token>   set     the batch that still takes events
-- key  line              jobs:instant:main:<token> list    due jobs of a receiver, next one last
-- key  index             batches:index             zset    all batches by creation time
-- key  sizes             batches:bytes             hash    payload bytes, by batch
-- key  gauge_events      batches:gauges:event      hash    events waiting, by subscriber
-- key  gauge_batches     batches:gauges:batch      hash    batches waiting, by subscriber
-- key  pending           jobs:pending:main         hash    slot → `<bid> <token> <number> <1 if a probe>`, newline, its last job
-- key  counters          counters                  hash    telemetry
-- keys batch             batch:<bid>               list    token, creation time, attempts, number of events, then events as lines
-- arg  token         text  the subscriber
-- arg  batches_max   int   how many at most
-- arg  created_max   int   only those created no later than this
-- arg  bytes_enough  int   stop when this much payload is gone
-- now
-- returns            {batches, events, bytes} that were dropped

-- Copies that were left for later come into a batch some time after their events were accepted; and events that wait behind
-- another of their key join a batch that began some time before they were (lua/batch_parts.lua).
local LATER_MS, EARLIER_MS = 1000, 1000

local function kept_back()
  local found = {}
  for _, held in ipairs(redis.call("HVALS", pending)) do
    found[string.match(held, "^(%S+) ") or ""] = true
  end
  for _, bid in ipairs(redis.call("SMEMBERS", current)) do
    found[bid] = true
  end
  return found
end

local bids, keys, jobs, events, bytes, first, last = {}, {}, {}, 0, 0
local stays = kept_back()
local oldest = redis.call("ZRANGE", token_index, "-inf", created_max, "BYSCORE", "LIMIT", 0, batches_max, "WITHSCORES")
for i = 1, #oldest, 2 do
  local bid = oldest[i]
  if bytes >= bytes_enough then
    break
  end
  if not stays[bid] then
    bids[#bids + 1], keys[#keys + 1] = bid, batch(bid)
    jobs[#jobs + 1] = not hasten_holder(token, bid) and bid .. " " .. token or nil
    events = events + tonumber(redis.call("LINDEX", batch(bid), 3) or 0)
    bytes = bytes + tonumber(redis.call("HGET", sizes, bid) or 0)
    last = tonumber(oldest[i + 1])
    first = first or last
  end
end
if #bids == 0 then
  return {0, 0, 0}
end

redis.call("UNLINK", unpack(keys))
redis.call("ZREM", token_index, unpack(bids))
redis.call("ZREM", index, unpack(bids))
redis.call("HDEL", sizes, unpack(bids))
redis.call("ZREM", scheduled, "", unpack(jobs))
redis.call("HINCRBY", gauge_batches, token, -#bids)
redis.call("HINCRBY", gauge_events, token, -events)
redis.call("HINCRBY", counters, "events.removed:subscriber=" .. token, events)
redis.call("HINCRBY", counters, "events.dropped:subscriber=" .. token, events)
-- The other jobs end when a slot takes them. One that takes nothing would keep them for ever, so those that are next in line
-- go now, all but one: a receiver that has a job in its line stays where it is among others.
for _ = 1, batches_max do
  local bid = redis.call("LLEN", line) > 1 and redis.call("LINDEX", line, -1)
  if not bid or redis.call("ZSCORE", token_index, bid) or redis.call("HEXISTS", holders(token), bid) == 1 then
    break
  end
  redis.call("RPOP", line)
end

-- What is in a batch was accepted before the next one began; of those that were split, the parts are as old.
local next_at = redis.call("ZRANGE", token_index, "(" .. last + EARLIER_MS, "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")[2]
note_loss(token, bids[1], first - LATER_MS, tonumber(next_at or now) + 1, #bids, events, bytes)
return {#bids, events, bytes}
