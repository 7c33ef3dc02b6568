-- Set aside what waits for a subscriber that is gone, for a purge; what it gets if it subscribes anew is apart from it.
--
-- key token_index  batches:index:<token>    zset    the subscriber's batches by creation time
-- key current      batches:current:<token>  set     the batch that still takes events
-- key retired      batches:retired:<rid>    zset    batches to be purged, by creation time
-- key job_index    jobs:index:aux           set     aux jobs in any state
-- key instant      jobs:instant:aux         list    aux jobs to run now, next one last
-- key bell         jobs:bell                stream  rung when there is something to take or to wait for
-- arg token        text  the subscriber
-- arg rid          text  a UID for what is set aside
-- returns          1 if there was anything

redis.call("DEL", current)
if redis.call("EXISTS", token_index) == 0 then
  return 0
end
redis.call("RENAME", token_index, retired)
local job = cmsgpack.pack({"purge", {token, rid}})
redis.call("SADD", job_index, job)
redis.call("LPUSH", instant, job)
redis.call("XADD", bell, "MAXLEN", 1, "*", "rung", 1)
return 1
