-- part: copies that are made later, as publishing leaves them and as the job `fanout` makes them; see store/fanouts.py
--
-- uses event_plan
-- uses registry_fence
-- uses job_bell
-- key  aux_index      jobs:index:aux         set     aux jobs in any state
-- key  aux_instant    jobs:instant:aux       list    aux jobs to run now, next one last
-- key  aux_hungry     jobs:hungry:aux        set     processes that wait for aux jobs
-- key  fanout_index   fanout:lines           set     lines that have a parcel
-- keys fanout_line    fanout:line:<line>     list    ids of parcels whose copies are to be made, next one first
-- keys fanout_parcel  fanout:parcel:<fid>    hash    lines: events; numbers: theirs in the plan; feeds: who gets which; at: copies made; version: of the registry then
-- keys fanout_former  fanout:<fid>           list    a wide event as it was kept before: the message, and who still has to get it

-- The lines that this call would overtake: a copy that is made at once must not come before one that was left for later.
local function lines_before()
  local names, keys = plan.prompt, {}
  for i = 1, #names do
    keys[i] = fanout_line(names[i])
  end
  local found = {}
  if #keys > 0 and redis.call("EXISTS", unpack(keys)) > 0 then
    for i = 1, #keys do
      found[#found + 1] = redis.call("EXISTS", keys[i]) == 1 and names[i] or nil
    end
  end
  return found
end

-- Leave copies for later: events as lines, and their numbers, none for all from one on.
local function leave(line, fid, feeds, texts, numbers)
  local packed = #numbers > 0 and cmsgpack.pack(numbers) or ""
  redis.call("HSET", fanout_parcel(fid), "lines", texts, "numbers", packed, "feeds", feeds, "at", 0, "version", version)
  if redis.call("RPUSH", fanout_line(line), fid) > 1 then
    return
  end
  -- Named for the parcel too: a job that has seen the line empty may not have ended yet.
  local job = cmsgpack.pack({"fanout", {line, fid}})
  redis.call("SADD", fanout_index, line)
  redis.call("SADD", aux_index, job)
  redis.call("LPUSH", aux_instant, job)
  ring_bell(aux_hungry)
end

-- Whether a slice begins where the last one ended. If not, another worker was faster.
local function is_next(slice)
  return tonumber(redis.call("HGET", fanout_parcel(slice[2]), "at") or -1) == slice[3]
end

-- A slice was written: line, parcel, copies made before, copies made now, or -1 when it was the last.
local function pass(slice)
  local line, fid, at = slice[1], slice[2], slice[4]
  if at >= 0 then
    redis.call("HSET", fanout_parcel(fid), "at", at)
    return
  end
  redis.call("DEL", fanout_parcel(fid))
  redis.call("LREM", fanout_line(line), 1, fid)
  if redis.call("EXISTS", fanout_line(line)) == 0 then
    redis.call("SREM", fanout_index, line)
  end
end
