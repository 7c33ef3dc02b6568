-- Change a receiver's jobs over dead letters, unless somebody has changed them meanwhile.
--
-- key kept        dead:jobs:kept     hash  by receiver its jobs, as JSON
-- key running     dead:jobs:running  set   the receivers of which a job runs
-- arg receiver    text  whose they are
-- arg former      text  what the caller saw; empty for none
-- arg latter      text  what they are to be; empty for none
-- arg is_running  int   1 if one of these runs
-- returns         1 if they were changed, 0 if they were not as seen

if (redis.call("HGET", kept, receiver) or "") ~= former then
  return 0
end
if latter == "" then
  redis.call("HDEL", kept, receiver)
else
  redis.call("HSET", kept, receiver, latter)
end
redis.call(is_running == 1 and "SADD" or "SREM", running, receiver)
return 1
