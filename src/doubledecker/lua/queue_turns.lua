-- part: whose turn it is, for a pull.
--
-- uses queue_records
-- arg  most       int   how many messages at most; 0 only looks

-- A facet that was served late catches up with its rate by this much: without it a rate of more than one message a
-- millisecond, or than one a pull, could never be reached.
local LATE_MS_MAX = 50

-- How many messages wait in a facet's line, once that was asked.
local waiting_of = {}

-- The facets that may be served by this call: no more than messages are asked for, the next in line first. Each stands
-- at its tag, or where virtual time has passed; so scores, which are slow to read, are not needed.
local function line_up()
  return read_all(most > 0 and redis.call("ZRANGE", ring, 0, most - 1) or {})
end

-- Whether the rule of a facet lets it be served now.
local function can_serve(facet)
  local rule = rule_of[facet]
  return not rule or (rule.next_at <= now and not is_blocked(facet))
end

-- Whether a facet has more than what was taken. One in the ring has something, so this is only asked before another turn.
local function has_more(facet)
  waiting_of[facet] = waiting_of[facet] or length_of(head_of(facet), has_tail[facet], line_prefix .. name_of[facet])
  return taken_of[facet] < waiting_of[facet]
end

-- What the next message of a facet is charged. Of one whose costs are not known yet, those of the others are the best
-- guess.
local function charge_of(facet)
  local mean = mean_of[facet]
  return is_timed and cost_of(mean > 0 and mean or mean_cost) or 1
end

local function serve(facet, cost)
  local rule, tag, step = rule_of[facet], tag_of[facet], cost
  if tag > v then
    v = tag
  end
  if rule then
    step = cost / rule.weight
    local every_ms = rule.every_ms
    rule.next_at = every_ms > 0 and math.max(rule.next_at, now - LATE_MS_MAX) + every_ms or 0
    rule.held, rule.is_changed = rule.held + 1, true
  end
  tag_of[facet], taken_of[facet] = v + step, (taken_of[facet] or 0) + 1
  return step
end

-- Stand in line again, behind all whose tags are not greater; mostly that is its end.
local function stand_again(again, last, facet)
  local at, tag = last, tag_of[facet]
  while again[at] and tag_of[again[at]] > tag do
    again[at + 1] = again[at]
    at = at - 1
  end
  again[at + 1] = facet
end

-- Whose turn it is, one after the other, and what each is charged; how many of those who stand came to their turn; and
-- how far all were moved on.
local function take_turns(standing)
  local turns, charges, again = {}, {}, {}
  local visited, first, last, served, steps = 0, 1, 0, 0, 0
  while served < most do
    local facet, other = standing[visited + 1], again[first]
    if other and (not facet or tag_of[other] < tag_of[facet]) then
      facet, again[first], first = other, false, first + 1
    elseif facet then
      visited = visited + 1
    else
      break
    end
    if not rule_of[facet] or can_serve(facet) then
      local cost = charge_of(facet)
      served, steps = served + 1, steps + serve(facet, cost)
      turns[served], charges[served] = facet, cost
      -- Back in line only if this call may come to it again: with many facets, others are served before.
      local last_served = standing[visited + most - served]
      if (not last_served or tag_of[last_served] > tag_of[facet]) and can_serve(facet) and has_more(facet) then
        stand_again(again, last, facet)
        last = last + 1
      end
    end
  end
  return turns, charges, visited, steps
end
