-- Remove a finished job and every reference to it.
--
-- key pending  jobs:pending:aux:<slot>  list  the job that the slot holds
-- key index    jobs:index:aux           set   jobs in any state
-- arg job      text  the job as it was taken
-- returns      1, or 0 when the slot no longer held it and nothing was changed

if redis.call("LREM", pending, 1, job) == 0 then
  return 0
end
redis.call("SREM", index, job)
return 1
