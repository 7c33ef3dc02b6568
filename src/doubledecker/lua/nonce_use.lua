-- Mark a count of a Digest nonce as used; the nonce is forgotten when it can be used no longer.
--
-- key counts       nonce:<nonce>  string  a bit for each count that was used
-- arg count        int  the count
-- arg lifetime_ms  int  for how long the nonce is remembered
-- returns          1 if it was used before, else 0

local used = redis.call("SETBIT", counts, count, 1)
redis.call("PEXPIRE", counts, lifetime_ms)
return used
