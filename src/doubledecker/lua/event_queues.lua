-- part: putting events on queues, as publishing does.
--
-- First, which facets are new to a queue that may know no more, and whether the queues that refuse have room for an event;
-- then pushing it to its facet's line, dropping the oldest where a queue drops, and seating a facet that had nothing.
--
-- uses event_plan
-- uses queue_lines
-- uses queue_lanes
-- key  queue_bell     queues:bell            stream  rung with a queue's name when it has something to serve again
-- key  queue_index    queues:index           set     queues that have held a message here
-- keys queue_state    queue:state:<queue>    hash    sequence, virtual time, counters
-- keys queue_data     queue:data:<queue>     hash    messages by id
-- keys queue_tried    queue:tried:<queue>    hash    attempt and facet of messages once pulled
-- keys queue_ring     queue:ring:<queue>     zset    facets that can be served, by tag
-- keys queue_parked   queue:parked:<queue>   zset    facets that cannot, by tag
-- keys queue_wake     queue:wake:<queue>     zset    facets that can be served later, by when
-- keys queue_idle     queue:idle:<queue>     zset    facets that have nothing, by tag
-- keys queue_rules    queue:rules:<queue>    hash    rules of facets that have some, and how they stand under them
-- keys queue_facets   queue:facets:<queue>   hash    facets, as queue_lines keeps them
-- keys queue_former   queue:former:<queue>   string  where the numbers ended of a queue that had this name lately
-- keys queue_line     queue:new:<queue>:<facet>  list  tails of lines: ids of waiting messages, next one first

-- So many words are gathered for one command.
local WORDS_MAX = 1000
-- A message's id: partition and number. Numbers are slow to spell, so ten ids share the spelling of all but the last digit.
local STEM = "%s-%d"
local DIGITS = {[0] = "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}

-- So many idle facets are forgotten at once to make room for new ones.
local FORGOTTEN_MAX = 200

-- The publisher of an event, or who asks for one that was accepted before; none in a replay. Only asked at a bound.
local publishers
local function publisher_of(i)
  if not publishers then
    publishers = {}
    for _, part in ipairs(plan.askers or plan.publishers) do
      for n = 1, part[2] and #part[2] or #plan.ends do
        publishers[part[2] and part[2][n] or n] = part[1]
      end
    end
  end
  return publishers[i]
end

-- Forget facets that have nothing waiting, those first that owe least: one that comes back soon is served a little
-- earlier than it would be. Without it a queue that nobody pulls from could never know another tenant. Returns how many.
local function forget_idle(queue, wanted, is_fed)
  local names, places, gone = {}, {}, {}
  for i, place in ipairs(redis.call("ZRANGE", queue_idle(queue), 0, math.min(wanted, FORGOTTEN_MAX) - 1)) do
    if #names < FORGOTTEN_MAX then
      places[i] = place
      for name in string.gmatch(place, "%S+") do
        names[#names + 1] = name
      end
    end
  end
  if #names == 0 then
    return 0
  end
  redis.call("ZREM", queue_idle(queue), unpack(places))
  for i, record in ipairs(redis.call("HMGET", queue_facets(queue), unpack(names))) do
    local _, _, _, head = unpack_facet(record)
    if record and head == "" and not is_fed[names[i]] then
      gone[#gone + 1] = names[i]
    end
  end
  return #gone > 0 and redis.call("HDEL", queue_facets(queue), unpack(gone)) or 0
end

-- Those of the facets without a record for which a queue has no room, by their place among `names`.
local function no_room_for(queue, names, kept, new)
  local room = tenants_max - redis.call("HLEN", queue_facets(queue))
  if room < new then
    local is_fed = {}
    for i = 1, #names do
      is_fed[names[i]] = true
    end
    room = room + forget_idle(queue, new - room, is_fed)
  end
  local out = {}
  for i = 1, room < new and #names or 0 do
    if not kept[i] then
      room = room - 1
      out[#out + 1] = room < 0 and i or nil
    end
  end
  return out
end

-- The records of facets that this call feeds, by queue. Returns the events of tenants for which the queue has no room;
-- queues of root, which have no owner here, have room for all.
local facets_kept = {}
local function read_facets(queue, owner, names, numbers)
  local kept, new, out = {}, 0, {}
  for first = 1, #names, WORDS_MAX do
    local last = math.min(first + WORDS_MAX - 1, #names)
    for i, record in ipairs(redis.call("HMGET", queue_facets(queue), unpack(names, first, last))) do
      kept[first + i - 1] = record
      new = new + (record and 0 or 1)
    end
  end
  facets_kept[queue] = kept
  if new > 0 and tenants_max > 0 and owner ~= "" then
    for _, i in ipairs(no_room_for(queue, names, kept, new)) do
      local events = type(numbers[i]) == "number" and {numbers[i]} or numbers[i]
      for n = 1, #events do
        out[#out + 1] = events[n]
      end
    end
  end
  return out
end

local format = string.format
local function waiting_in(queue, facet)
  local _, _, has_tail, head = unpack_facet(redis.call("HGET", queue_facets(queue), facet))
  return length_of(head, has_tail, queue_line(queue, facet))
end

-- How full the queues are that refuse, event by event; a whole that is refused gives back the room that it took.
local filled, whole_of = {}, {}
local function full_queue(facet, at)
  for _, b in ipairs(at) do
    local queue, most, facet_most = unpack(plan.bounds[b])
    local waiting = queue_line(queue, facet)
    filled[queue] = filled[queue] or redis.call("HLEN", queue_data(queue))
    filled[waiting] = filled[waiting] or waiting_in(queue, facet)
    if filled[queue] >= most or (facet_most > 0 and filled[waiting] >= facet_most) then
      return queue
    end
  end
end

local function take_room(facet, at, by, took)
  for _, b in ipairs(at) do
    local queue = plan.bounds[b][1]
    filled[queue] = filled[queue] + by
    filled[queue_line(queue, facet)] = filled[queue_line(queue, facet)] + by
  end
  if took then
    took[#took + 1] = {facet, at}
  end
end

-- Events that do not enter a queue which has no room for them, by queue: it may not refuse those of this publisher.
local skipped = {}
local function skip(queue, i)
  skipped[queue] = skipped[queue] or {}
  skipped[queue][i] = true
end

local function note_skipped(queue, events, left_out)
  local count = 0
  for i in pairs(events) do
    count = count + (left_out[i] and 0 or 1)
  end
  if count > 0 then
    redis.call("HINCRBY", queue_state(queue), "skipped", count)
    redis.call("HINCRBY", counters, "queue.skipped:queue=" .. queue, count)
  end
end

-- What is known of a queue that this call feeds. What is new in it is gathered, and written together: ids and texts in
-- turns, facet by facet, and the ids that each facet gets.
local function standing_of(queue, most, facet_most)
  local kept = redis.call("HMGET", queue_state(queue), "sequence", "v")
  local sequence = kept[1] or redis.call("GET", queue_former(queue))
  return {
    queue = queue, most = most, facet_most = facet_most, length = redis.call("HLEN", queue_data(queue)),
    sequence = tonumber(sequence or 0), is_new = not kept[1], v = tonumber(kept[2] or 0), words = {}, size = 0, names = {}, ids = {}, kept = {},
    gone = {},
  }
end

-- Put facets that had nothing where they belong: they are served next, unless they have had more than their share, or
-- may not be.
local function seat(queue, v, names, kept)
  local has_rules = redis.call("EXISTS", queue_rules(queue)) == 1
  local rules = has_rules and redis.call("HMGET", queue_rules(queue), unpack(names)) or {}
  local seats, count = {}, 0
  for i = 1, #names do
    local name, rule = names[i], rules[i]
    local tag = unpack_facet(kept[i])
    local cap, is_paused, held, next_at = 0, 0, 0, 0
    if rule then
      local words = cmsgpack.unpack(rule)
      cap, is_paused, held, next_at = words[2], words[4], words[5], words[6]
      redis.call("ZREM", queue_wake(queue), name)
    end
    if is_paused == 1 or (cap > 0 and held >= cap) then
      redis.call("ZADD", queue_parked(queue), tag, name)
    elseif next_at > now then
      redis.call("ZADD", queue_wake(queue), next_at, name)
    else
      seats[count + 1], seats[count + 2] = tag >= v and tag or v - 1, name
      count = count + 2
    end
  end
  if #seats > 0 and redis.call("ZADD", queue_ring(queue), unpack(seats)) == redis.call("ZCARD", queue_ring(queue)) then
    redis.call("XADD", queue_bell, "MAXLEN", "~", 1000, "*", "queue", queue)
  end
end

-- The opposite: all that a facet had is dropped.
local function unseat(queue, facet, kept)
  for _, place in ipairs({queue_ring, queue_parked, queue_wake}) do
    redis.call("ZREM", place(queue), facet)
  end
  local rule = redis.call("HGET", queue_rules(queue), facet)
  local next_at = rule and cmsgpack.unpack(rule)[6] or 0
  if next_at > now then
    redis.call("ZADD", queue_wake(queue), next_at, facet)
  elseif kept then
    local tag = unpack_facet(kept)
    redis.call("ZADD", queue_idle(queue), tag, facet)
  end
end

-- How many of a facet's messages are too many. A bound that was lowered is reached little by little, so that no call
-- does much more than its own.
local function over_of(standing, head, has_tail, line, count)
  local over = standing.most > 0 and standing.length - standing.most or 0
  if over > 0 or standing.facet_most > 0 then
    local waiting = length_of(head, has_tail, line)
    over = math.max(over, standing.facet_most > 0 and waiting - standing.facet_most or 0)
    over = math.min(over, waiting, count + 1000)
  end
  return over
end

-- Delete what was dropped; of many facets it is gathered, as a full queue drops one for each new message.
local function delete_gone(standing)
  local queue, gone = standing.queue, standing.gone
  if #gone == 0 then
    return
  end
  drop_holders(queue, gone)
  redis.call("HDEL", queue_data(queue), unpack(gone))
  redis.call("HDEL", queue_tried(queue), unpack(gone))
  redis.call("HINCRBY", queue_state(queue), "dropped", #gone)
  redis.call("HINCRBY", counters, "queue.dropped:queue=" .. queue, #gone)
  standing.gone = {}
end

local function drop(standing, ids)
  standing.length = standing.length - #ids
  for i = 1, #ids do
    standing.gone[#standing.gone + 1] = ids[i]
  end
  if #standing.gone >= WORDS_MAX then
    delete_gone(standing)
  end
end

-- Put a facet's new messages behind those that wait, dropping the oldest where there are too many.
-- Returns the facet's new record, unless it stays the same, and whether it had nothing before.
local function join(standing, facet, kept, ids)
  local line = queue_line(standing.queue, facet)
  local tag, mean, had_tail, former = unpack_facet(kept)
  local head, has_tail = lengthen(former, had_tail, line, ids)
  standing.length = standing.length + #ids
  local over = over_of(standing, head, has_tail, line, #ids)
  if over > 0 then
    local gone
    gone, head, has_tail = take(head, has_tail, line, over)
    drop(standing, gone)
  end
  if head == "" and former ~= "" then
    unseat(standing.queue, facet, kept)
  end
  if (head ~= former or has_tail ~= had_tail) and (kept or head ~= "") then
    return pack(FACET_AND_HEAD, tag, mean, has_tail, head), former == "" and head ~= ""
  end
end

local function write(standing)
  local queue, names, kept = standing.queue, standing.names, standing.kept
  if #names == 0 then
    return
  end
  redis.call("HSET", queue_data(queue), unpack(standing.words))
  local records, woken, kept_of_woken = {}, {}, {}
  local count, woken_count = 0, 0
  for i = 1, #names do
    local record, is_woken = join(standing, names[i], kept[i], standing.ids[i])
    if record then
      records[count + 1], records[count + 2] = names[i], record
      count = count + 2
    end
    if is_woken then
      woken_count = woken_count + 1
      woken[woken_count], kept_of_woken[woken_count] = names[i], kept[i]
    end
  end
  delete_gone(standing)
  if count > 0 then
    redis.call("HSET", queue_facets(queue), unpack(records))
  end
  if woken_count > 0 then
    seat(queue, standing.v, woken, kept_of_woken)
  end
  redis.call("HSET", queue_state(queue), "sequence", string.format("%d", standing.sequence))
  standing.words, standing.size, standing.names, standing.ids, standing.kept = {}, 0, {}, {}, {}
end

-- Gather a facet's events, one number or several; `text_of` has none for one that is left out.
local function gather(standing, facet, kept, numbers, text_of)
  local words, size, sequence, ids, count = standing.words, standing.size, standing.sequence, {}, 0
  local is_one = type(numbers) == "number"
  for n = 1, is_one and 1 or #numbers do
    local text = text_of(is_one and numbers or numbers[n])
    if text then
      sequence, count = sequence + 1, count + 1
      local digit = sequence % 10
      if digit == 0 or not standing.stem then
        standing.stem = sequence < 10 and plan.partition .. "-" or format(STEM, plan.partition, (sequence - digit) / 10)
      end
      local id = standing.stem .. DIGITS[digit]
      words[size + 1], words[size + 2], ids[count] = id, text, id
      size = size + 2
    end
  end
  if count > 0 then
    local at = #standing.names + 1
    standing.names[at], standing.kept[at], standing.ids[at] = facet, kept, ids
    standing.sequence, standing.size = sequence, size
  end
end

-- Put events on a queue: facets, and the numbers of what each gets.
local function push(queue, most, facet_most, facets, numbers, text_of)
  local standing = standing_of(queue, most, facet_most)
  local first = standing.sequence
  for i = 1, #facets do
    gather(standing, facets[i], facets_kept[queue][i], numbers[i], text_of)
    if standing.size >= WORDS_MAX then
      write(standing)
    end
  end
  write(standing)
  if standing.is_new and standing.sequence > first then
    redis.call("SADD", queue_index, queue)
  end
end
