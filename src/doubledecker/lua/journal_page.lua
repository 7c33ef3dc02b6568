-- Read entries of the event journal from one id to another, until there are enough of them, or enough bytes.
--
-- An entry may have a megabyte. The reader holds a whole page, and so does the server while it answers.
--
-- uses journal_entries
-- key journal   journal         hash    events_trimmed
-- arg first     text  where to begin, as XRANGE has it
-- arg last      text  where to end, as XRANGE has it
-- arg count     int   how many entries at most
-- arg bytes_max int   the entry that reaches this ends the page
-- returns       {entries, the id up to which the journal was cut or ""}

return {read_entries("XRANGE", first, last, count, bytes_max), redis.call("HGET", journal, "events_trimmed") or ""}
