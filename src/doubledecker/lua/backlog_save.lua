-- Replace what was measured of clients' backlogs; also when memory is full.
--
-- key waiting   clients:waiting  zset  bytes that wait in queues and batches, by client
-- key memory    memory           hash  client_bytes_max: how many may wait for one client; 0 is no bound
-- arg counts    pack  client and bytes, in turns
-- arg most      int   the bound
-- arg kept_ms   int   how long this holds if nobody measures again
-- returns       how many clients have something waiting

redis.call("DEL", waiting)
for i = 1, #counts, 2 do
  redis.call("ZADD", waiting, string.format("%d", counts[i + 1]), counts[i])
end
redis.call("PEXPIRE", waiting, kept_ms)
redis.call("HSET", memory, "client_bytes_max", string.format("%d", most))
return #counts / 2
