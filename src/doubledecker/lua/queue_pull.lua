-- Take messages from a queue, fairly over its facets, under a lease.
--
-- First what is due comes back: expired leases (or to the dead letters, after too many attempts), messages that were
-- given back with a delay, facets that had to wait for their rate. Then, as often as asked: the facet with the least tag.
-- Of an ordered queue no two messages of a lane are in consumers' hands (queue_lanes).
--
-- uses queue_turns
-- uses queue_dead
-- key  scheduled     queue:scheduled:<queue>  zset  ids of messages that come back later, by when
-- arg  lease_ms      int   how long they are the consumer's
-- arg  attempts_max  int   how many times a message is tried
-- arg  floor         text  virtual time of the queue over all partitions: no facet is served as if it were earlier
-- arg  is_alone      int   1 when no other partition has anything to serve
-- arg  due_max       int   how much of what is due comes back in one call
-- arg  ordered       int   1 when messages of a lane are handed out one at a time
-- arg  portions      pack  how many each of several consumers asked for, in the order they are served; empty: all is one's
-- returns            {ids, attempts, facets, messages, tries, wait in ms or -1, end of leases, least tag, mean cost, facets in the ring}

-- So many facets, or a few more, are looked at in one call whether they can be forgotten.
local FORGOTTEN_MAX = 200
-- So many messages, or so many bytes of them and one more, are put behind their lanes in one call: under a millisecond.
local DIVERTED_MAX, DIVERTED_BYTES_MAX = 200, 1048576

local function due(zset)
  return redis.call("ZRANGE", zset, "-inf", now, "BYSCORE", "LIMIT", 0, due_max)
end

local function bring_back_expired()
  local ids = due(pending)
  if #ids == 0 then
    return
  end
  redis.call("ZREM", pending, unpack(ids))
  local records = records_of(ids)
  let_go("expired", records)
  for _, record in ipairs(records) do
    if is_spent(record, attempts_max) then
      bury(record, "lease", lease_ended(record.attempt))
    else
      give_back(record.id, record.name)
    end
  end
  write_dead_letters()
end

local function bring_back_delayed()
  local ids = due(scheduled)
  if #ids == 0 then
    return
  end
  redis.call("ZREM", scheduled, unpack(ids))
  for _, record in ipairs(records_of(ids)) do
    give_back(record.id, record.name)
  end
end

local function bring_back_freed()
  for _, lane in ipairs(redis.call("SPOP", queue_freed(queue), due_max)) do
    local former = redis.call("HGET", queue_lanes(queue), lane)
    if former and redis.call("HEXISTS", data, former) == 0 then
      free_lanes({former})
    end
  end
end

local function bring_back_due()
  bring_back_expired()
  if has_lanes then
    bring_back_freed()
  end
  if redis.call("EXISTS", scheduled, wake) > 0 then
    bring_back_delayed()
    read_all(due(wake))
  end
  return_all()
  seat_all(all_moved())
end

-- The next message of a facet whose turn it is; those of several turns leave the line together.
local find, ids_of, turn_of = string.find, {}, {}
local function next_id(facet)
  local taken, text, at = taken_of[facet], text_of[facet], head_at[facet]
  local gap = taken == 1 and find(text, " ", at, true)
  if gap then
    head_at[facet] = gap + 1
    return cut(text, at, gap - 1)
  elseif taken == 1 and has_tail[facet] == 0 then
    head_at[facet] = #text + 1
    return at <= #text and cut(text, at)
  end
  if not ids_of[facet] then
    local tail, head = line_prefix .. name_of[facet]
    ids_of[facet], head, has_tail[facet] = take(cut(text, at), has_tail[facet], tail, taken)
    set_head(facet, head)
  end
  turn_of[facet] = (turn_of[facet] or 0) + 1
  return ids_of[facet][turn_of[facet]]
end

-- The lane of a message. Its key comes behind its data; no text has quotes that are not escaped, so the last id is its own.
local function lane_of(text, name)
  local is_read, rest = pcall(cjson.decode, "{" .. string.sub(text, string.match(text, '.*()"id":"') or 1))
  local key = is_read and rest.key
  return key and name .. "/" .. key or name .. ":" .. (string.match(text, '^{"topic":"([^"]*)"') or "")
end

-- The next message of a facet whose lane no other holds; those of held lanes are put behind these.
local diverted, diverted_bytes = 0, 0
local function next_in_order(facet)
  local name = name_of[facet]
  while diverted < DIVERTED_MAX and diverted_bytes < DIVERTED_BYTES_MAX do
    local ids, head, tail = take(head_of(facet), has_tail[facet], line_prefix .. name, 1)
    local id = ids[1]
    set_head(facet, head)
    has_tail[facet] = tail
    local text = id and redis.call("HGET", data, id)
    if not text then
      return id
    end
    local lane = lane_of(text, name)
    local holder = redis.call("HGET", queue_lanes(queue), lane)
    if not holder then
      redis.call("HSET", queue_lanes(queue), lane, id, id, lane)
    end
    if not holder or holder == id then
      return id
    end
    redis.call("RPUSH", queue_behind(queue, lane), id)
    diverted, diverted_bytes = diverted + 1, diverted_bytes + #text
  end
end

-- A facet that was served has nothing that can be handed out now.
local function take_back_turn(facet, charge)
  local rule = rule_of[facet]
  tag_of[facet] = tag_of[facet] - charge / (rule and rule.weight or 1)
  if rule then
    rule.held, rule.next_at = rule.held - 1, rule.next_at - rule.every_ms
  end
end

-- Lease messages to the consumer; what it gets, as columns.
local function lease(turns, charges)
  local ids, attempts, names, tries = {}, {}, {}, {}
  local count = 0
  for i = 1, #turns do
    local facet = turns[i]
    local id
    if ordered == 1 then
      id = next_in_order(facet)
    else
      id = next_id(facet)
    end
    if id then
      count = count + 1
      ids[count], names[count], turns[count], charges[count] = id, name_of[facet], facet, charges[i]
    else
      -- What it had waits behind its lanes.
      take_back_turn(facet, charges[i])
    end
  end
  if count == 0 then
    return {ids, attempts, names, {}, tries}
  end
  local texts = redis.call("HMGET", data, unpack(ids))
  local before = are_all_held(ids) and {} or redis.call("HMGET", tried, unpack(ids))
  local leases, records, lease_end = {}, {}, string.format("%d", now + lease_ms)
  -- A consumer's messages share its time, and only its own.
  local consumer, together, upto = 0, 0, 0
  for i = 1, count do
    local id, name, attempt, forgiven = ids[i], names[i], 1, 0
    if i > upto then
      consumer = consumer + 1
      together = math.min(portions[consumer] or count, count - upto)
      upto = upto + together
    end
    if before[i] then
      local record = unpack_record(id, before[i])
      attempt, forgiven = record.attempt + 1, record.forgiven
    end
    attempts[i], tries[i] = attempt, attempt - forgiven
    leases[2 * i - 1], leases[2 * i] = lease_end, id
    records[2 * i - 1] = id
    records[2 * i] = pack(RECORD_AND_NAME, attempt, together, forgiven, now, charges[i], tag_of[turns[i]], name)
    note("pulled", id, name, attempt, 0)
  end
  redis.call("ZADD", pending, unpack(leases))
  redis.call("HSET", tried, unpack(records))
  return {ids, attempts, names, texts, tries}
end

-- Forget facets that have nothing waiting, and owe nothing: virtual time has passed their tags. One whose tag has moved
-- on since is named again where it belongs.
local function forget_idle()
  local past = redis.call("ZRANGE", idle, "-inf", v, "BYSCORE", "LIMIT", 0, due_max)
  local names, seen, gone = {}, {}, {}
  for i = 1, #past do
    if #names < FORGOTTEN_MAX then
      seen[i] = past[i]
      for name in string.gmatch(past[i], "%S+") do
        names[#names + 1] = name
      end
    end
  end
  if #seen == 0 then
    return
  end
  redis.call("ZREM", idle, unpack(seen))
  for i, facet in ipairs(read_all(names)) do
    if tag_of[facet] <= v and not is_waiting(facet) then
      gone[#gone + 1] = names[i]
    end
  end
  if #gone > 0 then
    redis.call("HDEL", facets, unpack(gone))
  end
end

-- How long until something can be served, or -1 when nobody knows.
local function wait_of(is_servable)
  local wait_ms = is_servable and 0 or -1
  for _, zset in ipairs(is_servable and {} or {pending, scheduled, wake}) do
    local first = redis.call("ZRANGE", zset, 0, 0, "WITHSCORES")
    if first[1] then
      local left = math.max(0, tonumber(first[2]) - now)
      wait_ms = wait_ms < 0 and left or math.min(wait_ms, left)
    end
  end
  return wait_ms
end

if is_anothers then
  return {{}, {}, {}, {}, {}, -1, now, "", "0", 0}
end
bring_back_due()
v = math.max(v, tonumber(floor))
local standing = line_up()
local turns, charges, visited, steps = take_turns(standing)
local columns = lease(turns, charges)
seat_all(standing, visited)
save()
forget_idle()
-- When nobody is left to be compared with, nobody has had more than another.
local head = redis.call("ZRANGE", ring, 0, 0, "WITHSCORES")
if is_alone == 1 and #turns == 0 and not head[1] and redis.call("EXISTS", pending, parked, wake) == 0 then
  redis.call("UNLINK", facets, idle)
end
write_down()

local mean = string.format("%.6g", #turns > 0 and steps / #turns or 0)
local ids, attempts, names, texts, tries = unpack(columns)
return {
  ids, attempts, names, texts, tries,
  wait_of(head[1]), now + lease_ms, head[2] or "", mean, redis.call("ZCARD", ring),
}
