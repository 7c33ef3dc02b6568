-- How old a journal's entries are: the oldest that it holds, and the oldest that its archive has yet to confirm.
--
-- key journal  journal         hash    archive, <name>_confirmed
-- key entries  journal:<name>  stream  the journal itself
-- arg name     text  events, attempts or settlements
-- now
-- returns      {age in milliseconds, the same of what is not confirmed}; 0 if there is none, -1 if nothing archives

local function age_after(start)
  local entry = redis.call("XRANGE", entries, start, "+", "COUNT", 1)[1]
  -- At least a millisecond: an entry that was written just now is not none.
  return entry and math.max(1, now - tonumber(string.match(entry[1], "%d+"))) or 0
end

local lag = -1
if redis.call("HEXISTS", journal, "archive") == 1 then
  lag = age_after("(" .. (redis.call("HGET", journal, name .. "_confirmed") or "0-0"))
end
return {age_after("-"), lag}
