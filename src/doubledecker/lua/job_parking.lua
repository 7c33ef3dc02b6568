-- part: the next job for a slot; on the way to it, first tries for subscribers without a free place are parked.
--
-- Jobs that were parked and put back stand in a line of their own. Slots take from that line first, and in turn: one that
-- has just served it takes from the other first. So neither line waits until the other is empty.
--
-- key  called_index  jobs:called:index            hash  how many jobs were put back and not taken yet, by subscriber
-- key  index         jobs:parked:index            set   subscribers with jobs set aside
-- keys called        jobs:called:<queue>          list  jobs that were parked and put back, next one last
-- keys instant       jobs:instant:<queue>         list  jobs to run now, next one last
-- keys pending       jobs:pending:<queue>:<slot>  list  the job that a slot holds
-- keys parked        jobs:parked:<queue>:<token>  list  jobs set aside, next one last
-- arg  busy          pack  subscribers that have no place free
-- arg  sated         pack  slots whose last job was one that was put back
-- arg  park_max      int   how many jobs to park in one call

local parked_for, parked_count, is_busy, is_sated = {}, 0, {}, {}
for _, token in ipairs(busy) do
  is_busy[token] = true
end
for _, slot in ipairs(sated) do
  is_sated[slot] = true
end

-- Whose first try it is, if it must be parked.
local function busy_one(queue, job)
  if #busy == 0 or queue ~= "main" or not job then
    return nil
  end
  local token = cmsgpack.unpack(job)[2][2]
  return is_busy[token] and token
end

local function next_uncalled(queue, slot)
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

local function next_called(queue, slot)
  local job = redis.call("LMOVE", called(queue), pending(queue, slot), "RIGHT", "LEFT")
  if job then
    local token = cmsgpack.unpack(job)[2][2]
    if redis.call("HINCRBY", called_index, token, -1) <= 0 then
      redis.call("HDEL", called_index, token)
    end
  end
  return job
end

-- The job, and 1 if it was put back.
local function next_job(queue, slot)
  local job = is_sated[slot] and next_uncalled(queue, slot)
  if job then
    return job, 0
  end
  job = next_called(queue, slot)
  if job then
    return job, 1
  end
  return not is_sated[slot] and next_uncalled(queue, slot), 0
end
