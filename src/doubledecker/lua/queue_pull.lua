-- Take messages from a queue, fairly over its facets, under a lease.
--
-- First what is due comes back: expired leases (or to the dead letters, after too many attempts), messages that were
-- given back with a delay, facets that had to wait for their rate. Then, as often as asked: the facet with the least tag.
--
-- uses queue_facets
-- key  scheduled     queue:scheduled:<queue>  zset  ids of messages that come back later, by when
-- arg  most          int   how many messages at most; 0 only looks
-- arg  lease_ms      int   how long they are the consumer's
-- arg  attempts_max  int   how many times a message is tried
-- arg  floor         text  virtual time of the queue over all partitions: no facet is served as if it were earlier
-- arg  is_alone      int   1 when no other partition has anything to serve
-- arg  due_max       int   how much of what is due comes back in one call
-- returns            {{{id, attempt, facet, message, tries}, …}, wait in ms or -1, end of leases, least tag, mean cost, facets}

-- A facet that was served late catches up with its rate by this much: without it a rate of more than one message a
-- millisecond, or than one a pull, could never be reached.
local LATE_MS_MAX = 50

local returned = {}
for _, id in ipairs(redis.call("ZRANGE", pending, "-inf", now, "BYSCORE", "LIMIT", 0, due_max)) do
  local record = cmsgpack.unpack(redis.call("HGET", tried, id))
  local facet = let_go("expired", id, record)
  redis.call("ZREM", pending, id)
  if is_spent(record, attempts_max) then
    note("dead", id, facet.name, record[1], 0)
    bury(id, facet.name, record[1], "the lease of attempt " .. record[1] .. " ended")
  else
    give_back(id, facet.name)
  end
  returned[facet.name] = facet
end
for _, id in ipairs(redis.call("ZRANGE", scheduled, "-inf", now, "BYSCORE", "LIMIT", 0, due_max)) do
  local facet = facet_of(cmsgpack.unpack(redis.call("HGET", tried, id))[2])
  redis.call("ZREM", scheduled, id)
  give_back(id, facet.name)
  returned[facet.name] = facet
end
for _, name in ipairs(redis.call("ZRANGE", wake, "-inf", now, "BYSCORE", "LIMIT", 0, due_max)) do
  returned[name] = facet_of(name)
end
return_all()
for _, facet in pairs(returned) do
  seat(facet)
end

-- The facets that may be served by this call: no more than messages are asked for, the last in line first.
v = math.max(v, tonumber(floor))
local names = most > 0 and redis.call("ZRANGE", ring, 0, most - 1, "WITHSCORES") or {}
local standing = {}
if #names > 0 then
  local only = {}
  for i = 1, #names, 2 do
    only[#only + 1] = names[i]
  end
  read_all(only)
  for i = #only, 1, -1 do
    local facet = known[only[i]]
    facet.place = tonumber(names[2 * i])
    facet.count = 0
    facet.waiting = redis.call("LLEN", line(queue, facet.name))
    standing[#standing + 1] = facet
  end
end

local function can_serve(facet)
  return facet.count < facet.waiting and not is_blocked(facet) and facet.next_at <= now
end

local served, order, costs = 0, {}, 0
while served < most and #standing > 0 do
  local facet = table.remove(standing)
  if can_serve(facet) then
    v = math.max(v, facet.place)
    -- Of one whose costs are not known yet, the cost of the others is the best guess.
    local cost = charge == "count" and 1 or math.max(1, facet.mean > 0 and facet.mean or mean_cost)
    facet.tag = math.max(facet.tag, v) + cost / facet.weight
    facet.place, facet.charged, facet.is_changed = facet.tag, cost, true
    facet.held, facet.count, served = facet.held + 1, facet.count + 1, served + 1
    facet.next_at = facet.every_ms > 0 and math.max(facet.next_at, now - LATE_MS_MAX) + facet.every_ms or 0
    order[served] = facet
    costs = costs + cost / facet.weight
    -- Back in line if this call may come to it again: with many facets, others are served before.
    local last = standing[#standing - (most - served) + 1]
    if can_serve(facet) and (not last or last.place > facet.place) then
      local low, high = 1, #standing + 1
      while low < high do
        local middle = math.floor((low + high) / 2)
        if standing[middle].place > facet.place then
          low = middle + 1
        else
          high = middle
        end
      end
      table.insert(standing, low, facet)
    end
  else
    facet.is_passed_over = true
  end
end

local messages, again = {}, {}
if served > 0 then
  local popped, ids, leases, records = {}, {}, {}, {}
  for _, facet in ipairs(order) do
    local taken = popped[facet.name] or {0, redis.call("LPOP", line(queue, facet.name), facet.count)}
    taken[1] = taken[1] + 1
    popped[facet.name] = taken
    ids[#ids + 1] = taken[2][taken[1]]
  end
  local texts, tries = redis.call("HMGET", data, unpack(ids)), redis.call("HMGET", tried, unpack(ids))
  for i, id in ipairs(ids) do
    local facet = order[i]
    local record = tries[i] and cmsgpack.unpack(tries[i]) or {0}
    local attempt = record[1] + 1
    messages[i] = {id, attempt, facet.name, texts[i], attempt - (record[6] or 0)}
    leases[#leases + 1] = now + lease_ms
    leases[#leases + 1] = id
    records[#records + 1] = id
    records[#records + 1] = cmsgpack.pack({attempt, facet.name, now, served, facet.charged, record[6]})
    note("pulled", id, facet.name, attempt, 0)
  end
  redis.call("ZADD", pending, unpack(leases))
  redis.call("HSET", tried, unpack(records))
  for name in pairs(popped) do
    local facet = known[name]
    if can_serve(facet) then
      again[#again + 1] = facet.tag
      again[#again + 1] = name
    else
      seat(facet)
    end
  end
  if #again > 0 then
    redis.call("ZADD", ring, unpack(again))
  end
end
-- Those that stood in the ring but could not be served.
for _, facet in pairs(known) do
  if facet.is_passed_over and facet.count == 0 then
    seat(facet)
  end
end

save()
local past = redis.call("ZRANGE", idle, "-inf", v, "BYSCORE", "LIMIT", 0, due_max)
for _, name in ipairs(past) do
  local facet = facet_of(name)
  redis.call("ZREM", idle, name)
  if redis.call("LLEN", line(queue, name)) == 0 and facet.held == 0 and facet.tag <= v and facet.next_at <= now then
    redis.call("HDEL", facets, name)
  end
end
-- When nobody is left to be compared with, nobody has had more than another.
local head = redis.call("ZRANGE", ring, 0, 0, "WITHSCORES")
if is_alone == 1 and served == 0 and not head[1] and redis.call("EXISTS", pending, parked, wake) == 0 then
  redis.call("UNLINK", facets, idle)
end
if v ~= tonumber(kept_state[1] or 0) then
  redis.call("HSET", state, "v", string.format("%.17g", v))
end
conclude()

local wait_ms = head[1] and 0 or -1
for _, zset in ipairs(head[1] and {} or {pending, scheduled, wake}) do
  local first = redis.call("ZRANGE", zset, 0, 0, "WITHSCORES")
  if first[1] then
    local left = math.max(0, tonumber(first[2]) - now)
    wait_ms = wait_ms < 0 and left or math.min(wait_ms, left)
  end
end
local mean = string.format("%.6g", served > 0 and costs / served or 0)
return {messages, wait_ms, now + lease_ms, head[2] or "", mean, redis.call("ZCARD", ring)}
