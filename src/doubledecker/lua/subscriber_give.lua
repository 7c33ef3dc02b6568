-- Make another client the owner of a subscriber, unless others have changed it meanwhile; what waits for it stays.
--
-- Calls to it as it was before say nothing of it: it begins anew.
--
-- uses registry_change
-- key tokens      api_tokens          hash  tokens as JSON, by id
-- key subscriber  subscriber:<token>  hash  what it asked for, and its health
-- key named       subscriptions:<of>  hash  a client's subscribers by name
-- key named_there subscriptions:<to>  hash  those of the other
-- arg token       text  the subscriber
-- arg of          text  its client
-- arg name        text  what its client calls it
-- arg to          text  the other client
-- arg seen        int   the registry's version by which this was decided
-- returns         the registry's new version, 0: it may have changed since, -1: no such client, -2: it has one of this name

local changed_at = redis.call("ZSCORE", changes, "subscriber " .. token) or redis.call("HGET", registry, "log_from") or 0
if redis.call("HGET", subscriber, "owner") ~= of or tonumber(changed_at) > seen then
  return 0
end
if redis.call("HEXISTS", tokens, to) == 0 then
  return -1
end
if redis.call("HEXISTS", named_there, name) == 1 then
  return -2
end
redis.call("HDEL", named, name)
redis.call("HSET", named_there, name, token)
local version = note_change("subscriber " .. token)
redis.call("HSET", subscriber, "owner", to, "anew_since", version)
return version
