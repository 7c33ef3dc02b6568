-- part: entries of the event journal, until there are enough of them, or enough bytes.
--
-- key entries   journal:events  stream  the journal itself

-- By `command`, XRANGE or XREVRANGE, from one id to another as that takes them; the entry that reaches the bytes is the last.
local function read_entries(command, from, to, count, bytes_max)
  local found, bytes = {}, 0
  for i = 1, count do
    local entry = redis.call(command, entries, from, to, "COUNT", 1)[1]
    if not entry then
      break
    end
    found[i], from = entry, "(" .. entry[1]
    for _, text in ipairs(entry[2]) do
      bytes = bytes + #text
    end
    if bytes >= bytes_max then
      break
    end
  end
  return found
end
