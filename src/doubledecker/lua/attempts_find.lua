-- Read the attempt journal backwards, and return the entries that hold a text.
--
-- An entry may have a megabyte, and most are not what is looked for. So they are looked at one by one, here, and only those
-- that fit are sent; a call ends when it has looked at enough. The server cannot inflate what is compressed: such entries are
-- all sent, up to a bound of their own, and the caller looks at them.
--
-- key entries      journal:attempts  stream  one entry a delivery attempt
-- arg last         text  where to begin, as XREVRANGE has it
-- arg first        text  where to end, as XREVRANGE has it
-- arg text         text  what an entry has to hold
-- arg most         int   how many entries to find at most, beside those that are compressed
-- arg entries_max  int   how many to look at
-- arg bytes_max    int   the entry that reaches this is the last one
-- arg packed_max   int   the compressed entry with which these have as many bytes is the last one
-- returns          {entries, the id of the last one looked at, or "" when the journal has no more}

-- How every compressed entry begins, as the store knows it (store/journal.py).
local HEADER = "x\1"

local found, fitting, seen, bytes, packed = {}, 0, 0, 0, 0
while seen < entries_max and fitting < most and bytes < bytes_max and packed < packed_max do
  local entry = redis.call("XREVRANGE", entries, last, first, "COUNT", 1)[1]
  if not entry then
    return {found, ""}
  end
  seen, last = seen + 1, "(" .. entry[1]
  local record = entry[2][2]
  bytes = bytes + #record
  if string.sub(record, 1, #HEADER) == HEADER then
    packed = packed + #record
    found[#found + 1] = entry
  elseif string.find(record, text, 1, true) then
    fitting = fitting + 1
    found[#found + 1] = entry
  end
end
return {found, string.sub(last, 2)}
