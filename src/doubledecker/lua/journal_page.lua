-- Read entries of the event journal from one id to another, until there are enough of them, or enough bytes.
--
-- An entry may have a megabyte. The reader holds a whole page, and so does the server while it answers.
--
-- key journal   journal         hash    events_trimmed
-- key entries   journal:events  stream  the journal itself
-- arg first     text  where to begin, as XRANGE has it
-- arg last      text  where to end, as XRANGE has it
-- arg count     int   how many entries at most
-- arg bytes_max int   the entry that reaches this ends the page
-- returns       {entries, the id up to which the journal was cut or ""}

local found, bytes = {}, 0
for i = 1, count do
  local entry = redis.call("XRANGE", entries, first, last, "COUNT", 1)[1]
  if not entry then
    break
  end
  found[i], first = entry, "(" .. entry[1]
  for _, text in ipairs(entry[2]) do
    bytes = bytes + #text
  end
  if bytes >= bytes_max then
    break
  end
end
return {found, redis.call("HGET", journal, "events_trimmed") or ""}
