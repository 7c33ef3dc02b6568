-- Drop the oldest dead letters of a receiver: it has more than it may, or memory is short. The journal has what they were.
--
-- Lanes of an ordered subscriber that they hold are let go.
--
-- uses letter_lanes
-- uses dead_letters
-- key  counters          counters              hash    telemetry
-- key  journal           journal               hash    attempts_bytes: what the attempt journal holds
-- key  journal_attempts  journal:attempts      stream  one entry a delivery attempt; here, what was dropped by reason and status
-- keys queue_state       queue:state:<queue>   hash    dropped: how many messages a queue has dropped
-- arg  receiver      text  whose they are
-- arg  owner         text  the client that has the queue; empty for root, and for a subscriber
-- arg  letters_max   int   how many to drop at most
-- arg  bytes_enough  int   stop when so many bytes of them are gone
-- arg  tail_bytes    int   of an event what comes behind its data, which may be long, takes no more than this
-- returns            {dead letters dropped, their bytes}

-- The id of an event. It comes behind the data; no text has quotes that are not escaped, so that it is the last of its name.
local function id_of(event)
  local tail = string.sub(event, -tail_bytes)
  local at = string.match(tail, '.*()"id":"')
  local is_read, rest = pcall(cjson.decode, "{" .. string.sub(tail, at or 1))
  return is_read and rest.id
end

local ids = redis.call("ZRANGE", letters_index(receiver), 0, letters_max - 1)
local letters, _, bytes = take_dead_letters(receiver, ids, bytes_enough)
if #letters == 0 then
  return {0, 0}
end
let_lanes_go(receiver, letters)

local records, journaled = {}, 0
for _, it in ipairs(letters) do
  local why = "dead letter: " .. it.reason .. " " .. it.status
  records[why] = records[why] or {
    batch = "", subscriber = receiver, attempt = 0, outcome = "dropped", took_ms = 0, at = now, events = {},
    status = it.status > 0 and it.status or nil, detail = why, owner = owner,
  }
  table.insert(records[why].events, id_of(it.event) or it.id)
end
for _, record in pairs(records) do
  -- As others write it, so that an event with a slash in its id is found by its text.
  local text = string.gsub(cjson.encode(record), "\\/", "/")
  redis.call("XADD", journal_attempts, "*", "attempt", text)
  journaled = journaled + #text
end
redis.call("HINCRBY", journal, "attempts_bytes", journaled)
redis.call("HINCRBY", counters, "letters.dropped:receiver=" .. receiver, #letters)
local queue = string.match(receiver, "^@(.*)$")
if queue then
  redis.call("HINCRBY", queue_state(queue), "dropped", #letters)
  redis.call("HINCRBY", counters, "queue.dropped:queue=" .. queue, #letters)
end
return {#letters, bytes}
