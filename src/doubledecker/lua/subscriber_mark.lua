-- Change some fields of a subscriber, unless they are so already.
--
-- uses registry_change
-- key subscriber  subscriber:<token>  hash  what it asked for, and its health
-- arg token       text  the subscriber
-- arg fields      pack  field, value, field, value, …
-- arg callback    text  only while it is at this address; empty for any
-- returns         the registry's new version, or 0 when nothing was changed

local kept = redis.call("HGET", subscriber, "callback")
if not kept or (callback ~= "" and callback ~= kept) then
  return 0
end
local is_changed = false
for i = 1, #fields, 2 do
  is_changed = is_changed or redis.call("HGET", subscriber, fields[i]) ~= tostring(fields[i + 1])
end
if not is_changed then
  return 0
end
redis.call("HSET", subscriber, unpack(fields))
return note_change("subscriber " .. token)
