-- Set aside what waits for a subscriber that is gone, for a purge; what it gets if it subscribes anew is apart from it.
--
-- Its jobs in the line end here. Those that are scheduled find no batch when they are due; those under way end with their
-- calls, until when their permits are held. Once it is back, what waits may be its own, and stays.
--
-- uses registry_fence
-- uses job_bell
-- uses receiver_order
-- key current      batches:current:<of_token>  set   the batch that still takes events
-- key retired      batches:retired:<rid>    zset  batches to be purged, by creation time
-- key job_index    jobs:index:aux           set   aux jobs in any state
-- key instant      jobs:instant:aux         list  aux jobs to run now, next one last
-- key aux_hungry   jobs:hungry:aux          set   processes that wait for aux jobs
-- key losses       losses                  hash  what subscribers lost lately
-- arg of_token     text  the subscriber
-- arg rid          text  a UID for what is set aside
-- returns          1 if there was anything, 0 if not, -1 when the registry has changed since

if is_stale() then
  return -1
end
redis.call("DEL", current, line(of_token))
redis.call("HDEL", losses, of_token)
local it = read_receiver(of_token)
it.limit, it.halt = 0, NONE
set_pace(it, 0)
begin_anew(it, 0)
forget_lanes(it)
save_receivers()
if redis.call("EXISTS", token_index(of_token)) == 0 then
  return 0
end
redis.call("RENAME", token_index(of_token), retired)
local job = cmsgpack.pack({"purge", {of_token, rid}})
redis.call("SADD", job_index, job)
redis.call("LPUSH", instant, job)
ring_bell(aux_hungry)
return 1
