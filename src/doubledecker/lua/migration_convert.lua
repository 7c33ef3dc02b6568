-- Write batches of format 1 anew: after the attempts the number of events, then the events as lines.
--
-- A batch that was written anew before is left as it is: an event is a JSON object, and a number is none.
--
-- key  migration    migration              hash  owner: the process that migrates
-- keys batch        batch:<bid>            list  token, creation time, attempts, number of events, then events as lines
-- keys token_index  batches:index:<token>  zset  one subscriber's batches by creation time
-- arg  owner        text  who migrates
-- arg  bids         pack  the batches
-- returns           {number of events, of each batch: its subscriber, or "" if it waits for nobody} or {} if another migrates

if redis.call("HGET", migration, "owner") ~= owner then
  return {}
end
local reply = {0}
for i, bid in ipairs(bids) do
  local parts = redis.call("LRANGE", batch(bid), 0, -1)
  local token, count = parts[1], parts[4]
  if count and string.sub(count, 1, 1) == "{" then
    count = #parts - 3
    redis.call("DEL", batch(bid))
    redis.call("RPUSH", batch(bid), token, parts[2], parts[3], count, table.concat(parts, "\n", 4))
  end
  reply[1] = reply[1] + (count or 0)
  -- What waited for a subscriber that is gone is set aside in another index, to be purged.
  reply[i + 1] = token and redis.call("ZSCORE", token_index(token), bid) and token or ""
end
return reply
