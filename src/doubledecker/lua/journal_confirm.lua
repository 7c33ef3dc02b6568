-- Note how far the registered archive has safely copied a journal.
--
-- key journal  journal  hash  archive, <name>_confirmed
-- arg archive  text  who confirms; only the registered one may
-- arg name     text  events, attempts or settlements
-- arg last_id  text  the last entry it has
-- returns      1, or 0 when it is not the registered archive

if redis.call("HGET", journal, "archive") ~= archive then
  return 0
end
redis.call("HSET", journal, name .. "_confirmed", last_id)
return 1
