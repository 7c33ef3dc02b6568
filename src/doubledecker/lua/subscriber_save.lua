-- Create or replace a subscriber and its subscriptions, unless others have changed it meanwhile.
--
-- Nothing happens either when its client is gone, or has another subscriber of this name.
--
-- uses registry_change
-- key  tokens       api_tokens           hash  tokens as JSON, by id
-- key  subscribers  subscribers          set   all subscribers
-- key  named        subscriptions:<owner>  hash  a client's subscribers by name
-- key  subscriber   subscriber:<token>   hash  what it asked for, and its health
-- key  topics       topics:<token>       set   what it is subscribed to
-- key  bulk         bulk:<token>         hash  how far bulk delivery has come; there is none for a live subscriber
-- key  in_bulk      bulk                 set   the subscribers that have the above
-- keys of_topic     subscribers:<name>   set   a topic's subscribers
-- arg  token        text  the subscriber
-- arg  owner        text  its client
-- arg  name         text  what its client calls it
-- arg  fields       pack  field, value, field, value, …; the callback comes first
-- arg  wanted       pack  the topics it wants from now on
-- arg  shards      pack  field, value, … : where bulk delivery begins, if it did not run; empty for a live subscriber
-- arg  starts       pack  topic, value, … : where each topic begins, if it was not wanted before
-- arg  seen         int   the registry's version by which this was decided: what is not asked for is kept as it was then
-- returns           the registry's new version, or 0 when nothing happened

local changed_at = redis.call("ZSCORE", changes, "subscriber " .. token) or redis.call("HGET", registry, "log_from") or 0
local is_other = (redis.call("HGET", named, name) or token) ~= token
if redis.call("HEXISTS", tokens, owner) == 0 or is_other or tonumber(changed_at) > seen then
  return 0
end
redis.call("HSET", named, name, token)
for _, name in ipairs(redis.call("SMEMBERS", topics)) do
  redis.call("SREM", of_topic(name), token)
end
redis.call("DEL", topics)
for _, name in ipairs(wanted) do
  redis.call("SADD", of_topic(name), token)
end
for first = 1, #wanted, 1000 do  -- Lua takes some thousand values at once
  redis.call("SADD", topics, unpack(wanted, first, math.min(first + 999, #wanted)))
end
local is_new = redis.call("SADD", subscribers, token) == 1
local kept = redis.call("HMGET", subscriber, "callback", "disabled_at")
redis.call("HSET", subscriber, unpack(fields))
local is_enabled = (kept[2] or "0") ~= "0" and redis.call("HGET", subscriber, "disabled_at") == "0"
local is_anew = is_new or kept[1] ~= fields[2] or is_enabled
redis.call("HSETNX", subscriber, "health_points", 100)

-- What bulk delivery of a subscriber that is live again has yet to do stays, but for topics that are not wanted now.
local is_wanted = {}
for _, name in ipairs(wanted) do
  is_wanted[name] = true
end
for _, field in ipairs(redis.call("HKEYS", bulk)) do
  local kind, name = string.match(field, "^(%a+):(.*)$")
  local is_end = kind == "until" or kind == "count"
  if (is_end and #shards > 0) or ((kind == "topic" or kind == "passed") and not is_wanted[name]) then
    redis.call("HDEL", bulk, field)
  end
end
if #shards > 0 and redis.call("EXISTS", bulk) == 0 then
  redis.call("HSET", bulk, unpack(shards))
  redis.call("SADD", in_bulk, token)
end
for i = 1, #starts, 2 do
  if redis.call("HSETNX", bulk, "topic:" .. starts[i], starts[i + 1]) == 1 then
    redis.call("HDEL", bulk, "passed:" .. starts[i])
  end
end
local version = note_change("subscriber " .. token)
if is_new then
  redis.call("HSET", subscriber, "since", version)
end
if is_anew then
  redis.call("HSET", subscriber, "anew_since", version)
end
return version
