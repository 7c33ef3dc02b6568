-- part: whose turn it is, for a pull; it stands on queue_facets.
--
-- arg  most       int   how many messages at most; 0 only looks

-- A facet that was served late catches up with its rate by this much: without it a rate of more than one message a
-- millisecond, or than one a pull, could never be reached.
local LATE_MS_MAX = 50

-- The facets that may be served by this call: no more than messages are asked for, the last in line first. Each stands
-- at its tag, or where virtual time has passed; so scores, which are slow to read, are not needed.
local function line_up()
  local names = most > 0 and redis.call("ZRANGE", ring, 0, most - 1) or {}
  local standing = {}
  read_all(names)
  for i = #names, 1, -1 do
    standing[#names - i + 1] = known[names[i]]
  end
  return standing
end

local function can_serve(facet)
  return facet.next_at <= now and not is_blocked(facet)
end

-- Whether a facet has more than what was taken. One in the ring has something, so this is only asked before another turn.
local function has_more(facet)
  facet.waiting = facet.waiting or redis.call("LLEN", line_prefix .. facet.name)
  return facet.taken < facet.waiting
end

local function cost_of(facet)
  -- Of one whose costs are not known yet, the cost of the others is the best guess.
  return is_timed and math.max(1, facet.mean > 0 and facet.mean or mean_cost) or 1
end

local function serve(facet, cost)
  v = math.max(v, facet.tag)
  facet.tag = v + cost / weight_of(facet)
  facet.held, facet.taken, facet.is_changed = facet.held + 1, facet.taken + 1, true
  local every_ms = facet.rule and facet.rule.every_ms or 0
  facet.next_at = every_ms > 0 and math.max(facet.next_at, now - LATE_MS_MAX) + every_ms or 0
end

-- Back in line where its new tag belongs; the end of the table is the head of the line.
local function stand_again(standing, facet)
  local low, high = 1, #standing + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if standing[middle].tag > facet.tag then
      low = middle + 1
    else
      high = middle
    end
  end
  table.insert(standing, low, facet)
end

-- Whose turn it is, one after the other, and what each is charged; and all facets whose place may have changed.
local function take_turns(standing)
  local turns, charges, moved, served = {}, {}, {}, 0
  while served < most and #standing > 0 do
    local facet = table.remove(standing)
    if facet.taken == 0 then
      moved[#moved + 1] = facet
    end
    if can_serve(facet) then
      local cost = cost_of(facet)
      serve(facet, cost)
      served = served + 1
      turns[served], charges[served] = facet, cost
      -- Back in line only if this call may come to it again: with many facets, others are served before.
      local last = standing[#standing - (most - served) + 1]
      if (not last or last.tag > facet.tag) and can_serve(facet) and has_more(facet) then
        stand_again(standing, facet)
      end
    end
  end
  return turns, charges, moved
end
