-- Change the rules of a facet; they hold from the next message on.
--
-- uses queue_records
-- arg  facet  text  the facet
-- arg  rule   pack  weight, messages in flight at most or 0, milliseconds between messages or 0, 1 when paused
-- returns     1

-- So many records are asked for together.
local ASKED_MAX = 1000

-- Nobody counts what is in flight of a facet without rules, so the first rule has to. It happens rarely.
local function count_held(name)
  local held, ids = 0, redis.call("ZRANGE", pending, 0, -1)
  for first = 1, #ids, ASKED_MAX do
    local records = redis.call("HMGET", tried, unpack(ids, first, math.min(first + ASKED_MAX - 1, #ids)))
    for _, packed in ipairs(records) do
      held = held + (packed and cut(packed, NAME_AT) == name and 1 or 0)
    end
  end
  return held
end

local changed = facet_of(facet)
local weight, cap, every_ms, is_paused = unpack(rule)
local is_none = weight == 1 and cap == 0 and every_ms == 0 and is_paused == 0
local former = rule_of[changed] or {held = is_none and 0 or count_held(facet), next_at = 0}
rule_of[changed] = {
  weight = weight, cap = cap, every_ms = every_ms, is_paused = is_paused == 1,
  held = former.held, next_at = every_ms > 0 and former.next_at or 0, is_changed = not is_none,
}
if is_none then
  redis.call("HDEL", rules, facet)
end
conclude({changed})
return 1
