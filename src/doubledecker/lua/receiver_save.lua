-- Set how many permits receivers have in this partition and whether they are halted, and seat them accordingly.
--
-- uses registry_fence
-- uses job_bell
-- uses receiver_ring
-- uses receiver_notices
-- arg limits  pack  receiver, permits (0 if it is gone), the version with which it began anew, its halt, how far apart its calls
--                   begin, …
-- returns     1, or 0 when the registry has changed since

if is_stale() then
  return 0
end
for i = 1, #limits, 5 do
  local it = read_receiver(limits[i])
  notice_halt(it, limits[i + 3])
  it.limit, it.halt = limits[i + 1], limits[i + 3]
  set_pace(it, limits[i + 4])
  if it.limit == 0 or it.anew_since ~= limits[i + 2] then
    begin_anew(it, limits[i + 2])
  end
end
save_receivers()
if is_news or is_sooner then
  ring_bell(hungry)
end
return 1
