-- Change a job, unless somebody has changed it meanwhile.
--
-- key  kept     <kind>  hash  jobs of a kind by id, each as JSON
-- arg  id       text  which
-- arg  former   text  what the caller saw; empty for a new one
-- arg  latter   text  what it is to be
-- returns       1 if it was changed, 0 if it was not as seen

if (redis.call("HGET", kept, id) or "") ~= former then
  return 0
end
redis.call("HSET", kept, id, latter)
return 1
