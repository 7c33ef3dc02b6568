-- Take the lock of the migration, keep it for longer, or give it back.
--
-- key lock      migration:lock  string  the process that migrates
-- arg owner     text  who asks
-- arg lease_ms  int   how long the lock lasts unless it is renewed; 0 gives it back
-- returns       the process that has it, or had it until now

local holder = redis.call("GET", lock) or owner
if holder == owner then
  if lease_ms > 0 then
    redis.call("SET", lock, owner, "PX", lease_ms)
  else
    redis.call("DEL", lock)
  end
end
return holder
