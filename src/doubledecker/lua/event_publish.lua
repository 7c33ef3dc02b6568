-- Accept events: everything that a 2xx promises, in one atom.
--
-- Nothing is written when the caller's registry is old or the journal is full. Otherwise each event that is not a
-- repeat, nor refused because a queue is full, goes to the journal, to its topic's counters, to the current batch of
-- every receiver, and to its facet's line in every queue that matches, but for full ones that may not refuse it; full batches are promoted, each new batch gets
-- its job, and consumers that wait for a queue that was empty are woken. Copies that would take too long are left for later, with the
-- names of who gets them, and an aux job calls this script again, a slice at a time, until none is left.
--
-- deny-oom
-- uses registry_fence
-- uses event_plan
-- uses event_batches
-- uses event_queues
-- uses event_fence
-- uses event_fanout
-- key  journal        journal                hash    events_bytes: what the event journal holds; archive
-- key  journal_events journal:events         stream  accepted events, lines of JSON by publisher, compressed or not
-- keys topic          topic:<name>           hash    counter, last_event
-- keys seen           ids:<publisher>        zset    publishers' own event ids by arrival, to find repeats
-- arg  journal_bytes_max  int  refuse when the journal holds more and an archive is behind; 0 never refuses
-- arg  id_window_ms   int   how long a publisher's id is remembered
-- arg  ids_max        int   how many are remembered, by publisher
-- arg  lines          text  the events, as they are stored and delivered, one a line
-- rest compressed     text  of each publisher of the plan the lines for the journal; empty where that does not pay
-- now
-- returns             {"ok", journal bytes, {repeat, …}, {refused, why, …}, is heard} or {"stale" | "full" | "moved" | "fenced"} or {"behind", {line, …}}

if is_stale() then
  return {"stale"}
end
local journal_bytes = tonumber(redis.call("HGET", journal, "events_bytes") or 0)
if journal_bytes_max > 0 and journal_bytes > journal_bytes_max and redis.call("HEXISTS", journal, "archive") == 1 then
  return {"full"}
end
if plan.fanout and not is_next(plan.fanout) then
  return {"moved"}
end
if plan.former and redis.call("EXISTS", fanout_former(plan.former)) == 0 then
  return {"moved"}
end
if plan.fence and not follows(plan.fence) then
  return {"fenced"}
end
local overtaken = lines_before()
if #overtaken > 0 then
  return {"behind", overtaken}
end

-- One event out of the lines: most calls need but a few of them alone.
local cut = {}
local function message(i)
  cut[i] = cut[i] or string.sub(lines, (plan.ends[i - 1] or 0) + i, plan.ends[i] + i - 1)
  return cut[i]
end

-- Events that are not written: repeats, and those that a queue refuses: `queue <name>` when it is full, `tenants <name>`
-- when it knows as many tenants as it may.
local left_out, is_any_left_out = {}, false
local repeats, refused_by = {}, {}
local first_of = {}
for _, given in ipairs(plan.ids) do
  local i, name = given[1], given[2] .. " " .. given[3]
  local seen_at = tonumber(redis.call("ZSCORE", seen(given[2]), given[3]) or -math.huge)
  if first_of[name] or seen_at + id_window_ms > now then
    left_out[i], is_any_left_out = first_of[name] or i, true
    repeats[#repeats + 1] = i
  else
    first_of[name] = i
  end
end

for _, whole in ipairs(plan.wholes) do
  whole.took = {}
  for i = whole[1], whole[2] do
    whole_of[i] = whole
  end
end

local function refuse(i, why)
  if whole_of[i] then
    whole_of[i].why = whole_of[i].why or why
  else
    left_out[i], refused_by[i], is_any_left_out = i, why, true
  end
end

for _, part in ipairs(plan.queues) do
  for _, queue in ipairs(part[1]) do
    local name, owner = queue[1], queue[4]
    for _, i in ipairs(read_facets(name, owner, part[2], part[3])) do
      if publisher_of(i) ~= owner then
        skip(name, i)
      elseif not left_out[i] then
        refuse(i, "tenants " .. name)
      end
    end
  end
end
for _, part in ipairs(plan.bounded) do
  local i, facet, at, skippable = part[1], part[2], part[3], part[4]
  local whole = whole_of[i]
  if not left_out[i] and not (whole and whole.why) then
    local queue = full_queue(facet, at)
    if not queue then
      take_room(facet, at, 1, whole and whole.took)
      for _, b in ipairs(skippable) do
        if full_queue(facet, {b}) then
          skip(plan.bounds[b][1], i)
        else
          take_room(facet, {b}, 1, whole and whole.took)
        end
      end
    else
      refuse(i, "queue " .. queue)
      for _, taken in ipairs(whole and whole.took or {}) do
        take_room(taken[1], taken[2], -1)
      end
    end
  end
end
for _, whole in ipairs(plan.wholes) do
  for i = whole[1], whole.why and whole[2] or 0 do
    left_out[i], refused_by[i], is_any_left_out = i, whole.why, true
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

-- Of some events, or of all, how many are written, and which is the last.
local function written(indexes)
  local count, last = 0, nil
  for n = 1, indexes and #indexes or #plan.ends do
    local i = indexes and indexes[n] or n
    if not left_out[i] then
      count, last = count + 1, i
    end
  end
  return count, last
end

-- Those of some events, or of all, that are written.
local function fresh_of(indexes)
  local found = {}
  for n = 1, indexes and #indexes or #plan.ends do
    local i = indexes and indexes[n] or n
    if not left_out[i] then
      found[#found + 1] = i
    end
  end
  return found
end

local function fresh(indexes)
  local texts = {}
  for n = 1, indexes and #indexes or #plan.ends do
    local i = indexes and indexes[n] or n
    if not left_out[i] then
      texts[#texts + 1] = message(i)
    end
  end
  return texts
end

local entry = {}
for i, part in ipairs(plan.publishers) do
  local text = not is_any_left_out and compressed[i] or ""
  if text == "" then
    text = not part[2] and not is_any_left_out and lines or table.concat(fresh(part[2]), "\n")
  end
  if #text > 0 then
    entry[#entry + 1] = part[1]
    entry[#entry + 1] = text
    journal_bytes = journal_bytes + #part[1] + #text
  end
end
if #entry > 0 then
  redis.call("XADD", journal_events, "*", unpack(entry))
  redis.call("HSET", journal, "events_bytes", journal_bytes)
end

for _, part in ipairs(plan.topics) do
  local count, last = written(part[2])
  if count > 0 then
    redis.call("HINCRBY", topic(part[1]), "counter", count)
    redis.call("HSET", topic(part[1]), "last_event", message(last))
    redis.call("HINCRBY", counters, "events.published:topic=" .. part[1], count)
  end
end

for _, part in ipairs(plan.copies) do
  local texts = fresh(part[1])
  if #texts > 0 then
    for _, receiver in ipairs(part[2]) do
      append(receiver, texts)
    end
  end
end

for queue, events in pairs(skipped) do
  note_skipped(queue, events, left_out)
end
for _, part in ipairs(plan.queues) do
  for _, queue in ipairs(part[1]) do
    local skipping = skipped[queue[1]]
    local text_of = message
    if is_any_left_out or skipping then
      text_of = function(i)
        return not left_out[i] and not (skipping and skipping[i]) and message(i)
      end
    end
    push(queue[1], queue[2], queue[3], part[2], part[3], text_of)
  end
end

for _, part in ipairs(plan.later) do
  local numbers = #part[4] > 0 and part[4] or nil
  if not numbers and not is_any_left_out then
    leave(part[1], part[2], part[3], lines, {})
  elseif written(numbers) > 0 then
    leave(part[1], part[2], part[3], table.concat(fresh(numbers), "\n"), fresh_of(numbers))
  end
end
if plan.fanout then
  pass(plan.fanout)
end
if plan.former then
  redis.call("DEL", fanout_former(plan.former))
end

save_receivers()
if is_news or is_sooner then
  ring_bell(hungry)
end
if plan.fence then
  advance(plan.fence, refused_by)
end
local refused = {}
for i, why in pairs(refused_by) do
  refused[#refused + 1] = i
  refused[#refused + 1] = why
end

-- Only looked up here: the caller notifies afterwards, so that no listener gets what is not yet written.
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
