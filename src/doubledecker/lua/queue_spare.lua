-- Take attempts off the count that never began: their consumers got the messages when the leases had ended.
--
-- A message that died of that lease alone lives again, with the one attempt that it was denied. A repeated call changes
-- nothing, unless the message was pulled in between.
--
-- uses queue_records
-- arg  ids           pack  the messages
-- arg  attempts      pack  the attempt that never began, of each
-- arg  attempts_max  int   how many times a message is tried
-- returns            the ids whose count was changed

local changed = {}

local function forgive(id, attempt, record)
  local is_held = redis.call("ZSCORE", pending, id)
  local is_known = record.attempt == attempt and (is_held or record.together == 0)
  local counted = record.attempt - record.forgiven - (is_held and 1 or 0)
  if is_known or record.attempt < attempt or counted < 1 then
    return
  end
  record.forgiven = record.forgiven + 1
  record.together = record.attempt == attempt and 0 or record.together
  redis.call("HSET", tried, id, pack_record(record))
  changed[#changed + 1] = id
end

local function bring_back(id, attempt, packed)
  local name, attempts, why, _, message = unpack(cmsgpack.unpack(packed))
  if attempts == attempt and why == lease_ended(attempt) then
    revive(id, name, attempt, 0, math.min(math.max(attempt - attempts_max + 1, 1), attempt), message)
    changed[#changed + 1] = id
  end
end

for i, id in ipairs(ids) do
  local record, letter = redis.call("HGET", tried, id), redis.call("HGET", dead, id)
  if record then
    forgive(id, attempts[i], unpack_record(id, record))
  elseif letter then
    bring_back(id, attempts[i], letter)
  end
end
return_all()
conclude()
return changed
