-- part: putting events into receivers' current batches, as publishing does.
--
-- A batch that is full is closed and its job runs now; a new one gets its job, which runs when it is due.
--
-- key  gauge_events   batches:gauges:event   hash    events waiting, by subscriber
-- key  gauge_batches  batches:gauges:batch   hash    batches waiting, by subscriber
-- key  sizes          batches:bytes          hash    payload bytes, by batch
-- key  index          batches:index          zset    all batches by creation time
-- key  job_index      jobs:index:main        set     jobs in any state
-- key  scheduled      jobs:scheduled:main    zset    jobs by deadline
-- key  instant        jobs:instant:main      list    jobs to run now, next one last
-- keys batch          batch:<bid>            list    token, creation time, attempts, then messages
-- keys current        batches:current:<token>  set   the batch that still takes events
-- keys token_index    batches:index:<token>  zset    one subscriber's batches by creation time

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
