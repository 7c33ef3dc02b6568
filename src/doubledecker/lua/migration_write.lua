-- Run one command of a migration, unless another process has taken it over.
--
-- key  migration  migration  hash  owner: the process that migrates
-- key  target     <name>     any   the key that it writes
-- arg  owner      text  who migrates
-- arg  verb       text  the command
-- rest words      text  its other arguments
-- returns         1, or 0 if another migrates

if redis.call("HGET", migration, "owner") ~= owner then
  return 0
end
redis.call(verb, target, unpack(words))
return 1
