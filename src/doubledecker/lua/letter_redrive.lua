-- Make batches of dead letters of a subscriber, for it alone: they come last in its line, with new attempts.
--
-- Letters that hold a lane of an ordered subscriber come first, each in a batch of its own.
--
-- uses registry_fence
-- uses letter_lanes
-- uses dead_letters
-- key  index          batches:index          zset    all batches by creation time
-- key  sizes          batches:bytes          hash    payload bytes, by batch
-- key  gauge_events   batches:gauges:event   hash    events waiting, by subscriber
-- key  gauge_batches  batches:gauges:batch   hash    batches waiting, by subscriber
-- key  counters       counters               hash    telemetry
-- key  scheduled      jobs:scheduled:main    zset    `<bid> <token>` by time
-- keys current        batches:current:<token>  set   the batch that still takes events
-- keys batch          batch:<bid>            list    token, creation time, attempts, number of events, then events as lines
-- arg  receiver       text  whose they are
-- arg  ids            pack  which
-- arg  bytes_enough   int   stop when so many bytes of them are gone
-- arg  job            text  the job that wants it, empty for none
-- arg  events_max     int   how many events a batch holds
-- arg  bytes_max      int   how many bytes of them, unless one has more
-- arg  uids           text  a name for each batch, of 20 characters each; as many as there are ids
-- returns             {how many ids were gone through, 0 when the registry has changed since; how many of them were there}

if is_stale() then
  return {0, 0}
end
local letters, through = take_dead_letters(receiver, ids, bytes_enough)
local it, made = read_receiver(receiver), 0
local lines, bytes = {}, 0

-- The batch that takes events takes no more, and is in the line before the letters: what is in a batch was accepted before
-- the next one began (lua/backlog_drop.lua).
local function close_current()
  local bid = redis.call("SPOP", current(receiver))
  if bid and redis.call("ZREM", scheduled, bid .. " " .. receiver) == 1 then
    line_up(it, bid, "LPUSH")
  end
end

local function make_batch(is_placed)
  local bid = string.sub(uids, made * 20 + 1, made * 20 + 20)
  redis.call("RPUSH", batch(bid), receiver, now, 0, #lines, table.concat(lines, "\n"))
  redis.call("ZADD", index, now, bid)
  redis.call("ZADD", token_index(receiver), now, bid)
  redis.call("HSET", sizes, bid, bytes)
  if not is_placed then
    line_up(it, bid, "LPUSH")
  end
  made, lines, bytes = made + 1, {}, 0
end

if #letters > 0 then
  close_current()
end
-- Last first, as each comes before those that were placed before it.
local others = {}
for i = #letters, 1, -1 do
  local event = mark_redriven(letters[i].event)
  if unblock_lane(it, letters[i].id, string.sub(uids, made * 20 + 1, made * 20 + 20)) then
    lines, bytes = {event}, #event
    make_batch(true)
  else
    table.insert(others, 1, event)
  end
end
for _, event in ipairs(others) do
  if #lines >= events_max or (#lines > 0 and bytes + #event > bytes_max) then
    make_batch()
  end
  lines[#lines + 1], bytes = event, bytes + #event
end
if #lines > 0 then
  make_batch()
end
if #letters > 0 then
  redis.call("HINCRBY", gauge_batches, receiver, made)
  redis.call("HINCRBY", gauge_events, receiver, #letters)
  redis.call("HINCRBY", counters, "events.added:subscriber=" .. receiver, #letters)
  redis.call("HINCRBY", counters, "letters.redriven:receiver=" .. receiver, #letters)
  count_for(job, #letters)
end
save_and_wake()
return {through, #letters}
