-- Make batches of dead letters of a subscriber, for it alone: they come last in its line, with new attempts.
--
-- uses job_bell
-- uses receiver_ring
-- uses dead_letters
-- key  index          batches:index          zset    all batches by creation time
-- key  sizes          batches:bytes          hash    payload bytes, by batch
-- key  gauge_events   batches:gauges:event   hash    events waiting, by subscriber
-- key  gauge_batches  batches:gauges:batch   hash    batches waiting, by subscriber
-- key  counters       counters               hash    telemetry
-- keys batch          batch:<bid>            list    token, creation time, attempts, number of events, then events as lines
-- arg  receiver       text  whose they are
-- arg  ids            pack  which
-- arg  bytes_enough   int   stop when so many bytes of them are gone
-- arg  job            text  the job that wants it, empty for none
-- arg  events_max     int   how many events a batch holds
-- arg  bytes_max      int   how many bytes of them, unless one has more
-- arg  uids           text  a name for each batch, of 20 characters each; as many as there are ids
-- returns             {how many ids were gone through, how many of them were there}

local letters, through = take_dead_letters(receiver, ids, bytes_enough)
local it, made = read_receiver(receiver), 0
local lines, bytes = {}, 0

local function make_batch()
  local bid = string.sub(uids, made * 20 + 1, made * 20 + 20)
  redis.call("RPUSH", batch(bid), receiver, now, 0, #lines, table.concat(lines, "\n"))
  redis.call("ZADD", index, now, bid)
  redis.call("ZADD", token_index(receiver), now, bid)
  redis.call("HSET", sizes, bid, bytes)
  line_up(it, bid, "LPUSH")
  made, lines, bytes = made + 1, {}, 0
end

for _, letter in ipairs(letters) do
  local event = mark_redriven(letter.event)
  if #lines >= events_max or (#lines > 0 and bytes + #event > bytes_max) then
    make_batch()
  end
  lines[#lines + 1], bytes = event, bytes + #event
end
if #letters > 0 then
  make_batch()
  redis.call("HINCRBY", gauge_batches, receiver, made)
  redis.call("HINCRBY", gauge_events, receiver, #letters)
  redis.call("HINCRBY", counters, "events.added:subscriber=" .. receiver, #letters)
  redis.call("HINCRBY", counters, "letters.redriven:receiver=" .. receiver, #letters)
  count_for(job, #letters)
  save_receivers()
end
if is_news or is_sooner then
  ring_bell(hungry)
end
return {through, #letters}
