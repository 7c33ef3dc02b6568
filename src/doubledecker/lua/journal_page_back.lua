-- Read entries of the event journal backwards, until there are enough of them, or enough bytes.
--
-- uses journal_entries
-- arg last      text  where to begin, as XREVRANGE has it
-- arg first     text  where to end, as XREVRANGE has it
-- arg count     int   how many entries at most
-- arg bytes_max int   the entry that reaches this ends the page
-- returns       entries, the newest first

return read_entries("XREVRANGE", last, first, count, bytes_max)
