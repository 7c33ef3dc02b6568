-- Say where the event journal begins and ends, without its last entry, which may have a megabyte.
--
-- key journal   journal         hash    events_trimmed
-- key entries   journal:events  stream  the journal itself
-- returns       {the id up to which it was cut or "", the id of its last entry or ""}

local last = redis.call("XREVRANGE", entries, "+", "-", "COUNT", 1)[1]
return {redis.call("HGET", journal, "events_trimmed") or "", last and last[1] or ""}
