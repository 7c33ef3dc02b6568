-- Give messages back: to their place in their own line, or later, or to the dead letters after too many attempts.
--
-- uses queue_dead
-- key  scheduled     queue:scheduled:<queue>  zset  ids of messages that come back later, by when
-- arg  ids           pack  the messages
-- arg  attempts      pack  the attempt that is given up, of each
-- arg  delays        pack  milliseconds to wait, of each
-- arg  spared        pack  1 if the attempt does not count, of each
-- arg  attempts_max  int   how many times a message is tried
-- arg  why           text  the reason that a dead letter gives
-- arg  reason        text  the same in a word
-- arg  answer        pack  what their receiver answered last: status, headers as lines, its beginning; empty if it has none
-- returns            the ids that were still the consumer's; nothing changed for the others

if is_anothers then
  return {}
end
local given = {}
local records, at = still_held(ids, attempts)
let_go("nacked", records)
for i, record in ipairs(records) do
  local id, delay_ms = record.id, delays[at[i]]
  given[i] = id
  if spared[at[i]] == 1 then
    record.forgiven, record.together = record.forgiven + 1, 0
    redis.call("HSET", tried, id, pack_record(record))
  end
  if is_spent(record, attempts_max) then
    bury(record, reason, why, unpack(answer))
  elseif delay_ms > 0 then
    redis.call("ZADD", scheduled, now + delay_ms, id)
  else
    give_back(id, record.name)
  end
end
if #given == 0 then
  return given
end
redis.call("ZREM", pending, unpack(given))
write_dead_letters()
return_all()
conclude()
return given
