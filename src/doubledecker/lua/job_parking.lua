-- part: the next job for a slot; on the way to it, first tries for subscribers without a free place are parked.
--
-- key  called    jobs:called                  set   jobs that were parked and put back
-- key  index     jobs:parked:index            set   subscribers with jobs set aside
-- keys instant   jobs:instant:<queue>         list  jobs to run now, next one last
-- keys pending   jobs:pending:<queue>:<slot>  list  the job that a slot holds
-- keys parked    jobs:parked:<queue>:<token>  list  jobs set aside, next one last
-- arg  busy      pack  subscribers that have no place free
-- arg  park_max  int   how many jobs to park in one call

local parked_for, parked_count, is_busy = {}, 0, {}
for _, token in ipairs(busy) do
  is_busy[token] = true
end

-- Whose first try it is, if it must be parked; for one that was put back a place is kept.
local function busy_one(queue, job)
  if #busy == 0 or queue ~= "main" or not job then
    return nil
  end
  local token = cmsgpack.unpack(job)[2][2]
  return is_busy[token] and redis.call("SISMEMBER", called, job) == 0 and token
end

local function next_job(queue, slot)
  local held = pending(queue, slot)
  while parked_count < park_max do
    local job = redis.call("LMOVE", instant(queue), held, "RIGHT", "LEFT")
    local token = busy_one(queue, job)
    if not token then
      return job
    end
    redis.call("LMOVE", held, parked(queue, token), "LEFT", "LEFT")
    parked_count = parked_count + 1
    if is_busy[token] ~= "told" then
      redis.call("SADD", index, token)
      parked_for[#parked_for + 1], is_busy[token] = token, "told"
    end
  end
end
