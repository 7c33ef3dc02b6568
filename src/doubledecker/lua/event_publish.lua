-- Accept events: everything that a 2xx promises, in one atom.
--
-- Nothing is written when the caller's registry is old or the journal is full. Otherwise each event that is not a
-- repeat, nor refused because a queue is full, goes to the journal, to its topic's counters, to the current batch of
-- every receiver, and to its facet's line in every queue that matches; full batches are promoted, each new batch gets
-- its job, and whoever waits for a queue that was empty is woken. An event with more receivers than one call may write is kept aside with
-- their names, and an aux job calls this script again, a slice of receivers at a time, until none is left.
--
-- key  registry       registry               hash    version: grows with every change of routing
-- key  journal        journal                hash    events_bytes: what the event journal holds; archive
-- key  journal_events journal:events         stream  accepted events, lines of JSON by publisher
-- key  counters       counters               hash    telemetry
-- key  gauge_events   batches:gauges:event   hash    events waiting, by subscriber
-- key  gauge_batches  batches:gauges:batch   hash    batches waiting, by subscriber
-- key  sizes          batches:bytes          hash    payload bytes, by batch
-- key  index          batches:index          zset    all batches by creation time
-- key  job_index      jobs:index:main        set     jobs in any state
-- key  scheduled      jobs:scheduled:main    zset    jobs by deadline
-- key  instant        jobs:instant:main      list    jobs to run now, next one last
-- key  aux_index      jobs:index:aux         set     aux jobs in any state
-- key  aux_instant    jobs:instant:aux       list    aux jobs to run now, next one last
-- key  bell           jobs:bell              stream  rung when there is something to take or to wait for
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
-- keys topic          topic:<name>           hash    counter, last_event
-- keys seen           ids:<publisher>        zset    publishers' own event ids by arrival, to tell repeats
-- keys batch          batch:<bid>            list    token, creation time, attempts, then messages
-- keys current        batches:current:<token>  set   the batch that still takes events
-- keys token_index    batches:index:<token>  zset    one subscriber's batches by creation time
-- keys fence          fence:<task>           hash    batch, rows and digest of what a Spark task has published
-- keys fanout         fanout:<fid>           list    a message and the tokens that still have to get it
-- arg  version        int   the registry version that the plan was made with
-- arg  journal_bytes_max  int  refuse when the journal holds more and an archive is behind; 0 never refuses
-- arg  id_window_ms   int   how long a publisher's id is remembered
-- arg  ids_max        int   how many are remembered, by publisher
-- arg  plan           pack  publishers, topics, ids, lanes, later, channels, fanout and uids; see store/events.py
-- rest messages       text  the events, as they are stored and delivered
-- now
-- returns             {"ok", journal bytes, {repeat, …}, {refused, full queue, …}, is heard} or {"stale" | "full" | "moved" | "fenced"}

if tonumber(redis.call("HGET", registry, "version") or 0) > version then
  return {"stale"}
end
local journal_bytes = tonumber(redis.call("HGET", journal, "events_bytes") or 0)
if journal_bytes_max > 0 and journal_bytes > journal_bytes_max and redis.call("HEXISTS", journal, "archive") == 1 then
  return {"full"}
end
if plan.fanout and redis.call("LLEN", fanout(plan.fanout[1])) ~= plan.fanout[2] then
  return {"moved"}
end
-- Another attempt of the same task has gone on from here, or none has come so far.
if plan.fence then
  local kept = redis.call("HMGET", fence(plan.fence[1]), "batch", "rows")
  local batch_now = tonumber(kept[1] or -1)
  local rows_now = batch_now == plan.fence[2] and tonumber(kept[2]) or 0
  if batch_now > plan.fence[2] or rows_now ~= plan.fence[3] then
    return {"fenced"}
  end
end

-- Events that are not written: repeats, and those that a full queue refuses.
local left_out = {}
local repeats, refused_by = {}, {}
local first_of = {}
for _, given in ipairs(plan.ids) do
  local i, name = given[1], given[2] .. " " .. given[3]
  local seen_at = tonumber(redis.call("ZSCORE", seen(given[2]), given[3]) or -math.huge)
  if first_of[name] or seen_at + id_window_ms > now then
    left_out[i] = first_of[name] or i
    repeats[#repeats + 1] = i
  else
    first_of[name] = i
  end
end

-- How full the queues are that refuse, event by event; a whole that is refused gives back the room that it took.
local filled, whole_of = {}, {}
for _, whole in ipairs(plan.wholes) do
  whole.took = {}
  for i = whole[1], whole[2] do
    whole_of[i] = whole
  end
end

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

for _, part in ipairs(plan.bounded) do
  local i, facet, at = part[1], part[2], part[3]
  local whole = whole_of[i]
  if not left_out[i] and not (whole and whole.queue) then
    local queue = full_queue(facet, at)
    if not queue then
      take_room(facet, at, 1, whole and whole.took)
    elseif whole then
      whole.queue = queue
      for _, taken in ipairs(whole.took) do
        take_room(taken[1], taken[2], -1)
      end
    else
      left_out[i], refused_by[i] = i, queue
    end
  end
end
for _, whole in ipairs(plan.wholes) do
  for i = whole[1], whole.queue and whole[2] or 0 do
    left_out[i], refused_by[i] = i, whole.queue
  end
end
-- A repeat of an event that is refused is refused with it.
for _, i in ipairs(repeats) do
  refused_by[i] = refused_by[i] or refused_by[left_out[i]]
end

for _, given in ipairs(plan.ids) do
  if not left_out[given[1]] then
    redis.call("ZADD", seen(given[2]), now, given[3])
  end
end
for _, publisher in ipairs(plan.given) do
  redis.call("ZREMRANGEBYSCORE", seen(publisher), "-inf", now - id_window_ms)
  redis.call("ZREMRANGEBYRANK", seen(publisher), 0, -ids_max - 1)
  -- Of a client that publishes no more, nobody else would remove them.
  redis.call("PEXPIRE", seen(publisher), id_window_ms)
end

local function fresh(indexes)
  local texts = {}
  for _, i in ipairs(indexes) do
    if not left_out[i] then
      texts[#texts + 1] = messages[i]
    end
  end
  return texts
end

local entry = {}
for _, part in ipairs(plan.publishers) do
  local texts = fresh(part[2])
  if #texts > 0 then
    entry[#entry + 1] = part[1]
    entry[#entry + 1] = table.concat(texts, "\n")
    journal_bytes = journal_bytes + #part[1] + #entry[#entry]
  end
end
if #entry > 0 then
  redis.call("XADD", journal_events, "*", unpack(entry))
  redis.call("HSET", journal, "events_bytes", journal_bytes)
end

for _, part in ipairs(plan.topics) do
  local texts = fresh(part[2])
  if #texts > 0 then
    redis.call("HINCRBY", topic(part[1]), "counter", #texts)
    redis.call("HSET", topic(part[1]), "last_event", texts[#texts])
    redis.call("HINCRBY", counters, "events.published:topic=" .. part[1], #texts)
  end
end

local must_ring = false
local uids_used = 0

local function run_now(list, job)
  must_ring = redis.call("LPUSH", list, job) == 1 or must_ring
end

local function open(token, timeout_ms)
  local bid = string.sub(plan.uids, uids_used * 20 + 1, uids_used * 20 + 20)
  uids_used = uids_used + 1
  local job = cmsgpack.pack({"batch", {bid, token}})
  redis.call("RPUSH", batch(bid), token, now, 0)
  redis.call("SADD", current(token), bid)
  redis.call("ZADD", index, now, bid)
  redis.call("ZADD", token_index(token), now, bid)
  redis.call("HINCRBY", gauge_batches, token, 1)
  redis.call("SADD", job_index, job)
  if timeout_ms == 0 then
    run_now(instant, job)
    return bid
  end
  local head = redis.call("ZRANGE", scheduled, 0, 0, "WITHSCORES")
  must_ring = must_ring or not head[1] or tonumber(head[2]) > now + timeout_ms
  redis.call("ZADD", scheduled, now + timeout_ms, job)
  return bid
end

local function promote(bid, token)
  local job = cmsgpack.pack({"batch", {bid, token}})
  redis.call("SREM", current(token), bid)
  if redis.call("ZREM", scheduled, job) == 1 then
    run_now(instant, job)
  end
end

local function append(receiver, texts)
  local token, events_max, bytes_max, timeout_ms = receiver[1], receiver[2], receiver[3], receiver[4]
  local bid = redis.call("SRANDMEMBER", current(token))
  local count, bytes = 0, 0
  if bid then
    count = redis.call("LLEN", batch(bid)) - 3
    bytes = tonumber(redis.call("HGET", sizes, bid) or 0)
  end
  local first = 1
  while first <= #texts do
    if bid and (count >= events_max or (count > 0 and bytes + #texts[first] > bytes_max)) then
      promote(bid, token)
      bid = nil
    end
    if not bid then
      bid, count, bytes = open(token, timeout_ms), 0, 0
    end
    local last, added = first, #texts[first]
    while last < #texts and count + last - first + 1 < events_max and bytes + added + #texts[last + 1] <= bytes_max do
      last = last + 1
      added = added + #texts[last]
    end
    count = redis.call("RPUSH", batch(bid), unpack(texts, first, last)) - 3
    bytes = redis.call("HINCRBY", sizes, bid, added)
    first = last + 1
  end
  if bid and (count >= events_max or bytes >= bytes_max) then
    promote(bid, token)
  end
  redis.call("HINCRBY", gauge_events, token, #texts)
  redis.call("HINCRBY", counters, "events.added:subscriber=" .. token, #texts)
end

for _, lane in ipairs(plan.lanes) do
  local texts = fresh(lane[1])
  if #texts > 0 then
    for _, receiver in ipairs(lane[2]) do
      append(receiver, texts)
    end
  end
end

-- What is known of the queues that this call feeds: sequence, virtual time and length, read once.
local fed, is_awake = {}, {}

local function standing_of(queue)
  if not fed[queue] then
    local kept = redis.call("HMGET", queue_state(queue), "sequence", "v")
    local sequence, v = tonumber(kept[1] or 0), tonumber(kept[2] or 0)
    local length = redis.call("HLEN", queue_data(queue))
    fed[queue] = {sequence = sequence, v = v, length = length}
  end
  return fed[queue]
end

-- Put a facet that had nothing where it belongs: it is served next, unless it has had more than its share, or may not be.
local function seat(queue, facet)
  local kept, rule = redis.call("HGET", queue_facets(queue), facet), redis.call("HGET", queue_rules(queue), facet)
  local tag, held, _, next_at = unpack(kept and cmsgpack.unpack(kept) or {0, 0, 0, 0})
  local _, cap, _, is_paused = unpack(rule and cmsgpack.unpack(rule) or {1, 0, 0, 0})
  if rule then
    redis.call("ZREM", queue_wake(queue), facet)
  end
  if is_paused == 1 or (cap > 0 and held >= cap) then
    return redis.call("ZADD", queue_parked(queue), tag, facet)
  elseif next_at > now then
    return redis.call("ZADD", queue_wake(queue), next_at, facet)
  end
  if not is_awake[queue] and redis.call("EXISTS", queue_ring(queue)) == 0 then
    redis.call("XADD", queue_bell, "MAXLEN", "~", 1000, "*", "queue", queue)
  end
  is_awake[queue] = true
  local v = standing_of(queue).v
  redis.call("ZADD", queue_ring(queue), tag >= v and tag or v - 1, facet)
end

-- The opposite: all that a facet had is dropped.
local function unseat(queue, facet)
  for _, place in ipairs({queue_ring, queue_parked, queue_wake}) do
    redis.call("ZREM", place(queue), facet)
  end
  local kept = redis.call("HGET", queue_facets(queue), facet)
  local tag, held, _, next_at = unpack(kept and cmsgpack.unpack(kept) or {0, 0, 0, 0})
  if next_at > now then
    redis.call("ZADD", queue_wake(queue), next_at, facet)
  elseif kept and held == 0 then
    redis.call("ZADD", queue_idle(queue), tag, facet)
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
  local ids, words = {}, {}
  for i, text in ipairs(texts) do
    ids[i] = plan.partition .. "-" .. string.format("%d", standing.sequence + i)
    words[2 * i - 1], words[2 * i] = ids[i], text
  end
  standing.sequence, standing.length = standing.sequence + #texts, standing.length + #texts
  redis.call("HSET", queue_data(queue), unpack(words))
  local waiting = redis.call("RPUSH", queue_line(queue, facet), unpack(ids))
  local over = math.max(most > 0 and standing.length - most or 0, facet_most > 0 and waiting - facet_most or 0)
  over = math.min(over, waiting, #texts + 1000)
  if over > 0 then
    drop(queue, facet, over)
  end
  if over == waiting then
    unseat(queue, facet)
  elseif waiting == #texts then
    seat(queue, facet)
  end
end

for _, part in ipairs(plan.queues) do
  local texts = fresh(part[2])
  if #texts > 0 then
    for _, queue in ipairs(part[3]) do
      push(queue[1], part[1], texts, queue[2], queue[3])
    end
  end
end

for queue, standing in pairs(fed) do
  redis.call("HSET", queue_state(queue), "sequence", string.format("%d", standing.sequence))
end

for _, part in ipairs(plan.later) do
  if not left_out[part[1]] then
    redis.call("RPUSH", fanout(part[2]), messages[part[1]])
    for first = 1, #part[3], 1000 do
      redis.call("RPUSH", fanout(part[2]), unpack(part[3], first, math.min(first + 999, #part[3])))
    end
    local job = cmsgpack.pack({"fanout", {part[2]}})
    redis.call("SADD", aux_index, job)
    run_now(aux_instant, job)
  end
end
if plan.fanout then
  redis.call("RPOP", fanout(plan.fanout[1]), plan.fanout[3])
  if redis.call("LLEN", fanout(plan.fanout[1])) == 1 then
    redis.call("DEL", fanout(plan.fanout[1]))
  end
end

if must_ring then
  redis.call("XADD", bell, "MAXLEN", 1, "*", "rung", 1)
end
if plan.fence then
  redis.call("HSET", fence(plan.fence[1]), "batch", plan.fence[2], "rows", plan.fence[4], "digest", plan.fence[5])
  redis.call("PEXPIRE", fence(plan.fence[1]), plan.fence[6])
end
local refused = {}
for i, queue in pairs(refused_by) do
  refused[#refused + 1] = i
  refused[#refused + 1] = queue
end

-- Only looked up here: the caller notifies afterwards, so that no listener hears of what is not yet written.
local is_heard = 0
if #plan.channels > 0 then
  if redis.call("PUBSUB", "NUMPAT") > 0 then
    is_heard = 1
  else
    local counts = redis.call("PUBSUB", "NUMSUB", unpack(plan.channels))
    for i = 2, #counts, 2 do
      is_heard = counts[i] > 0 and 1 or is_heard
    end
  end
end
return {"ok", journal_bytes, repeats, refused, is_heard}
