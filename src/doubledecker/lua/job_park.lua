-- Set a batch's job aside, because its subscriber may not be called just now.
--
-- key pending  jobs:pending:<queue>:<slot>   list  the job that the slot holds
-- key parked   jobs:parked:<queue>:<token>   list  jobs set aside, next one last
-- key index    jobs:parked:index             set   subscribers with jobs set aside
-- arg job      text  the job as it was taken
-- arg token    text  the subscriber
-- arg is_called  int  1 for a job that was parked before and put back
-- returns      1, or 0 when the slot no longer held it and nothing was changed

if redis.call("LREM", pending, 1, job) == 0 then
  return 0
end
-- One that was put back too early is still the first in line.
redis.call(is_called == 1 and "RPUSH" or "LPUSH", parked, job)
redis.call("SADD", index, token)
return 1
