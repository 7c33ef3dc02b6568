-- Change the rules of a facet; they hold from the next message on.
--
-- uses queue_lines
-- uses queue_facets
-- uses queue_records
-- arg  facet  text  the facet
-- arg  rule   pack  weight, messages in flight at most or 0, milliseconds between messages or 0, 1 when paused
-- returns     1

local changed = facet_of(facet)
local weight, cap, every_ms, is_paused = unpack(rule)
rule_of[changed] = {weight = weight, cap = cap, every_ms = every_ms, is_paused = is_paused == 1}
if weight == 1 and cap == 0 and every_ms == 0 and is_paused == 0 then
  redis.call("HDEL", rules, facet)
else
  redis.call("HSET", rules, facet, cmsgpack.pack(rule))
end
if every_ms == 0 then
  next_of[changed] = 0
end
is_changed[changed] = redis.call("HEXISTS", facets, facet) == 1
seat_all({changed})
save()
conclude()
return 1
