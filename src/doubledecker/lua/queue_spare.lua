-- Take attempts off the count that never began: their consumers got the messages when the leases had ended.
--
-- A message that died of that lease alone lives again, with the one attempt that it was denied. A repeated call changes
-- nothing, unless the message was pulled in between.
--
-- uses queue_dead
-- arg  ids           pack  the messages
-- arg  attempts      pack  the attempt that never began, of each
-- arg  attempts_max  int   how many times a message is tried
-- returns            the ids whose count was changed

if is_anothers then
  return {}
end
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

local function bring_back(letter, attempt)
  if letter.attempts == attempt and letter.detail == lease_ended(attempt) then
    take_dead_letters(as_receiver, {letter.id}, 1)
    revive(letter, 0, math.min(math.max(attempt - attempts_max + 1, 1), attempt))
    changed[#changed + 1] = letter.id
  end
end

for i, id in ipairs(ids) do
  local record, packed = redis.call("HGET", tried, id), redis.call("HGET", letters_of(as_receiver), id)
  if record then
    forgive(id, attempts[i], unpack_record(id, record))
  elseif packed then
    bring_back(read_letter(id, packed), attempts[i])
  end
end
return_all()
conclude()
return changed
