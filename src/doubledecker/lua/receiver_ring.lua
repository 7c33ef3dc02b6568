-- part: receivers, their permits, and the ring of those that may be called.
--
-- A receiver is called by as many at a time as it has permits. One that has a due job is in exactly one of three places:
-- in `ring` when it may be called now, in `probes` when it is failing and its next probe is due, in `wake` when it may
-- be called only later. One that has no due job or no free permit is in none; the script that adds a job or frees a permit seats it.
-- One that is halted, paused by its owner or disabled, is in none either, and keeps its line and its failures meanwhile.
--
-- One whose calls may only begin so far apart waits in `wake` until the next may. Calls that began late, as processes wake
-- late, do not delay those after them; one that had nothing to do for a while gets none at once for it.
--
-- Each has a tag in virtual time, and the least tag is next in the ring; a call moves the tag on by one. Virtual time is the
-- greatest tag that was served. A receiver that had nothing due is seated one before it: ahead of all that were served this
-- round, and no earlier than its own last call allows. Probes and leases are no turns of the ring, and move no tag: else
-- virtual time ran ahead of those who wait in the ring, and newcomers stood behind them for as long as it had. Of receivers
-- to be probed the one that was due first is next, and each failure counts as a minute less: many that hang, of which each holds
-- a slot until it times out, do not hold up one that has just stumbled.
--
-- A command costs a script more than what it does. So receivers are read once, and written all together in the end.
--
-- key  receivers  receivers                  hash    how each receiver stands, as MessagePack (`known`)
-- key  ring       receivers:ring             zset    receivers that may be called, by tag
-- key  probes     receivers:probes           zset    failing receivers whose probe is due, by when it was and their failures
-- key  wake       receivers:wake             zset    receivers that may be called later, by when
-- key  turn       receivers:turn             string  virtual time
-- key  hungry     jobs:hungry:main           set     processes that wait for jobs
-- keys line       jobs:instant:main:<token>  list    due jobs of a receiver, next one last
-- keys lane_line  order:waiting:<token>:<lane>  list  batches of a lane that is held, next one last
-- keys leases     permits:<token>            zset    permits of callers that have no slot, by when they end
-- keys token_index  batches:index:<token>    zset    one subscriber's batches by creation time
-- now

local NOWHERE, RING, PROBES, WAKE = 0, 1, 2, 3
local seats = {ring, probes, wake}
-- Why nothing is sent to a receiver: it is paused (1), or disabled (2).
local NONE = 0
-- So many different batches refused in a row, and none taken: then the receiver is failing, whatever it blames.
local REFUSALS_MAX = 5
-- How much later a failing receiver is probed for each failure after the first, while too many are due; ten count at most.
local FAILURE_MS, FAILURES_COUNTED_MAX = 60000, 10
-- A call that began this much later than it might have counts as begun in time: so late a process may wake. Where calls begin
-- further apart than so long, it does not matter.
local LATE_MS_MAX, CLOSE_MS_MAX = 100, 1000
-- The longest wait that a reply names: a time far away is no number that a reply or an expiry may have.
local WAIT_MS_MAX = 86400000

local receiver_of, receivers_read = {}, {}
local present, is_present_changed
-- Whether one may be called that could not be before; and whether something is due earlier than all else that waits.
local is_news, is_sooner = false, false

-- A slot or lease calls the receiver no more, whatever came of it.
local function leave(it, caller)
  it.prober = it.prober ~= caller and it.prober or ""
end

-- Leases that were not renewed have ended.
local function end_leases(it)
  for _, lease in ipairs(it.leased > 0 and redis.call("ZRANGE", leases(it.token), "-inf", now, "BYSCORE") or {}) do
    it.leased = it.leased - redis.call("ZREM", leases(it.token), lease)
    leave(it, lease)
  end
end

local function probe_score(it)
  return it.retry_at + FAILURE_MS * math.min(it.failures - 1, FAILURES_COUNTED_MAX)
end

-- Where its next job is.
local function first_line(it)
  return it.served == "" and line(it.token) or lane_line(it.token, it.served)
end

-- limit, held, leased: its permits, those that slots hold, those on lease. failures: different batches that failed in a row;
-- 0 while it is well. retry_at: when its next probe is due. refusals: different batches refused in a row. prober: the slot
-- or lease that probes it, else empty. failing_since: when the first of the failures was. seat: where it is. begun: how many
-- jobs slots were given for it, which distinguishes a job from the same given again. delivered_at: when it last took a batch, 0 if never
-- since this is kept. wish: until when the next free permit is left to a lease that found none. halt: why nothing is sent
-- to it. root: the batch that was refused or failed last, as it was published; parts: how many of its parts in a row. ramp:
-- how many permits it has so soon after it failed, 0 for all of them. every_ms: how far apart its calls begin, 0 for no
-- bound; next_at: when the next may. lanes: how many lanes of an ordered one are held; served: the one among them that was
-- let go and is served now (lua/receiver_order.lua). anew_since: the version of the registry with which it began anew, as at
-- another address; calls to it as it was before say nothing of it. One whose number of permits is not known, as it is new or gone, has one.
local function packed(it)
  return cmsgpack.pack({
    it.tag, it.limit, it.held, it.leased, it.failures, it.retry_at, it.refusals, it.prober, it.failing_since, it.seat,
    it.begun, it.delivered_at, it.wish, it.halt, it.root, it.parts, it.ramp, it.every_ms, it.next_at,
    it.lanes, it.served, it.anew_since,
  })
end

-- A record as it was written; that of an earlier build ends sooner, and one that is new has nothing yet. A loop over a list
-- of names would take a quarter longer. `due` is how many jobs it has to be called with.
local function known(token, record)
  local v = record and cmsgpack.unpack(record) or {}
  local it = {
    token = token, tag = v[1] or 0, limit = v[2] or 0, held = v[3] or 0, leased = v[4] or 0, failures = v[5] or 0,
    retry_at = v[6] or 0, refusals = v[7] or 0, prober = v[8] or "", failing_since = v[9] or 0, seat = v[10] or NOWHERE,
    begun = v[11] or 0, delivered_at = v[12] or 0, wish = v[13] or 0, halt = v[14] or NONE, root = v[15] or "",
    parts = v[16] or 0, ramp = v[17] or 0, every_ms = v[18] or 0, next_at = v[19] or 0, lanes = v[20] or 0,
    served = v[21] or "", anew_since = v[22] or 0,
    due = redis.call("LLEN", line(token)),
  }
  it.due = it.due + (it.served ~= "" and redis.call("LLEN", first_line(it)) or 0)
  it.score = it.seat == RING and it.tag or it.seat == PROBES and probe_score(it)
  it.kept_seat, it.kept_score = it.seat, it.score
  end_leases(it)
  receiver_of[token], receivers_read[#receivers_read + 1] = it, it
  return it
end

local function read_receiver(token)
  return receiver_of[token] or known(token, redis.call("HGET", receivers, token))
end

local function read_receivers(tokens)
  local unread, found = {}, {}
  for _, token in ipairs(tokens) do
    unread[#unread + 1] = not receiver_of[token] and token or nil
  end
  for i, record in ipairs(#unread > 0 and redis.call("HMGET", receivers, unpack(unread)) or {}) do
    known(unread[i], record)
  end
  for i, token in ipairs(tokens) do
    found[i] = receiver_of[token]
  end
  return found
end

-- Put a job into a receiver's line: first (`RPUSH`) or last (`LPUSH`).
local function line_up(it, bid, push)
  redis.call(push, line(it.token), bid)
  it.due = it.due + 1
end

-- Give a job back: it is the next one.
local function put_first(it, bid)
  redis.call("RPUSH", first_line(it), bid)
  it.due = it.due + 1
end

-- A batch that is not in its subscriber's index was dropped, or set aside to be purged: its job ends.
local function is_there(bid, token)
  return redis.call("ZSCORE", token_index(token), bid)
end

-- When the first of what waits in a sorted set is due. Code that removes from one resets its entry.
local heads = {}
local function head(zset)
  heads[zset] = heads[zset] or tonumber(redis.call("ZRANGE", zset, 0, 0, "WITHSCORES")[2] or math.huge)
  return heads[zset]
end

-- Something waits in a sorted set until a time.
local function note_time(zset, at)
  if at < head(zset) then
    is_sooner, heads[zset] = true, at
  end
end

-- How many calls it takes at a time: after it failed first one, then twice as many with each success.
local function permits(it)
  return it.ramp > 0 and math.min(it.ramp, math.max(1, it.limit)) or math.max(1, it.limit)
end

local function has_free(it)
  return it.held + it.leased < permits(it)
end

-- Whether there is a permit for a slot. Slots settle and take in one call, so that without a wish no lease would ever find
-- a free one beside a backlog.
local function has_permit(it)
  return it.held + it.leased + (it.wish > now and 1 or 0) < permits(it)
end

-- How long to wait until a time.
local function until_ms(at)
  return math.min(WAIT_MS_MAX, math.max(0, math.ceil(at) - now))
end

-- Whether its rate allows a call.
local function may_begin(it)
  return it.next_at <= now
end

-- A call to it begins.
local function pace(it)
  if it.every_ms > 0 then
    local is_in_time = it.every_ms <= CLOSE_MS_MAX and now - it.next_at < LATE_MS_MAX
    it.next_at = (is_in_time and it.next_at or now) + it.every_ms
  end
end

-- A job was given for a call that is not made.
local function give_call_back(it)
  it.next_at = math.max(0, it.next_at - it.every_ms)
end

-- It is not called for so long.
local function pause(it, ms)
  it.next_at = ms > 0 and math.max(it.next_at, now + ms) or it.next_at
end

-- Its calls begin so far apart from now on.
local function set_pace(it, every_ms)
  it.next_at = math.min(it.next_at, now + every_ms)
  it.every_ms = every_ms
end

-- Where a receiver belongs, and its score there; in the ring that is its tag.
local function seat_of(it)
  if it.due == 0 or it.halt ~= NONE then
    return NOWHERE
  end
  if not has_permit(it) then
    -- A slot seats it again when it is done. A lease may just end, and so may the wish for one.
    local ends_at = has_free(it) and it.wish or math.huge
    if it.leased > 0 then
      ends_at = math.min(ends_at, tonumber(redis.call("ZRANGE", leases(it.token), 0, 0, "WITHSCORES")[2]))
    end
    return ends_at < math.huge and WAKE or NOWHERE, ends_at
  end
  if it.failures == 0 then
    return may_begin(it) and RING or WAKE, math.ceil(it.next_at)
  end
  if it.prober ~= "" then
    -- A slot's probe ends with its call. A lease may just end.
    local ends_at = it.leased > 0 and redis.call("ZSCORE", leases(it.token), it.prober)
    return ends_at and WAKE or NOWHERE, ends_at and tonumber(ends_at)
  end
  local next_at = math.max(it.retry_at, math.ceil(it.next_at))
  if next_at > now then
    return WAKE, next_at
  end
  return PROBES, probe_score(it)
end

local function serving()
  present = present or tonumber(redis.call("GET", turn) or 0)
  return present
end

-- Find a seat for each receiver that this call has read; it is written when the call ends.
local function seat_receivers()
  for _, it in ipairs(receivers_read) do
    local seat, score = seat_of(it)
    if seat == RING then
      it.tag = seat ~= it.seat and math.max(it.tag, serving() - 1) or it.tag
      score = it.tag
    end
    it.seat, it.score = seat, score
  end
end

local function write_seats()
  local gone, come = {{}, {}, {}}, {{}, {}, {}}
  for _, it in ipairs(receivers_read) do
    local is_moved = it.seat ~= it.kept_seat
    is_news = is_news or (is_moved and (it.seat == RING or it.seat == PROBES))
    if is_moved and it.kept_seat ~= NOWHERE then
      table.insert(gone[it.kept_seat], it.token)
    end
    if it.seat ~= NOWHERE and (is_moved or it.score ~= it.kept_score) then
      table.insert(come[it.seat], it.score)
      table.insert(come[it.seat], it.token)
    end
  end
  for i, zset in ipairs(seats) do
    for at = 1, zset == wake and #come[i] or 0, 2 do
      note_time(wake, come[i][at])
    end
    if #gone[i] > 0 then
      redis.call("ZREM", zset, unpack(gone[i]))
    end
    if #come[i] > 0 then
      redis.call("ZADD", zset, unpack(come[i]))
    end
    if #gone[i] + #come[i] > 0 then
      heads[zset] = nil
    end
  end
end

-- Seat and write all receivers that this call has read; one that is gone is kept only while it has something.
local function save_receivers()
  seat_receivers()
  write_seats()
  local words = {}
  for _, it in ipairs(receivers_read) do
    if it.limit > 0 or it.held + it.leased + it.lanes > 0 or it.seat ~= NOWHERE then
      words[#words + 1] = it.token
      words[#words + 1] = packed(it)
    else
      redis.call("HDEL", receivers, it.token)
    end
  end
  if #words > 0 then
    redis.call("HSET", receivers, unpack(words))
  end
  if is_present_changed then
    redis.call("SET", turn, present)
  end
end

-- The first of the ring has had its turn.
local function pass_turn(it)
  if it.tag > serving() then
    present, is_present_changed = it.tag, true
  end
  it.tag = it.tag + 1
end

-- What is known of its calls is over since this version of the registry: it came, is gone, is another's, moved, or was enabled.
local function begin_anew(it, anew_since)
  it.anew_since = anew_since
  it.failures, it.retry_at, it.refusals, it.failing_since, it.delivered_at = 0, 0, 0, 0, 0
  it.root, it.parts, it.ramp = "", 0, 0
end

-- It takes what it is given: all that was held against it is over. One that had failed is not flooded.
local function note_success(it)
  if it.failures > 0 then
    it.ramp = 1
  elseif it.ramp > 0 then
    it.ramp = 2 * it.ramp < it.limit and 2 * it.ramp or 0
  end
  it.failures, it.retry_at, it.refusals, it.failing_since, it.delivered_at = 0, 0, 0, 0, now
  it.root, it.parts = "", 0
end

-- What was refused or failed counts once for all parts of a batch, until there were more of them in a row than it takes to
-- find an event among them.
local function is_evidence(it, root, parts_max)
  if root == "" or it.root ~= root then
    it.root, it.parts = root, 1
    return true
  end
  it.parts = it.parts + 1
  return it.parts > parts_max
end

-- A call has ended with `what`: delivered, refused, failed, cut when it was cut short, or returned or gone when nobody was called. `anew_since` is the
-- receiver's as it was called: that may have been before it moved, or at an address that this partition does not know yet.
-- `failures` is how many there were when the call began: what failed together counts once. `raises` is 1 if it is evidence of its own, not the same
-- batch once more. `root` is the batch, as it was published, that this one is a part of, or is; empty for what has none.
local function end_call(it, what, anew_since, failures, raises, probe_ms, root, parts_max)
  if what == "returned" or what == "gone" or what == "cut" or anew_since < it.anew_since then
    return
  end
  if anew_since > it.anew_since then
    begin_anew(it, anew_since)
    failures = 0
  end
  if what == "delivered" then
    note_success(it)
    return
  end
  if it.failures ~= failures then
    return
  end
  local is_first = it.root ~= root or root == ""
  raises = raises == 1 and is_evidence(it, root, parts_max) and 1 or 0
  if what == "refused" and failures == 0 then
    it.refusals = it.refusals + raises
    raises = (it.refusals >= REFUSALS_MAX or (raises == 1 and not is_first)) and 1 or 0
  end
  it.failures = math.max(what == "failed" and 1 or 0, failures + raises)
  if it.failures > 0 then
    it.retry_at = now + probe_ms
    it.failing_since = it.failing_since > 0 and it.failing_since or now
  end
end
