-- End the migration of a partition; it stays closed to processes of format 1.
--
-- key registry   registry   hash  version: a number in format 1
-- key migration  migration  hash  owner: the process that migrates
-- arg owner      text  who migrates
-- arg done       text  what is written in place of the version
-- returns        1, or 0 if another migrates

if redis.call("HGET", migration, "owner") ~= owner then
  return 0
end
redis.call("HSET", registry, "version", done)
redis.call("DEL", migration)
return 1
