-- Delete the oldest batches with all they hold, and count what was lost by subscriber.
--
-- Their jobs stay where they are: the worker that takes one finds the batch gone and removes the job.
--
-- uses holder_drop
-- key  from           <index>                zset  where to look: all batches, or one subscriber's
-- key  index          batches:index          zset  all batches by creation time
-- key  sizes          batches:bytes          hash  payload bytes, by batch
-- key  gauge_events   batches:gauges:event   hash  events waiting, by subscriber
-- key  gauge_batches  batches:gauges:batch   hash  batches waiting, by subscriber
-- key  counters       counters               hash  telemetry
-- keys batch          batch:<bid>            list  token, creation time, attempts, number of events, then events as lines
-- keys current        batches:current:<token>  set  the batch that still takes events
-- keys token_index    batches:index:<token>  zset  one subscriber's batches by creation time
-- arg  batches_max    int   how many at most
-- arg  created_max    int   only those created no later than this
-- arg  bytes_enough   int   stop when this much payload is gone
-- arg  counter        text  what to count the lost events as
-- returns             {subscriber, batches, events, bytes, subscriber, …}

local lost = {}
local order = {}
local bytes = 0
for _, bid in ipairs(redis.call("ZRANGE", from, "-inf", created_max, "BYSCORE", "LIMIT", 0, batches_max)) do
  if bytes >= bytes_enough then
    break
  end
  local size = tonumber(redis.call("HGET", sizes, bid) or 0)
  bytes = bytes + size
  local token, _, _, events = unpack(redis.call("LRANGE", batch(bid), 0, 3))
  redis.call("ZREM", index, bid)
  redis.call("ZREM", from, bid)
  redis.call("HDEL", sizes, bid)
  if token then
    redis.call("DEL", batch(bid))
    hasten_holder(token, bid)
    redis.call("SREM", current(token), bid)
    redis.call("ZREM", token_index(token), bid)
    if not lost[token] then
      lost[token] = {0, 0, 0}
      order[#order + 1] = token
    end
    lost[token] = {lost[token][1] + 1, lost[token][2] + events, lost[token][3] + size}
  end
end
local reply = {}
for _, token in ipairs(order) do
  local batches, events = lost[token][1], lost[token][2]
  redis.call("HINCRBY", gauge_batches, token, -batches)
  redis.call("HINCRBY", gauge_events, token, -events)
  redis.call("HINCRBY", counters, "events.removed:subscriber=" .. token, events)
  redis.call("HINCRBY", counters, counter .. ":subscriber=" .. token, events)
  reply[#reply + 1] = token
  reply[#reply + 1] = batches
  reply[#reply + 1] = events
  reply[#reply + 1] = lost[token][3]
end
return reply
