-- Settle what slots have done, move what is due into its receivers' lines, and give free slots their next jobs.
--
-- A slot holds one job at most. One that already has a job gets that again: the reply that brought it may have been lost.
-- So a settlement counts only if its slot still holds the job. A slot also keeps the job that it settled last, which
-- distinguishes a settlement that is repeated, because its reply was lost, from one that came too late. The same batch given once more is
-- another job: it has another number.
--
-- uses job_bell
-- uses batch_parts
-- uses receiver_notices
-- uses dead_letters
-- key  registry          registry               hash    routing_version
-- key  pending           jobs:pending:main      hash    slot → `<bid> <token> <number> <1 if a probe>`, newline, its last job
-- key  scheduled         jobs:scheduled:main    zset    `<bid> <token>` by time
-- key  sleeper           jobs:sleeper           string  `<process> <time>`: who wakes for the next deadline
-- key  counters          counters               hash    telemetry
-- key  journal           journal                hash    attempts_bytes: what the attempt journal holds
-- key  journal_attempts  journal:attempts       stream  one entry a delivery attempt
-- keys current           batches:current:<token>  set   the batch that still takes events
-- arg  settled     pack  of each: slot, job as it was held, what came of it, the version with which its receiver, as it was
--                        called, began anew, failures then, 1 if it raises them, wait until the next probe, until the batch's own next try (-1: first in line), number of events, what it counts
--                        (index of a name in `counted`, amount, index, …), why it failed, for a notice, how many parts of
--                        a batch in a row are one piece of evidence, 1 if it counts as an attempt at its batch, and the
--                        change to the batch: its kind and what follows. Without one the batch is done if it was delivered,
--                        and else is tried again as it is.
--                        `split`: in halves; chunk, offset, events and bytes of the first, attempts of both
--                        `keep`: the other events are done; events as lines, how many, their bytes, their lane if they are
--                          put aside and hold it, how long their receiver is not called
--                        `dead`: given up; a table for each letter, and the lane of each if it holds it
--                        `aside`: put aside; the lane that it holds
--                        `pause`: tried again as it is; how long its receiver is not called
--                        `wait`: behind the event that holds the lane of all its events; the lane
--                        `divide`: the same with some of its events; of each chunk that changes its index and its lines,
--                          how many events are left and their bytes, of each lane its name, a batch, events as lines, how
--                          many, their bytes, then how many events a batch may have and how many bytes
-- arg  counted     pack  names of counters
-- arg  slots       pack  those that are free
-- arg  probes_max  int   how many of them may call receivers that are failing
-- arg  process     text  who asks
-- arg  lag_ms      int   how much longer to wait than the process that owns the next deadline
-- arg  due_max     int   how many due jobs to move in one call
-- arg  bytes_max   int   give no further job when those given hold this much
-- rest attempts    text  of each settlement its attempt as JSON, empty if there was none; they may be long
--
-- A settlement's result is three numbers: 1 if it counted, the failures of its receiver before, and after. A job is four
-- values: its slot, the job as it is held there, the failures of its receiver, and its batch as a list: token, creation time,
-- attempts, number of events, and the events as lines if they are in one piece, else how many bytes they hold. A worker
-- must know a receiver as the registry of this version has it: it may have moved to another address.
--
-- Of each job whose receiver has lanes that are held, the reply has the slot and these lanes.
--
-- returns          {wait in ms or -1, {results}, {jobs}, version of the registry, if there are jobs, {lanes}}

-- An ordered receiver that may put nothing more aside is left alone for so long at most.
local PAUSE_MS_MAX = 60000

-- What is added to the counters. Written together: an HINCRBY for each would be a third of what a call costs.
local amounts = {}
local function count(name, amount)
  amounts[name] = (amounts[name] or 0) + amount
end

local function write_counts()
  local names, sums, words = {}, {}, {}
  for name, amount in pairs(amounts) do
    names[#names + 1], sums[#sums + 1] = name, amount
  end
  for i, kept in ipairs(#names > 0 and redis.call("HMGET", counters, unpack(names)) or {}) do
    words[2 * i - 1], words[2 * i] = names[i], string.format("%d", tonumber(kept or 0) + sums[i])
  end
  if #words > 0 then
    redis.call("HSET", counters, unpack(words))
  end
end

-- What slots hold, and what they settled last.
local held_by, last_of, pending_changed = {}, {}, {}
local function read_slots(names)
  local unread = {}
  for _, slot in ipairs(names) do
    unread[#unread + 1] = not held_by[slot] and slot or nil
  end
  for i, kept in ipairs(#unread > 0 and redis.call("HMGET", pending, unpack(unread)) or {}) do
    held_by[unread[i]], last_of[unread[i]] = string.match(kept or "\n", "^(.*)\n(.*)$")
  end
end

local function hold(slot, held)
  if held == "" then
    last_of[slot] = held_by[slot]
  end
  held_by[slot], pending_changed[slot] = held, true
end

-- Batches of each subscriber that are done, delivered or given up, with the number of their events.
local delivered, delivered_order = {}, {}
local function note_delivered(bid, token, events)
  if not delivered[token] then
    delivered[token], delivered_order[#delivered_order + 1] = {bids = {}, events = {}}, token
  end
  table.insert(delivered[token].bids, bid)
  table.insert(delivered[token].events, events)
end

-- Delete them, with every count of them. One that was dropped or purged meanwhile has been counted then.
local function delete_delivered()
  for _, token in ipairs(delivered_order) do
    local bids, events, keys = delivered[token].bids, 0, {}
    local found = redis.call("ZREM", index, unpack(bids))
    for i, bid in ipairs(bids) do
      keys[i] = batch(bid)
      if found == #bids or redis.call("EXISTS", keys[i]) == 1 then
        events = events + delivered[token].events[i]
      end
    end
    if found > 0 then
      redis.call("DEL", unpack(keys))
      redis.call("ZREM", token_index(token), unpack(bids))
      redis.call("HDEL", sizes, unpack(bids))
      redis.call("HINCRBY", gauge_events, token, -events)
      redis.call("HINCRBY", gauge_batches, token, -found)
      count("events.removed:subscriber=" .. token, events)
    end
  end
end

-- The batch is tried again: when its time has come, or first of all.
local function put_back(it, bid, delay_ms)
  if delay_ms < 0 then
    put_first(it, bid)
  else
    note_time(scheduled, now + delay_ms)
    redis.call("ZADD", scheduled, now + delay_ms, bid .. " " .. it.token)
  end
end

-- Try a batch again later; of an ordered receiver it holds its lane meanwhile. Where no further lane may be held, all waits.
local function put_aside(it, bid, delay_ms, lane)
  if lane == "" or hold_lane(it, bid, lane) then
    put_back(it, bid, delay_ms)
  else
    put_first(it, bid)
    pause(it, math.min(delay_ms, PAUSE_MS_MAX))
  end
end

-- The events of a batch are dead letters, which hold their lanes where `lanes` has those.
local function give_up(it, bid, events, letters, lanes)
  if not has_room(it, lanes) then
    put_first(it, bid)
    pause(it, PAUSE_MS_MAX)
    return
  end
  for i, letter in ipairs(letters) do
    add_dead_letter(it.token, letter)
    if lanes[i] then
      block_lane(it, bid, letter.id, lanes[i])
    end
  end
  note_delivered(bid, it.token, events)
  release_lane(it, bid)
end

-- Settle a batch that was attempted and is still there.
local function dispose(it, bid, is_counted, delay_ms, events, change)
  local kind = change[1]
  if kind == "split" then
    split(it, bid, unpack(change, 2))
  elseif kind == "keep" then
    local lines, kept, bytes, lane, pause_ms = unpack(change, 2)
    local part, done = keep(it, bid, lines, kept, bytes)
    if done > 0 then
      count("events.removed:subscriber=" .. it.token, done)
    end
    put_aside(it, part, delay_ms, lane)
    pause(it, pause_ms)
  elseif kind == "dead" then
    give_up(it, bid, events, change[2], change[3])
  elseif kind == "wait" then
    wait_in_lane(it, bid, change[2])
  elseif kind == "divide" then
    divide(it, bid, unpack(change, 2))
  else
    if is_counted then
      redis.call("LSET", batch(bid), 2, redis.call("LINDEX", batch(bid), 2) + 1)
    end
    put_aside(it, bid, delay_ms, kind == "aside" and change[2] or "")
    pause(it, kind == "pause" and change[2] or 0)
  end
end

-- Whether it counted, and the failures of its receiver before and after.
local attempts_bytes = 0
local function settle(
  attempt, slot, held, what, anew_since, failures, raises, probe_ms, delay_ms, events, counts, why, parts_max, is_counted,
  change
)
  if held_by[slot] ~= held then
    return last_of[slot] == held and 1 or 0, 0, 0
  end
  hold(slot, "")
  local bid, token = string.match(held, "^(%S+) (%S+) ")
  local it = read_receiver(token)
  local before = it.failures
  it.held = math.max(0, it.held - 1)
  leave(it, slot)
  if what == "returned" then
    give_call_back(it)
  end
  end_call(it, what, anew_since, failures, raises, probe_ms, string.match(bid, "^[^.]+"), parts_max)
  notice_change(it, before, why)
  if what == "delivered" and #change == 0 then
    note_delivered(bid, token, events)
    release_lane(it, bid)
  elseif what ~= "gone" and is_there(bid, token) then
    dispose(it, bid, is_counted == 1, delay_ms, events, change)
  else
    release_lane(it, bid)
  end
  serve_lane(it)
  if #attempt > 0 then
    redis.call("XADD", journal_attempts, "*", "attempt", attempt)
    attempts_bytes = attempts_bytes + #attempt
    for i = 1, #counts, 2 do
      count(counted[counts[i]], counts[i + 1])
    end
  end
  return 1, before, it.failures
end

-- What is due comes into its receiver's line. What was tried before comes first, unless its receiver is failing: then the
-- next probe is one that has not been tried, or several batches that are never taken would use up all probes in turns.
local function promote()
  local due = head(scheduled) <= now and redis.call("ZRANGE", scheduled, "-inf", now, "BYSCORE", "LIMIT", 0, due_max) or {}
  if #due > 0 then
    redis.call("ZREM", scheduled, unpack(due))
    heads[scheduled] = nil
  end
  for _, job in ipairs(due) do
    local bid, token = string.match(job, "^(%S+) (%S+)$")
    local it = read_receiver(token)
    if is_there(bid, token) then
      local is_first = it.failures == 0 and redis.call("LINDEX", batch(bid), 2) ~= "0"
      line_up(it, bid, is_first and "RPUSH" or "LPUSH")
    else
      release_lane(it, bid)
      serve_lane(it)
    end
  end
  if head(wake) <= now then
    read_receivers(redis.call("ZRANGE", wake, "-inf", now, "BYSCORE", "LIMIT", 0, due_max))
  end
end

local given, given_count, given_bytes, lanes_given = {}, 0, 0, {}
local function give(slot, held, it, bid, parts)
  local at = #given
  given[at + 1], given[at + 2], given[at + 3], given[at + 4] = slot, held, it.failures, parts
  given_count = given_count + 1
  if it.lanes > 0 then
    table.insert(lanes_given, slot)
    table.insert(lanes_given, lanes_before(it, bid))
  end
end

-- A batch, which takes no more events from here on; empty when it is gone. Of one whose events came by several calls only
-- the head and the size: a script would copy and hash each byte of them, so the caller reads them by a command of its own.
local current_of = {}
local function open(bid, token)
  current_of[token] = current_of[token] or redis.call("SRANDMEMBER", current(token)) or "none"
  if current_of[token] == bid then
    redis.call("SREM", current(token), bid)
    current_of[token] = "none"
  end
  local parts = redis.call("LRANGE", batch(bid), 0, 4)
  -- One event is in one piece.
  if #parts > 4 and parts[4] ~= "1" and redis.call("LLEN", batch(bid)) > 5 then
    parts[5] = math.max(1, tonumber(redis.call("HGET", sizes, bid) or 0))
    given_bytes = given_bytes + parts[5]
    return parts
  end
  given_bytes = given_bytes + #(parts[5] or "")
  return parts
end

-- Put a receiver among others that are ordered as in Redis: by score, then by name.
local function insert_receiver(order, it)
  local at = #order
  while at > 0 and (order[at].score > it.score or (order[at].score == it.score and order[at].token > it.token)) do
    at = at - 1
  end
  table.insert(order, at + 1, it)
end

-- The first receivers of `ring` or `probes`: those that this call has read, by the seats that it found for them, among others.
local function first_of(seat)
  local order, tokens = {}, {}
  for _, it in ipairs(receivers_read) do
    if it.seat == seat then
      insert_receiver(order, it)
    end
  end
  local flat = redis.call("ZRANGE", seats[seat], 0, #slots + #receivers_read - 1, "WITHSCORES")
  for i = 1, #flat, 2 do
    if not receiver_of[flat[i]] then
      insert_receiver(order, {token = flat[i], score = tonumber(flat[i + 1])})
    end
  end
  for i = 1, math.min(#slots, #order) do
    tokens[i] = order[i].token
  end
  return read_receivers(tokens)
end

-- Receivers that may be called, the next one first: failing ones, as many as may be, then those of the ring.
local failing, standing, has_skipped = {}, {}, false
local function line_up_receivers()
  failing = probes_max > 0 and first_of(PROBES) or {}
  standing = first_of(RING)
end

-- Those whose jobs had no batch any more made room for others.
local function next_receiver()
  if has_skipped and (#standing == 0 or (#failing == 0 and probes_max > 0)) then
    has_skipped = false
    seat_receivers()
    line_up_receivers()
  end
  return table.remove(probes_max > 0 and #failing > 0 and failing or standing, 1)
end

-- Give a slot the first job of the next receiver; jobs whose batches are gone end here, some at a time.
local skips_left = due_max
local function take(slot)
  while skips_left > 0 do
    local it = next_receiver()
    if not it then
      return
    end
    -- One that has no job after all is skipped, and unseated in the end.
    local bid = next_job(it)
    local parts = open(bid, it.token)
    local is_open = #parts > 0
    if is_open then
      it.held, it.begun = it.held + 1, it.begun + 1
      pace(it)
      local is_probe = it.failures > 0
      if is_probe then
        it.prober, probes_max = slot, probes_max - 1
      else
        pass_turn(it)
      end
      local held = bid .. " " .. it.token .. " " .. it.begun .. (is_probe and " 1" or " 0")
      hold(slot, held)
      give(slot, held, it, bid, parts)
    else
      release_lane(it, bid)
      serve_lane(it)
      skips_left, has_skipped = skips_left - 1, true
    end
    if it.due > 0 and it.failures == 0 and has_permit(it) and may_begin(it) then
      it.score = it.tag
      insert_receiver(standing, it)
    elseif it.due > 0 and not is_open then
      table.insert(failing, 1, it)
    end
    if is_open then
      return
    end
  end
end

local asked = {}
for i, it in ipairs(settled) do
  asked[i] = it[1]
end
read_slots(slots)
read_slots(asked)
local results = {}
for i, it in ipairs(settled) do
  local at = 3 * (i - 1)
  results[at + 1], results[at + 2], results[at + 3] = settle(attempts[i], unpack(it))
end
write_dead_letters()
delete_delivered()
promote()
seat_receivers()

if #slots > 0 then
  -- Probes that these slots already hold are among those that they may make.
  for _, slot in ipairs(slots) do
    probes_max = probes_max - (string.match(held_by[slot], " 1$") and 1 or 0)
  end
  line_up_receivers()
end
local is_asked = {}
for _, slot in ipairs(slots) do
  -- Named twice, a slot would get two jobs and forget one.
  if not is_asked[slot] and given_bytes < bytes_max then
    if held_by[slot] ~= "" then
      local bid, token = string.match(held_by[slot], "^(%S+) (%S+) ")
      give(slot, held_by[slot], read_receiver(token), bid, open(bid, token))
    else
      take(slot)
    end
  end
  is_asked[slot] = true
end

local words = {}
for slot in pairs(pending_changed) do
  words[#words + 1] = slot
  words[#words + 1] = held_by[slot] .. "\n" .. last_of[slot]
end
if #words > 0 then
  redis.call("HSET", pending, unpack(words))
end
save_receivers()
if attempts_bytes > 0 then
  redis.call("HINCRBY", journal, "attempts_bytes", attempts_bytes)
end
write_counts()

-- Of many processes that wait for the same moment one owns it; the others wait a little longer, and find it done.
local earliest = math.min(head(scheduled), head(wake))
local owner, owned = string.match(redis.call("GET", sleeper) or "", "^(%S+) (%d+)$")
owned = tonumber(owned or 0)
local is_owned = owner ~= process and now < owned and owned <= earliest

-- A process without a free slot does not wait; to others the reply says what is left, and what to wait for.
local is_full = given_count == #slots
if is_full then
  redis.call("SREM", hungry, process)
end
if is_full and owner == process then
  redis.call("DEL", sleeper)
end
local is_in_ring, is_failing = redis.call("ZCARD", ring) > 0, redis.call("ZCARD", probes) > 0
local is_rung = is_news or given_count > 0 or #slots == 0
if (is_full and not is_owned and earliest < math.huge) or (is_rung and (is_in_ring or is_failing)) then
  ring_bell(hungry)
end
local version = given_count > 0 and tonumber(redis.call("HGET", registry, "routing_version") or 0) or 0
local function reply(wait_ms)
  return {wait_ms, results, given, version, lanes_given}
end

if is_full then
  return reply(-1)
end
redis.call("SADD", hungry, process)
if is_in_ring or (is_failing and probes_max > 0) then
  return reply(0)
end
if earliest == math.huge then
  return reply(-1)
end
local wait_ms = until_ms(earliest)
if is_owned then
  wait_ms = wait_ms + lag_ms
else
  redis.call("SET", sleeper, string.format("%s %d", process, now + wait_ms), "PX", wait_ms + 1000)
end
return reply(wait_ms)
