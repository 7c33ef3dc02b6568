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
-- uses queue_lines
-- key  state      queue:state:<queue>       hash    sequence, virtual time, mean cost, counters
-- key  facets     queue:facets:<queue>      hash    facets, as queue_lines keeps them
-- key  rules      queue:rules:<queue>       hash    weight, concurrency, rate and pause of facets that have rules, and
--                                                   how they stand under them: messages in flight, next time
-- key  ring       queue:ring:<queue>        zset    facets that can be served, by tag
-- key  parked     queue:parked:<queue>      zset    facets that cannot, by tag
-- key  wake       queue:wake:<queue>        zset    facets that can be served later, by when
-- key  idle       queue:idle:<queue>        zset    facets that have nothing waiting: those that came to it together, with
--                                                   spaces between, by their greatest tag, until virtual time has passed it
-- key  held_by    queue:owner:<queue>       string  version of the registry and client with which it changed hands last
-- keys line       queue:new:<of_queue>:<facet>  list  tails of lines: ids of waiting messages, next one first
-- arg  queue      text  the queue's name
-- arg  owner  text  whose it is, as the caller knows it; empty for root's
-- arg  charge     text  what serving costs: `time` it took, or `count` of messages
-- now

-- A process may not know yet that the queue has another owner: its former owner gets and settles nothing any more.
local holder = redis.call("GET", held_by)
local is_anothers = holder and string.match(holder, " (.*)$") ~= owner

local kept_state = redis.call("HMGET", state, "v", "mean")
local v, mean_cost = tonumber(kept_state[1] or 0), tonumber(kept_state[2] or 0)
local is_timed = charge == "time"
local has_rules = redis.call("EXISTS", rules) == 1
local line_prefix = line(queue, "")
-- How many facets this call has put into the ring that were not there.
local ring_added = 0

-- A facet that was read is a number, and what is known of it stands in columns, which cost less to make than a table
-- for each. Only some have a rule, got another tag or another line, or were served by this call: how many times.
local facet_named, facet_count = {}, 0
local name_of, tag_of, mean_of = {}, {}, {}
-- The head of its line is what `text_of` holds from `head_at` on: to cut it out each time would cost more.
local text_of, head_at, has_tail = {}, {}, {}
local rule_of, is_changed, taken_of = {}, {}, {}

local function unpack_rule(packed)
  local weight, cap, every_ms, is_paused, held, next_at = unpack(cmsgpack.unpack(packed))
  return {
    weight = weight, cap = cap, every_ms = every_ms, is_paused = is_paused == 1, held = held, next_at = next_at,
  }
end

local function write_rule(name, rule)
  local is_paused = rule.is_paused and 1 or 0
  local words = {rule.weight, rule.cap, rule.every_ms, is_paused, rule.held, rule.next_at}
  redis.call("HSET", rules, name, cmsgpack.pack(words))
end

-- Read many facets in two calls; those known already stay as they are. Returns them.
local function read_all(names)
  if #names == 0 then
    return {}
  end
  local packed = redis.call("HMGET", facets, unpack(names))
  local ruled = has_rules and redis.call("HMGET", rules, unpack(names)) or {}
  local some = {}
  for i = 1, #names do
    local name = names[i]
    local facet = facet_named[name]
    if not facet then
      facet = facet_count + 1
      facet_count, facet_named[name], name_of[facet] = facet, facet, name
      local text = packed[i] or NO_FACET
      tag_of[facet], mean_of[facet], has_tail[facet] = unpack_from(FACET, text)
      text_of[facet], head_at[facet] = text, HEAD_AT
      if ruled[i] then
        rule_of[facet] = unpack_rule(ruled[i])
      end
    end
    some[i] = facet
  end
  return some
end

-- What a message costs that takes so long; those that take less than a millisecond are all alike.
local function cost_of(took_ms)
  return took_ms > 1 and took_ms or 1
end

local function head_of(facet)
  return cut(text_of[facet], head_at[facet])
end

local function set_head(facet, head)
  text_of[facet], head_at[facet] = head, 1
end

local function is_waiting(facet)
  return head_at[facet] <= #text_of[facet]
end

local function facet_of(name)
  return facet_named[name] or read_all({name})[1]
end

-- Those whose place may be another than it was.
local function all_moved()
  local some, count = {}, 0
  for facet = 1, facet_count do
    if rule_of[facet] or is_changed[facet] then
      count = count + 1
      some[count] = facet
    end
  end
  return some
end

local function save()
  local words, count = {}, 0
  for facet = 1, facet_count do
    if taken_of[facet] or is_changed[facet] then
      words[count + 1] = name_of[facet]
      words[count + 2] = pack(
        FACET_AND_HEAD, tag_of[facet], mean_of[facet], has_tail[facet], cut(text_of[facet], head_at[facet])
      )
      count = count + 2
    end
  end
  for facet, rule in pairs(rule_of) do
    if rule.is_changed then
      write_rule(name_of[facet], rule)
    end
  end
  if count > 0 then
    redis.call("HSET", facets, unpack(words))
  end
end

local function is_blocked(facet)
  local rule = rule_of[facet]
  return rule and (rule.is_paused or (rule.cap > 0 and rule.held >= rule.cap))
end

-- Where a facet with a rule belongs now, and its score there.
local function place_of(facet)
  local next_at = rule_of[facet].next_at
  if is_waiting(facet) and is_blocked(facet) then
    return parked, tag_of[facet]
  elseif next_at > now then
    return wake, next_at
  elseif is_waiting(facet) then
    return ring, tag_of[facet] >= v and tag_of[facet] or v - 1
  end
  return idle, tag_of[facet]
end

local function seat_ruled(some)
  local words = {[ring] = {}, [parked] = {}, [wake] = {}, [idle] = {}}
  local names, leaving = {}, {}
  for i, facet in ipairs(some) do
    local to, score = place_of(facet)
    names[i] = name_of[facet]
    if to ~= ring then
      leaving[#leaving + 1] = names[i]
    end
    table.insert(words[to], score)
    table.insert(words[to], names[i])
  end
  redis.call("ZREM", parked, unpack(names))
  redis.call("ZREM", wake, unpack(names))
  if #leaving > 0 then
    redis.call("ZREM", ring, unpack(leaving))
  end
  for place, added in pairs(words) do
    local count = #added > 0 and redis.call("ZADD", place, unpack(added)) or 0
    ring_added = ring_added + (place == ring and count or 0)
  end
end

-- Put facets where they belong now. Most have no rules, and can only be in the ring or nowhere. A facet that comes
-- back stands a little before all that wait for their turn: it is served next, and pays as of now.
local function seat_all(some, some_count)
  local standing, resting, leaving, ruled, count, last_tag = {}, {}, {}, {}, 0, 0
  for i = 1, some_count or #some do
    local facet = some[i]
    if rule_of[facet] then
      ruled[#ruled + 1] = facet
    elseif head_at[facet] <= #text_of[facet] then
      local tag = tag_of[facet]
      standing[count + 1], standing[count + 2] = tag >= v and tag or v - 1, name_of[facet]
      count = count + 2
    else
      if taken_of[facet] then
        leaving[#leaving + 1] = name_of[facet]
      end
      resting[#resting + 1] = name_of[facet]
      last_tag = tag_of[facet] > last_tag and tag_of[facet] or last_tag
    end
  end
  if #leaving > 0 then
    redis.call("ZREM", ring, unpack(leaving))
  end
  if #resting > 0 then
    redis.call("ZADD", idle, last_tag, table.concat(resting, " "))
  end
  if count > 0 then
    ring_added = ring_added + redis.call("ZADD", ring, unpack(standing))
  end
  if #ruled > 0 then
    seat_ruled(ruled)
  end
end
