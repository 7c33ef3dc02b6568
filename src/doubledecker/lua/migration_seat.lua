-- Write receivers as format 2 has them: their lines, permits and failures, and where they are seated.
--
-- uses job_bell
-- uses receiver_ring
-- key migration  migration  hash  owner: the process that migrates
-- arg owner      text  who migrates
-- arg lines      pack  of each: receiver, permits, failures, when the next probe is due, when the first failure was, 1 if the
--                      line begins here, batches in order
-- returns        1, or 0 if another migrates

if redis.call("HGET", migration, "owner") ~= owner then
  return 0
end
for _, each in ipairs(lines) do
  local token, limit, failures, retry_at, failing_since, is_first, bids = unpack(each)
  if is_first == 1 then
    redis.call("DEL", line(token))
  end
  if #bids > 0 then
    redis.call("LPUSH", line(token), unpack(bids))
  end
  local it = read_receiver(token)
  it.limit, it.failures, it.retry_at, it.failing_since = limit, failures, retry_at, failing_since
end
save_receivers()
if is_news then
  ring_bell(hungry)
end
return 1
