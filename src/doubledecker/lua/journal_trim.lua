-- Shorten a journal: what the archive has confirmed goes at once, the rest only when the bound forces it.
--
-- What is cut before the archive confirmed it is a gap: counted, and written down.
--
-- uses journal_order
-- key journal     journal          hash    <name>_bytes, <name>_trimmed, archive, <name>_confirmed, <name>_lost
-- key entries     journal:<name>   stream  the journal itself
-- key gaps        journal:gaps     stream  what was cut unconfirmed
-- arg name        text  events, attempts or settlements
-- arg bytes_max   int   how much it may hold
-- arg is_forced   int   1 when the bound holds even against an archive that is behind
-- arg entries_max int   how many entries to look at in one call
-- returns         {entries removed, bytes left, entries lost to the archive}

local bytes = tonumber(redis.call("HGET", journal, name .. "_bytes") or 0)
local archive = redis.call("HGET", journal, "archive")
local confirmed = archive and redis.call("HGET", journal, name .. "_confirmed") or "0-0"
local removed, last, first_lost, last_lost, lost = 0, nil, nil, nil, 0
-- One by one: an entry may be half a megabyte, and most calls cut but the first.
for _ = 1, entries_max do
  local entry = redis.call("XRANGE", entries, last and "(" .. last or "-", "+", "COUNT", 1)[1]
  local is_confirmed = entry and archive and not is_after(entry[1], confirmed)
  if not entry or not is_confirmed and (bytes <= bytes_max or (archive and is_forced == 0)) then
    break
  end
  removed, last = removed + 1, entry[1]
  for i = name == "events" and 1 or 2, #entry[2], name == "events" and 1 or 2 do
    bytes = bytes - #entry[2][i]
  end
  if archive and not is_confirmed then
    first_lost, last_lost, lost = first_lost or entry[1], entry[1], lost + 1
  end
end
if removed == 0 then
  return {0, bytes, 0}
end
local last_ms, last_n = string.match(last, "(%d+)-(%d+)")
redis.call("XTRIM", entries, "MINID", last_ms .. "-" .. tonumber(last_n) + 1)
redis.call("HSET", journal, name .. "_bytes", bytes, name .. "_trimmed", last)
if lost > 0 then
  redis.call("HINCRBY", journal, name .. "_lost", lost)
  redis.call("XADD", gaps, "MAXLEN", "~", 1000, "*", "journal", name, "from", first_lost, "to", last_lost, "entries", lost)
end
return {removed, bytes, lost}
