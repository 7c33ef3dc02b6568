-- Change some fields of a subscriber, unless they are so already. One that was disabled and is enabled begins anew.
--
-- uses registry_change
-- key subscriber  subscriber:<token>  hash  what it asked for, and its health
-- arg token       text  the subscriber
-- arg fields      pack  field, value, field, value, …
-- arg seen        pack  field, value, … : only while it has these; empty for what it never had
-- returns         the registry's new version, or 0 when nothing was changed

if redis.call("EXISTS", subscriber) == 0 then
  return 0
end
for i = 1, #seen, 2 do
  if (redis.call("HGET", subscriber, seen[i]) or "") ~= seen[i + 1] then
    return 0
  end
end
local is_changed = false
for i = 1, #fields, 2 do
  is_changed = is_changed or redis.call("HGET", subscriber, fields[i]) ~= tostring(fields[i + 1])
end
if not is_changed then
  return 0
end
local function is_disabled()
  return (redis.call("HGET", subscriber, "disabled_at") or "0") ~= "0"
end
local was_disabled = is_disabled()
redis.call("HSET", subscriber, unpack(fields))
local version = note_change("subscriber " .. token)
if was_disabled and not is_disabled() then
  redis.call("HSET", subscriber, "anew_since", version)
end
return version
