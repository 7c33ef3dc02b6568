-- Read the attempt journal backwards, and return the entries that hold a text.
--
-- An entry may have a megabyte, and most are not what is looked for. So they are looked at one by one, here, and only those
-- that fit are sent; a call ends when it has looked at enough.
--
-- key entries      journal:attempts  stream  one entry a delivery attempt
-- arg last         text  where to begin, as XREVRANGE has it
-- arg first        text  where to end, as XREVRANGE has it
-- arg text         text  what an entry has to hold
-- arg most         int   how many entries to find at most
-- arg entries_max  int   how many to look at
-- arg bytes_max    int   the entry that reaches this is the last one
-- returns          {entries, the id of the last one looked at, or "" when the journal has no more}

local found, seen, bytes = {}, 0, 0
while seen < entries_max and #found < most and bytes < bytes_max do
  local entry = redis.call("XREVRANGE", entries, last, first, "COUNT", 1)[1]
  if not entry then
    return {found, ""}
  end
  seen, last = seen + 1, "(" .. entry[1]
  local record = entry[2][2]
  bytes = bytes + #record
  if string.find(record, text, 1, true) then
    found[#found + 1] = entry
  end
end
return {found, string.sub(last, 2)}
