-- Accept events: everything that a 2xx promises, in one atom.
--
-- Nothing is written when the caller's registry is old or the journal is full. Otherwise each event that is not a
-- repeat goes to the journal, to its topic's counters, and to the current batch of every receiver; full batches are
-- promoted, and each new batch gets its job. An event with more receivers than one call may write is kept aside with
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
-- keys topic          topic:<name>           hash    counter, last_event
-- keys seen           ids:<publisher>        zset    publishers' own event ids by arrival, to tell repeats
-- keys batch          batch:<bid>            list    token, creation time, attempts, then messages
-- keys current        batches:current:<token>  set   the batch that still takes events
-- keys token_index    batches:index:<token>  zset    one subscriber's batches by creation time
-- keys fanout         fanout:<fid>           list    a message and the tokens that still have to get it
-- arg  version        int   the registry version that the plan was made with
-- arg  journal_bytes_max  int  refuse when the journal holds more and an archive is behind; 0 never refuses
-- arg  id_window_ms   int   how long a publisher's id is remembered
-- arg  ids_max        int   how many are remembered, by publisher
-- arg  plan           pack  publishers, topics, ids, lanes, later, fanout and uids; see store/events.py
-- rest messages       text  the events, as they are stored and delivered
-- now
-- returns             {"ok", journal bytes, indexes of repeats} or {"stale"} or {"full"} or {"moved"}

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

local repeated = {}
local repeats = {}
for _, given in ipairs(plan.ids) do
  local key = seen(given[2])
  if redis.call("ZADD", key, "NX", now, given[3]) == 0 then
    if tonumber(redis.call("ZSCORE", key, given[3])) + id_window_ms > now then
      repeated[given[1]] = true
      repeats[#repeats + 1] = given[1]
    else
      redis.call("ZADD", key, now, given[3])
    end
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
    if not repeated[i] then
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

for _, part in ipairs(plan.later) do
  if not repeated[part[1]] then
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
return {"ok", journal_bytes, repeats}
