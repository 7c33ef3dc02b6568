-- Add up the bytes of some of a subscriber's batches, the oldest first.
--
-- key token_index  batches:index:<token>  zset  one subscriber's batches by creation time
-- key sizes        batches:bytes          hash  payload bytes, by batch
-- arg first        int   how many of the oldest to pass over: those that were added up before
-- arg count_max    int   how many to look at
-- returns          {how many it looked at, their bytes}

local bids = redis.call("ZRANGE", token_index, first, first + count_max - 1)
local bytes = 0
for at = 1, #bids, 1000 do  -- Lua takes some thousand values at once
  for _, size in ipairs(redis.call("HMGET", sizes, unpack(bids, at, math.min(at + 999, #bids)))) do
    bytes = bytes + tonumber(size or 0)
  end
end
return {#bids, bytes}
