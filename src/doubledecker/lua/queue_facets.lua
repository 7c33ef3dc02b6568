-- part: what the scripts of one queue share. Where facets stand, and what becomes of a message that was pulled.
--
-- A facet is one tenant's line. It has a tag in virtual time: the least tag is served next, and a message served
-- moves the tag on by what it costs over the facet's weight. A facet with messages waiting is in exactly one of three
-- places: in the ring when it can be served now; parked when it is paused or has its fill of messages in flight; in
-- `wake` when its rate lets the next one go only later. One that has none is in none, but for `wake`: what its rate
-- asks for is remembered for as long as it matters.
-- A line is always sorted by the numbers of its ids, so a message that comes back finds its old place.
--
-- key  state      queue:state:<queue>       hash    sequence, virtual time, mean cost, counters
-- key  facets     queue:facets:<queue>      hash    tag, messages in flight, mean cost and next time, by facet
-- key  rules      queue:rules:<queue>       hash    weight, concurrency, rate and pause of facets that have rules
-- key  ring       queue:ring:<queue>        zset    facets that can be served, by tag
-- key  parked     queue:parked:<queue>      zset    facets that cannot, by tag
-- key  wake       queue:wake:<queue>        zset    facets that can be served later, by when
-- key  idle       queue:idle:<queue>        zset    facets that have nothing, by tag, until virtual time has passed it
-- key  data       queue:data:<queue>        hash    messages by id
-- key  pending    queue:pending:<queue>     zset    ids of messages in consumers' hands, by the end of the lease
-- key  tried      queue:tried:<queue>       hash    attempt, facet, time and size of the pull, charge, attempts that do not count, by message once pulled
-- key  dead       queue:dead:<queue>        hash    dead letters by id: facet, attempts, why, when, message
-- key  dead_index queue:dead:index:<queue>  zset    their ids by time of death
-- key  journal    journal                   hash    settlements_bytes
-- key  settled    journal:settlements       stream  what became of messages, for the measures of fairness
-- key  bell       queues:bell               stream  rung with a queue's name when it has something to serve again
-- keys line       queue:new:<of_queue>:<facet>  list  ids of waiting messages, next one first
-- arg  queue      text  the queue's name
-- arg  charge     text  what serving costs: `time` it took, or `count` of messages
-- now

local kept_state = redis.call("HMGET", state, "v", "mean")
local v, mean_cost = tonumber(kept_state[1] or 0), tonumber(kept_state[2] or 0)
local known = {}
local notes = {}
local backs = {}
local could_serve = redis.call("ZCARD", ring) > 0

local function read(name, kept, rule)
  local tag, held, mean, next_at = 0, 0, 0, 0
  if kept then
    tag, held, mean, next_at = unpack(cmsgpack.unpack(kept))
  end
  local weight, cap, every_ms, is_paused, has_rules = 1, 0, 0, 0, false
  if rule then
    has_rules = true
    weight, cap, every_ms, is_paused = unpack(cmsgpack.unpack(rule))
  end
  known[name] = {
    name = name, tag = tag, held = held, mean = mean, next_at = next_at,
    weight = weight, cap = cap, every_ms = every_ms, is_paused = is_paused == 1, has_rules = has_rules,
  }
  return known[name]
end

local function facet_of(name)
  return known[name] or read(name, redis.call("HGET", facets, name), redis.call("HGET", rules, name))
end

-- Read many facets in two calls; those known already stay as they are.
local function read_all(names)
  local kept, ruled = redis.call("HMGET", facets, unpack(names)), redis.call("HMGET", rules, unpack(names))
  for i, name in ipairs(names) do
    if not known[name] then
      read(name, kept[i], ruled[i])
    end
  end
end

local function save()
  local words = {}
  for name, facet in pairs(known) do
    if facet.is_changed then
      words[#words + 1] = name
      words[#words + 1] = cmsgpack.pack({facet.tag, facet.held, facet.mean, facet.next_at})
    end
  end
  for first = 1, #words, 1000 do
    redis.call("HSET", facets, unpack(words, first, math.min(first + 999, #words)))
  end
end

local function is_blocked(facet)
  return facet.is_paused or (facet.cap > 0 and facet.held >= facet.cap)
end

-- Put a facet where it belongs now. Most have no rules, and can only be in the ring or nowhere.
local function seat(facet)
  local name = facet.name
  if facet.has_rules then
    redis.call("ZREM", parked, name)
    redis.call("ZREM", wake, name)
  end
  if redis.call("LLEN", line(queue, name)) == 0 then
    redis.call("ZREM", ring, name)
    if facet.next_at > now then
      redis.call("ZADD", wake, facet.next_at, name)
    elseif facet.held == 0 then
      redis.call("ZADD", idle, facet.tag, name)
    end
  elseif is_blocked(facet) then
    redis.call("ZREM", ring, name)
    redis.call("ZADD", parked, facet.tag, name)
  elseif facet.next_at > now then
    redis.call("ZREM", ring, name)
    redis.call("ZADD", wake, facet.next_at, name)
  else
    -- A little before all that wait for their turn: whoever comes back is served next, and pays as of now.
    redis.call("ZADD", ring, facet.tag >= v and facet.tag or v - 1, name)
  end
end

-- The same for many whose lines have not changed: one without rules is in the ring, or has nothing.
local function seat_again(touched)
  local plain, seats, rests = {}, {}, {}
  for name, facet in pairs(touched) do
    if facet.has_rules or facet.next_at > 0 then
      seat(facet)
    else
      plain[#plain + 1] = name
    end
  end
  for i, place in ipairs(#plain > 0 and redis.call("ZMSCORE", ring, unpack(plain)) or {}) do
    local facet = touched[plain[i]]
    local to = place and seats or facet.held == 0 and rests or {}
    to[#to + 1] = place and facet.tag < v and v - 1 or facet.tag
    to[#to + 1] = facet.name
  end
  if #seats > 0 then
    redis.call("ZADD", ring, unpack(seats))
  end
  if #rests > 0 then
    redis.call("ZADD", idle, unpack(rests))
  end
end

local function number_of(id)
  return tonumber(string.match(id, "%-(%d+)$"))
end

-- Put a message where its number belongs, somewhere behind the first of its line.
local function insert(at, id)
  local number, low, high = number_of(id), 1, redis.call("LLEN", at)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if number_of(redis.call("LINDEX", at, middle)) > number then
      high = middle
    else
      low = middle + 1
    end
  end
  local next_id = redis.call("LINDEX", at, low)
  if next_id then
    redis.call("LINSERT", at, "BEFORE", next_id, id)
  else
    redis.call("RPUSH", at, id)
  end
end

-- A message comes back to its line, once all that come back are known.
local function give_back(id, name)
  backs[name] = backs[name] or {}
  table.insert(backs[name], id)
end

-- Put messages into their lines again, each where it belongs: nearly always in front.
local function return_all()
  for name, ids in pairs(backs) do
    local at, first = line(queue, name), 1
    table.sort(ids, function(a, b) return number_of(a) > number_of(b) end)
    local head = redis.call("LINDEX", at, 0)
    while head and first <= #ids and number_of(ids[first]) > number_of(head) do
      insert(at, ids[first])
      first = first + 1
    end
    if first <= #ids then
      redis.call("LPUSH", at, unpack(ids, first))
    end
  end
end

-- Whether a message has had all its attempts. Not all count: not those before it was brought back from the dead, nor
-- those that ended by no fault of its own.
local function is_spent(record, attempts_max)
  return record[1] - (record[6] or 0) >= attempts_max
end

local function bury(id, name, attempts, why)
  redis.call("HSET", dead, id, cmsgpack.pack({name, attempts, why, now, redis.call("HGET", data, id)}))
  redis.call("ZADD", dead_index, now, id)
  redis.call("HDEL", data, id)
  redis.call("HDEL", tried, id)
end

local function note(kind, id, name, attempt, ms)
  notes[kind] = notes[kind] or {}
  table.insert(notes[kind], id .. " " .. name .. " " .. attempt .. " " .. ms)
end

-- A message left a consumer's hands: its place is free, and its facet pays what it really cost.
local function let_go(kind, id, record)
  local attempt, name, pulled_at, together, charged = unpack(record)
  local facet = facet_of(name)
  local took_ms = math.max(0, now - pulled_at)
  facet.held, facet.is_changed = math.max(0, facet.held - 1), true
  if charge == "time" then
    local cost = math.max(1, took_ms / together)
    facet.tag = facet.tag + (cost - charged) / facet.weight
    facet.mean = facet.mean == 0 and cost or 0.8 * facet.mean + 0.2 * cost
    mean_cost = mean_cost == 0 and cost or 0.95 * mean_cost + 0.05 * cost
  end
  note(kind, id, name, attempt, took_ms)
  return facet
end

-- Those of the messages, with their records, that are still in the hands of whoever names the right attempt.
local function still_held(messages)
  local ids, mine, seen, names, is_named = {}, {}, {}, {}, {}
  for i, message in ipairs(messages) do
    ids[i] = message[1]
  end
  if #ids == 0 then
    return mine
  end
  local ends = redis.call("ZMSCORE", pending, unpack(ids))
  local records = redis.call("HMGET", tried, unpack(ids))
  for i, message in ipairs(messages) do
    local id, delay_ms, is_spared = message[1], message[3], message[4] == 1
    local record = ends[i] and records[i] and cmsgpack.unpack(records[i])
    -- The same message named twice in one call counts once.
    if record and record[1] == message[2] and not seen[id] then
      seen[id] = true
      mine[#mine + 1] = {id = id, record = record, delay_ms = delay_ms, is_spared = is_spared}
      if not is_named[record[2]] then
        is_named[record[2]] = true
        names[#names + 1] = record[2]
      end
    end
  end
  if #names > 0 then
    read_all(names)
  end
  return mine
end

-- Write down what happened, and wake whoever waits if there is something to serve that was not there before.
local function conclude()
  for kind, lines in pairs(notes) do
    local text = table.concat(lines, "\n")
    redis.call("XADD", settled, "*", "queue", queue, kind, text)
    redis.call("HINCRBY", journal, "settlements_bytes", #queue + #text)
    redis.call("HINCRBY", state, kind, #lines)
  end
  if mean_cost ~= tonumber(kept_state[2] or 0) then
    redis.call("HSET", state, "mean", string.format("%.17g", mean_cost))
  end
  if not could_serve and redis.call("ZCARD", ring) > 0 then
    redis.call("XADD", bell, "MAXLEN", "~", 1000, "*", "queue", queue)
  end
end
