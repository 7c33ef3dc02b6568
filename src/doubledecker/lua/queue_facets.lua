-- part: what the scripts of one queue share: where its facets stand.
--
-- A facet is one tenant's line. It has a tag in virtual time: the least tag is served next, and a message served
-- moves the tag on by what it costs over the facet's weight. A facet with messages waiting is in exactly one of three
-- places: in the ring when it can be served now; parked when it is paused or has its fill of messages in flight; in
-- `wake` when its rate lets the next one go only later. One that has none is in none, but for `wake`: what its rate
-- asks for is remembered for as long as it matters.
--
-- With many tenants a pull takes one message from each of a hundred facets, so what is done for a facet is what a
-- message costs. Hence facets are read, seated and saved all together, in a few commands of many words.
--
-- key  state      queue:state:<queue>       hash    sequence, virtual time, mean cost, counters
-- key  facets     queue:facets:<queue>      hash    tag, messages in flight, mean cost and next time, by facet
-- key  rules      queue:rules:<queue>       hash    weight, concurrency, rate and pause of facets that have rules
-- key  ring       queue:ring:<queue>        zset    facets that can be served, by tag
-- key  parked     queue:parked:<queue>      zset    facets that cannot, by tag
-- key  wake       queue:wake:<queue>        zset    facets that can be served later, by when
-- key  idle       queue:idle:<queue>        zset    facets that have nothing, by tag, until virtual time has passed it
-- keys line       queue:new:<of_queue>:<facet>  list  ids of waiting messages, next one first
-- arg  queue      text  the queue's name
-- arg  charge     text  what serving costs: `time` it took, or `count` of messages
-- now

-- Tag, messages in flight, mean cost, next time: four doubles. (MessagePack would take three times as long.)
local FACET = "<dddd"
-- Below this many it costs less to ask for each than to find out whether all are alike.
local ASKED_TOGETHER_MIN = 8

local kept_state = redis.call("HMGET", state, "v", "mean")
local v, mean_cost = tonumber(kept_state[1] or 0), tonumber(kept_state[2] or 0)
local is_timed = charge == "time"
local has_rules = redis.call("EXISTS", rules) == 1
local line_prefix = line(queue, "")
local known = {}
-- How many facets this call has put into the ring that were not there.
local ring_added = 0

-- `place` is where it stands in the ring, or would; false if it must be put there. `taken` is how many messages this
-- call took from its line. Without rules it has no `rule`. (All fields are there from the start: adding one is slow.)
local function read(name, packed, rule)
  local tag, held, mean, next_at = 0, 0, 0, 0
  if packed then
    tag, held, mean, next_at = struct.unpack(FACET, packed)
  end
  local facet = {
    name = name, tag = tag, held = held, mean = mean, next_at = next_at, place = tag, taken = 0, is_changed = false,
  }
  if rule then
    local weight, cap, every_ms, is_paused = unpack(cmsgpack.unpack(rule))
    facet.rule = {weight = weight, cap = cap, every_ms = every_ms, is_paused = is_paused == 1}
  end
  known[name] = facet
  return facet
end

-- Read many facets in two calls; those known already stay as they are.
local function read_all(names)
  if #names == 0 then
    return
  end
  local packed = redis.call("HMGET", facets, unpack(names))
  local ruled = has_rules and redis.call("HMGET", rules, unpack(names)) or {}
  for i, name in ipairs(names) do
    if not known[name] then
      read(name, packed[i], ruled[i])
    end
  end
end

local function facet_of(name)
  if not known[name] then
    read_all({name})
  end
  return known[name]
end

local function all_known()
  local some = {}
  for _, facet in pairs(known) do
    some[#some + 1] = facet
  end
  return some
end

local function save()
  local words, count = {}, 0
  for name, facet in pairs(known) do
    if facet.is_changed then
      words[count + 1] = name
      words[count + 2] = struct.pack(FACET, facet.tag, facet.held, facet.mean, facet.next_at)
      count = count + 2
    end
  end
  if count > 0 then
    redis.call("HSET", facets, unpack(words))
  end
end

local function weight_of(facet)
  return facet.rule and facet.rule.weight or 1
end

local function is_blocked(facet)
  local rule = facet.rule
  return rule and (rule.is_paused or (rule.cap > 0 and facet.held >= rule.cap))
end

local function ask_lines(some, first, last, answers)
  local keys = {}
  for i = first, last do
    keys[i - first + 1] = line_prefix .. some[i].name
  end
  local count = redis.call("EXISTS", unpack(keys))
  if count == 0 or count == #keys then
    for i = first, last do
      answers[i] = count > 0
    end
  elseif #keys < ASKED_TOGETHER_MIN then
    for i = first, last do
      ask_lines(some, i, i, answers)
    end
  else
    local middle = math.floor((first + last) / 2)
    ask_lines(some, first, middle, answers)
    ask_lines(some, middle + 1, last, answers)
  end
end

-- Whether facets have messages waiting, each. One question for all: mostly all have, or none; else halves are asked.
local function are_waiting(some)
  local answers = {}
  ask_lines(some, 1, #some, answers)
  return answers
end

-- Where a facet belongs now, and its score there; nowhere when all that it has is in flight.
local function place_of(facet, is_waiting)
  if is_waiting and is_blocked(facet) then
    return parked, facet.tag
  elseif facet.next_at > now then
    return wake, facet.next_at
  elseif is_waiting then
    -- A little before all that wait for their turn: whoever comes back is served next, and pays as of now.
    return ring, facet.tag >= v and facet.tag or v - 1
  elseif facet.held == 0 then
    return idle, facet.tag
  end
end

-- Put facets where they belong now. Most have no rules, and can only be in the ring or nowhere.
local function seat_all(some)
  if #some == 0 then
    return
  end
  local waiting = are_waiting(some)
  local words = {[ring] = {}, [parked] = {}, [wake] = {}, [idle] = {}}
  local leaving, ruled = {}, {}
  for i, facet in ipairs(some) do
    local to, score = place_of(facet, waiting[i])
    if facet.rule then
      ruled[#ruled + 1] = facet.name
    end
    if to ~= ring and (facet.rule or facet.taken > 0) then
      leaving[#leaving + 1] = facet.name
    end
    if to and (to ~= ring or facet.rule or score ~= facet.place) then
      local added = words[to]
      added[#added + 1] = score
      added[#added + 1] = facet.name
    end
  end
  if #ruled > 0 then
    redis.call("ZREM", parked, unpack(ruled))
    redis.call("ZREM", wake, unpack(ruled))
  end
  if #leaving > 0 then
    redis.call("ZREM", ring, unpack(leaving))
  end
  for place, added in pairs(words) do
    local count = #added > 0 and redis.call("ZADD", place, unpack(added)) or 0
    ring_added = ring_added + (place == ring and count or 0)
  end
end
