-- Destroy the dead letters of a receiver that is gone, those sets first that list them by some of their values.
--
-- uses registry_fence
-- uses dead_letters
-- arg receiver    text  whose they were
-- arg values_max  int   how many values to go through
-- returns         1 when no letter is left, 0 when there may be more values, -1 when the registry has changed since

if is_stale() then
  return -1
end
local left = values_max
for _, field in ipairs(LETTER_FIELDS) do
  local values = left > 0 and redis.call("ZRANGE", letter_counts(receiver, field), 0, left - 1) or {}
  local sets = {}
  for i, value in ipairs(values) do
    sets[i] = letters_by(receiver, field, value)
  end
  if #values > 0 then
    redis.call("UNLINK", unpack(sets))
    redis.call("ZREM", letter_counts(receiver, field), unpack(values))
  end
  left = left - #values
end
if left == 0 then
  return 0
end
redis.call("UNLINK", letters_of(receiver), letters_index(receiver))
redis.call("ZREM", letter_bytes, receiver)
return 1
