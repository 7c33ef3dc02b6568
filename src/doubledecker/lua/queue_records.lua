-- part: settles the messages of a queue that were pulled.
--
-- A line is always sorted by the numbers of its ids, so a message that comes back finds its old place.
--
-- uses queue_facets
-- uses queue_lanes
-- key  pending    queue:pending:<queue>     zset    ids of messages in consumers' hands, by the end of the lease
-- key  tried      queue:tried:<queue>       hash    records of messages once pulled, by id
-- key  journal    journal                   hash    settlements_bytes
-- key  settled    journal:settlements       stream  what became of messages, for the measures of fairness
-- key  bell       queues:bell               stream  rung with a queue's name when it has something to serve again

-- Attempt, messages pulled together (0 once the attempt does not count), attempts that do not count, time of the pull,
-- cost charged, the facet's tag then; and the facet's name.
local RECORD = "<I4I4I4ddd"
local RECORD_AND_NAME, NAME_AT = RECORD .. "c0", struct.size(RECORD) + 1
-- Below this many it costs less to ask for each than to find out whether all are alike.
local ASKED_TOGETHER_MIN = 8

-- The clock counts milliseconds; what took less than one took something.
local TOOK_MS_MIN = 0.5

local notes = {}
local noted_attempt, noted_ms, noted
local backs = {}
local has_lanes = redis.call("EXISTS", queue_lanes(queue)) == 1

local function pack_record(record)
  return pack(
    RECORD_AND_NAME,
    record.attempt, record.together, record.forgiven, record.pulled_at, record.charged, record.tag, record.name
  )
end

local function unpack_record(id, packed)
  local attempt, together, forgiven, pulled_at, charged, tag, name_at = unpack_from(RECORD, packed)
  return {
    id = id, name = cut(packed, name_at), attempt = attempt, together = together, forgiven = forgiven,
    pulled_at = pulled_at, charged = charged, tag = tag,
  }
end

-- The records of messages that were all pulled once.
local function records_of(ids)
  local records = #ids > 0 and redis.call("HMGET", tried, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    records[i] = unpack_record(id, records[i])
  end
  return records
end

-- Whether every record is of a message in a consumer's hands: none came back, so none that waits has one. Mostly so,
-- and it saves asking for each of many messages; of few, each is asked for.
local function are_all_held(ids)
  return #ids >= ASKED_TOGETHER_MIN and redis.call("HLEN", tried) == redis.call("ZCARD", pending)
end

local function number_of(id)
  return tonumber(string.match(id, "%-(%d+)$"))
end

-- Put a message where its number belongs in a tail.
local function insert(tail, id)
  local number, low, high = number_of(id), 0, redis.call("LLEN", tail)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if number_of(redis.call("LINDEX", tail, middle)) > number then
      high = middle
    else
      low = middle + 1
    end
  end
  local next_id = redis.call("LINDEX", tail, low)
  if next_id then
    redis.call("LINSERT", tail, "BEFORE", next_id, id)
  else
    redis.call("RPUSH", tail, id)
  end
end

-- A message comes back to its line, once all that come back are known.
local function give_back(id, name)
  backs[name] = backs[name] or {}
  table.insert(backs[name], id)
end

-- Put messages into their lines again, each where it belongs: nearly always in front.
local function return_all()
  local names = {}
  for name in pairs(backs) do
    names[#names + 1] = name
  end
  read_all(names)
  for name, ids in pairs(backs) do
    local facet, tail = facet_of(name), line_prefix .. name
    local front = ids_in(head_of(facet))
    local last = has_tail[facet] == 1 and number_of(front[#front]) or math.huge
    for _, id in ipairs(ids) do
      if number_of(id) < last then
        front[#front + 1] = id
      else
        insert(tail, id)
      end
    end
    table.sort(front, function(a, b) return number_of(a) < number_of(b) end)
    local behind = {}
    for _ = 2 * HEAD_SIZE + 1, #front do
      behind[#behind + 1] = table.remove(front)
    end
    if #behind > 0 then
      redis.call("LPUSH", tail, unpack(behind))
      has_tail[facet] = 1
    end
    set_head(facet, table.concat(front, " "))
    is_changed[facet] = true
  end
end

-- Whether a message has had all its attempts. Not all count: not those before it was brought back from the dead, nor
-- those that ended by no fault of its own.
local function is_spent(record, attempts_max)
  return record.attempt - record.forgiven >= attempts_max
end

-- Messages are gone for good: the next ones of the lanes that they held come back. Call return_all after it.
local function free_lanes(ids)
  for i, lane in ipairs(has_lanes and #ids > 0 and redis.call("HMGET", queue_lanes(queue), unpack(ids)) or {}) do
    local next_one = lane and pass_lane(queue, lane, ids[i])
    if next_one then
      give_back(next_one, facet_of_lane(lane))
    end
  end
end

local function note(kind, id, name, attempt, ms)
  -- Numbers are slow to spell, and those of one call are mostly the same.
  if attempt ~= noted_attempt or ms ~= noted_ms then
    noted_attempt, noted_ms, noted = attempt, ms, " " .. attempt .. " " .. ms
  end
  local lines = notes[kind]
  if not lines then
    lines = {count = 0}
    notes[kind] = lines
  end
  local count = lines.count + 1
  lines.count, lines[count] = count, id .. " " .. name .. noted
end

-- Why a message dies whose last lease ended.
local function lease_ended(attempt)
  return "the lease of attempt " .. attempt .. " ended"
end

-- Read the facets of records.
local function read_facets_of(records)
  local names, count = {}, 0
  for i = 1, #records do
    local name = records[i].name
    if facet_named[name] == nil then
      count = count + 1
      facet_named[name], names[count] = false, name
    end
  end
  read_all(names)
end

-- Which of the records are of facets that have rules.
local function are_ruled(records)
  local names = {}
  for i = 1, has_rules and #records or 0 do
    names[i] = records[i].name
  end
  return #names > 0 and redis.call("HMGET", rules, unpack(names)) or names
end

-- A facet pays what a message really cost. One that was forgotten meanwhile owed nothing beyond its tag at the pull.
local function pay(facet, record, took_each)
  local tag, mean, rule = tag_of[facet], mean_of[facet], rule_of[facet]
  tag = tag > 0 and tag or record.tag
  tag_of[facet] = tag + (cost_of(took_each) - record.charged) / (rule and rule.weight or 1)
  mean_of[facet] = mean == 0 and took_each or 0.8 * mean + 0.2 * took_each
  is_changed[facet] = true
end

-- Messages left consumers' hands. Where a message cost what was charged, as quick ones do, and no rule counts what is in
-- flight, its facet need not be looked at; with many tenants that would cost as much as all the rest.
local function let_go(kind, records)
  local ruled, touched, took, count = are_ruled(records), {}, {}, 0
  for i = 1, #records do
    local record = records[i]
    local took_ms, took_each = now - record.pulled_at, record.charged
    took_ms = took_ms > 0 and took_ms or 0
    if is_timed then
      took_each = (took_ms > 0 and took_ms or TOOK_MS_MIN) / record.together
      mean_cost = mean_cost == 0 and took_each or 0.95 * mean_cost + 0.05 * took_each
    end
    if ruled[i] or cost_of(took_each) ~= record.charged then
      count = count + 1
      touched[count], took[count] = record, took_each
    end
    note(kind, record.id, record.name, record.attempt, took_ms)
  end
  read_facets_of(touched)
  for i = 1, count do
    local record = touched[i]
    local facet = facet_named[record.name]
    local rule = rule_of[facet]
    if rule then
      rule.held, rule.is_changed = math.max(rule.held - 1, 0), true
    end
    if cost_of(took[i]) ~= record.charged then
      pay(facet, record, took[i])
    end
  end
end

-- The records of those messages that a consumer still holds, as it names their last attempt, and which those are.
local function still_held(ids, attempts)
  local mine, at, seen, count = {}, {}, {}, 0
  if #ids == 0 then
    return mine, at
  end
  local records = redis.call("HMGET", tried, unpack(ids))
  local ends = not are_all_held(ids) and redis.call("ZMSCORE", pending, unpack(ids))
  for i = 1, #ids do
    local id = ids[i]
    -- The same message named twice in one call counts once.
    if records[i] and not seen[id] and (not ends or ends[i]) then
      local record = unpack_record(id, records[i])
      if record.attempt == attempts[i] then
        count = count + 1
        seen[id], at[count], mine[count] = true, i, record
      end
    end
  end
  return mine, at
end

-- Write down what happened, and wake those who wait if there is something new to serve.
local function write_down()
  local bytes = 0
  for kind, lines in pairs(notes) do
    local text = table.concat(lines, "\n")
    redis.call("XADD", settled, "*", "queue", queue, kind, text)
    redis.call("HINCRBY", state, kind, #lines)
    bytes = bytes + #queue + #text
  end
  if bytes > 0 then
    redis.call("HINCRBY", journal, "settlements_bytes", bytes)
  end
  if v ~= tonumber(kept_state[1] or 0) or mean_cost ~= tonumber(kept_state[2] or 0) then
    redis.call("HSET", state, "v", v, "mean", mean_cost)
  end
  -- If it was empty before, all that is in the ring was put there by this call.
  local count = ring_added > 0 and redis.call("ZCARD", ring) or 0
  if count > 0 and count <= ring_added then
    redis.call("XADD", bell, "MAXLEN", "~", 1000, "*", "queue", queue)
  end
end

-- The end of every change but a pull: seat the facets that may have moved, or just these, and write all down.
local function conclude(moved)
  seat_all(moved or all_moved())
  save()
  write_down()
end
