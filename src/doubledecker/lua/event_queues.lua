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
-- keys queue_rules    queue:rules:<queue>    hash    weight, concurrency, rate and pause of facets that have rules
-- keys queue_facets   queue:facets:<queue>   hash    tag, messages in flight, mean cost and next time, by facet
-- keys queue_line     queue:new:<queue>:<facet>  list  ids of waiting messages, next one first

-- So many words are gathered for one command.
local WORDS_MAX = 1000

-- How full the queues are that refuse, event by event; a whole that is refused gives back the room that it took.
local filled, whole_of = {}, {}
local function full_queue(facet, at)
  for _, b in ipairs(at) do
    local queue, most, facet_most = unpack(plan.bounds[b])
    local waiting = queue_line(queue, facet)
    filled[queue] = filled[queue] or redis.call("HLEN", queue_data(queue))
    filled[waiting] = filled[waiting] or redis.call("LLEN", waiting)
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
-- is gathered, and written together: messages, and facets that had nothing.
local fed = {}

local function standing_of(queue)
  if not fed[queue] then
    local kept = redis.call("HMGET", queue_state(queue), "sequence", "v")
    local sequence, v = tonumber(kept[1] or 0), tonumber(kept[2] or 0)
    local length, words, woken = redis.call("HLEN", queue_data(queue)), {}, {}
    fed[queue] = {sequence = sequence, v = v, length = length, words = words, woken = woken}
  end
  return fed[queue]
end

-- What is kept of a facet: tag, messages in flight, mean cost, next time.
local function numbers_of(kept)
  if kept then
    return struct.unpack("<dddd", kept)
  end
  return 0, 0, 0, 0
end

-- Put facets that had nothing where they belong: they are served next, unless they have had more than their share, or
-- may not be.
local function seat(queue, names)
  local all_kept = redis.call("HMGET", queue_facets(queue), unpack(names))
  local has_rules = redis.call("EXISTS", queue_rules(queue)) == 1
  local rules = has_rules and redis.call("HMGET", queue_rules(queue), unpack(names)) or {}
  local v, seats = fed[queue].v, {}
  for i, facet in ipairs(names) do
    local tag, held, _, next_at = numbers_of(all_kept[i])
    local _, cap, _, is_paused = unpack(rules[i] and cmsgpack.unpack(rules[i]) or {1, 0, 0, 0})
    if rules[i] then
      redis.call("ZREM", queue_wake(queue), facet)
    end
    if is_paused == 1 or (cap > 0 and held >= cap) then
      redis.call("ZADD", queue_parked(queue), tag, facet)
    elseif next_at > now then
      redis.call("ZADD", queue_wake(queue), next_at, facet)
    else
      seats[#seats + 1] = tag >= v and tag or v - 1
      seats[#seats + 1] = facet
    end
  end
  if #seats > 0 and redis.call("ZADD", queue_ring(queue), unpack(seats)) == redis.call("ZCARD", queue_ring(queue)) then
    redis.call("XADD", queue_bell, "MAXLEN", "~", 1000, "*", "queue", queue)
  end
end

-- The opposite: all that a facet had is dropped.
local function unseat(queue, facet)
  for _, place in ipairs({queue_ring, queue_parked, queue_wake}) do
    redis.call("ZREM", place(queue), facet)
  end
  local kept = redis.call("HGET", queue_facets(queue), facet)
  local tag, held, _, next_at = numbers_of(kept)
  if next_at > now then
    redis.call("ZADD", queue_wake(queue), next_at, facet)
  elseif kept and held == 0 then
    redis.call("ZADD", queue_idle(queue), tag, facet)
  end
end

local function write(queue)
  local standing = fed[queue]
  if #standing.words > 0 then
    redis.call("HSET", queue_data(queue), unpack(standing.words))
    standing.words = {}
  end
  if #standing.woken > 0 then
    seat(queue, standing.woken)
    standing.woken = {}
  end
end

-- Drop the oldest; a bound that was lowered is reached little by little, so that no call does much more than its own.
local function drop(queue, facet, over)
  local gone = redis.call("LPOP", queue_line(queue, facet), over)
  fed[queue].length = fed[queue].length - #gone
  redis.call("HDEL", queue_data(queue), unpack(gone))
  redis.call("HDEL", queue_tried(queue), unpack(gone))
  redis.call("HINCRBY", queue_state(queue), "dropped", #gone)
  redis.call("HINCRBY", counters, "queue.dropped:queue=" .. queue, #gone)
end

local function push(queue, facet, texts, most, facet_most)
  local standing = standing_of(queue)
  if standing.sequence == 0 then
    redis.call("SADD", queue_index, queue)
  end
  local ids, words, count = {}, standing.words, #standing.words
  for i, text in ipairs(texts) do
    ids[i] = plan.partition .. "-" .. string.format("%d", standing.sequence + i)
    words[count + 2 * i - 1], words[count + 2 * i] = ids[i], text
  end
  standing.sequence, standing.length = standing.sequence + #texts, standing.length + #texts
  local waiting = redis.call("RPUSH", queue_line(queue, facet), unpack(ids))
  local over = math.max(most > 0 and standing.length - most or 0, facet_most > 0 and waiting - facet_most or 0)
  over = math.min(over, waiting, #texts + 1000)
  if over < waiting and waiting == #texts then
    standing.woken[#standing.woken + 1] = facet
  end
  if over > 0 or #words >= WORDS_MAX then
    write(queue)
  end
  if over > 0 then
    drop(queue, facet, over)
  end
  if over == waiting then
    unseat(queue, facet)
  end
end

-- Write what is left of what was gathered.
local function end_pushing()
  for queue, standing in pairs(fed) do
    write(queue)
    redis.call("HSET", queue_state(queue), "sequence", string.format("%d", standing.sequence))
  end
end
