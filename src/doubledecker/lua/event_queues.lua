-- part: putting events on queues, as publishing does.
--
-- First, whether the queues that refuse have room for an event; then pushing it to its facet's line, dropping the oldest
-- where a queue drops, and seating a facet that had nothing.
--
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
-- keys queue_line     queue:new:<queue>:<facet>  list  tails of lines: ids of waiting messages, next one first

-- So many words are gathered for one command.
local WORDS_MAX = 1000

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

-- What is known of the queues that this call feeds: sequence, virtual time and length, read once. What is new in them
-- is gathered by facet, and written together.
local fed = {}

local function standing_of(queue)
  if not fed[queue] then
    local kept = redis.call("HMGET", queue_state(queue), "sequence", "v")
    local sequence, v = tonumber(kept[1] or 0), tonumber(kept[2] or 0)
    fed[queue] = {
      sequence = sequence, v = v, length = redis.call("HLEN", queue_data(queue)), words = {}, names = {}, ids = {},
    }
  end
  return fed[queue]
end

-- Put facets that had nothing where they belong: they are served next, unless they have had more than their share, or
-- may not be.
local function seat(queue, names, kept)
  local has_rules = redis.call("EXISTS", queue_rules(queue)) == 1
  local rules = has_rules and redis.call("HMGET", queue_rules(queue), unpack(names)) or {}
  local v, seats, count = fed[queue].v, {}, 0
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
local function over_of(queue, facet, head, has_tail, count)
  local standing = fed[queue]
  local over = standing.most > 0 and standing.length - standing.most or 0
  if over > 0 or standing.facet_most > 0 then
    local waiting = length_of(head, has_tail, queue_line(queue, facet))
    over = math.max(over, standing.facet_most > 0 and waiting - standing.facet_most or 0)
    over = math.min(over, waiting, count + 1000)
  end
  return over
end

local function drop(queue, gone)
  fed[queue].length = fed[queue].length - #gone
  redis.call("HDEL", queue_data(queue), unpack(gone))
  redis.call("HDEL", queue_tried(queue), unpack(gone))
  redis.call("HINCRBY", queue_state(queue), "dropped", #gone)
  redis.call("HINCRBY", counters, "queue.dropped:queue=" .. queue, #gone)
end

-- Put new messages behind those that wait, dropping the oldest where there are too many.
-- Returns the facet's new record, unless it stays the same, and whether it had nothing before.
local function join(queue, facet, kept)
  local standing, ids = fed[queue], fed[queue].ids[facet]
  local tag, mean, had_tail, former = unpack_facet(kept)
  local head, has_tail = ids[1], had_tail
  if #ids > 1 or former ~= "" then
    head, has_tail = lengthen(former, had_tail, queue_line(queue, facet), ids)
  end
  standing.length = standing.length + #ids
  local over = over_of(queue, facet, head, has_tail, #ids)
  if over > 0 then
    local gone
    gone, head, has_tail = take(head, has_tail, queue_line(queue, facet), over)
    drop(queue, gone)
  end
  if head == "" then
    unseat(queue, facet, kept)
  end
  if (head ~= former or has_tail ~= had_tail) and (kept or head ~= "") then
    return pack(FACET_AND_HEAD, tag, mean, has_tail, head), former == "" and head ~= ""
  end
end

local function write(queue)
  local standing, records, woken, kept_of_woken = fed[queue], {}, {}, {}
  local names = standing.names
  if #names == 0 then
    return
  end
  redis.call("HSET", queue_data(queue), unpack(standing.words))
  local kept = redis.call("HMGET", queue_facets(queue), unpack(names))
  local count, woken_count = 0, 0
  for i = 1, #names do
    local record, is_woken = join(queue, names[i], kept[i])
    if record then
      records[count + 1], records[count + 2] = names[i], record
      count = count + 2
    end
    if is_woken then
      woken_count = woken_count + 1
      woken[woken_count], kept_of_woken[woken_count] = names[i], kept[i]
    end
  end
  if count > 0 then
    redis.call("HSET", queue_facets(queue), unpack(records))
  end
  if woken_count > 0 then
    seat(queue, woken, kept_of_woken)
  end
  standing.words, standing.names, standing.ids = {}, {}, {}
end

local function push(queue, facet, texts, most, facet_most)
  local standing = standing_of(queue)
  if standing.sequence == 0 then
    redis.call("SADD", queue_index, queue)
  end
  if standing.ids[facet] or #standing.words >= WORDS_MAX then
    write(queue)
  end
  local ids, words, count = {}, standing.words, #standing.words
  for i = 1, #texts do
    ids[i] = string.format("%s-%d", plan.partition, standing.sequence + i)
    words[count + 2 * i - 1], words[count + 2 * i] = ids[i], texts[i]
  end
  standing.sequence, standing.most, standing.facet_most = standing.sequence + #texts, most, facet_most
  standing.names[#standing.names + 1], standing.ids[facet] = facet, ids
end

-- Write what is left of what was gathered.
local function end_pushing()
  for queue, standing in pairs(fed) do
    write(queue)
    redis.call("HSET", queue_state(queue), "sequence", string.format("%d", standing.sequence))
  end
end
