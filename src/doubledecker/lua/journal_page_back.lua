-- Read entries of the event journal backwards, until there are enough of them, or enough bytes.
--
-- key entries   journal:events  stream  the journal itself
-- arg last      text  where to begin, as XREVRANGE has it
-- arg first     text  where to end, as XREVRANGE has it
-- arg count     int   how many entries at most
-- arg bytes_max int   the entry that reaches this ends the page
-- returns       entries, the newest first

local found, bytes = {}, 0
for i = 1, count do
  local entry = redis.call("XREVRANGE", entries, last, first, "COUNT", 1)[1]
  if not entry then
    break
  end
  found[i], last = entry, "(" .. entry[1]
  for _, text in ipairs(entry[2]) do
    bytes = bytes + #text
  end
  if bytes >= bytes_max then
    break
  end
end
return found
