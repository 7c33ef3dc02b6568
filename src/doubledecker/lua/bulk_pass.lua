-- Let shards of bulk delivery pass what holds nothing for their subscriber.
--
-- key ledger   <ledger>  hash  how far each shard has come
-- arg steps    pack  shard, where it stood, where it stands now, …
-- returns      how many were where the caller expected them

local moved = 0
for i = 1, #steps, 3 do
  if redis.call("HGET", ledger, steps[i]) == steps[i + 1] then
    redis.call("HSET", ledger, steps[i], steps[i + 2])
    moved = moved + 1
  end
end
return moved
