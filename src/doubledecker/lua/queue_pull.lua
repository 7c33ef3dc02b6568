-- Take messages from a queue, fairly over its facets, under a lease.
--
-- First what is due comes back: expired leases (or to the dead letters, after too many attempts), messages that were
-- given back with a delay, facets that had to wait for their rate. Then, as often as asked: the facet with the least tag.
--
-- uses queue_turns
-- uses queue_dead
-- key  scheduled     queue:scheduled:<queue>  zset  ids of messages that come back later, by when
-- arg  lease_ms      int   how long they are the consumer's
-- arg  attempts_max  int   how many times a message is tried
-- arg  floor         text  virtual time of the queue over all partitions: no facet is served as if it were earlier
-- arg  is_alone      int   1 when no other partition has anything to serve
-- arg  due_max       int   how much of what is due comes back in one call
-- arg  portions      pack  how many each of several consumers asked for, in the order they are served; empty: all is one's
-- returns            {ids, attempts, facets, messages, tries, wait in ms or -1, end of leases, least tag, mean cost, facets in the ring}

-- So many facets, or a few more, are looked at in one call whether they can be forgotten.
local FORGOTTEN_MAX = 200

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

local function bring_back_due()
  bring_back_expired()
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

-- Lease messages to the consumer; what it gets, as columns.
local function lease(turns, charges)
  local ids, attempts, names, tries = {}, {}, {}, {}
  local count = 0
  for i = 1, #turns do
    local facet = turns[i]
    local id = next_id(facet)
    if id then
      count = count + 1
      ids[count], names[count], turns[count], charges[count] = id, name_of[facet], facet, charges[i]
    elseif rule_of[facet] then
      -- Its line is shorter than it can be: somebody else removed it.
      rule_of[facet].held = rule_of[facet].held - 1
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
