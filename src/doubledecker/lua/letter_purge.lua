-- Destroy dead letters. Lanes of an ordered subscriber that they hold are let go.
--
-- uses registry_fence
-- uses letter_lanes
-- uses dead_letters
-- arg receiver      text  whose they are
-- arg ids           pack  which
-- arg bytes_enough  int   stop when so many bytes of them are gone
-- arg job           text  the job that wants it, empty for none
-- returns           {how many ids were gone through, 0 when the registry has changed since; how many of them were there}

if is_stale() then
  return {0, 0}
end
local gone, through = take_dead_letters(receiver, ids, bytes_enough)
count_for(job, #gone)
let_lanes_go(receiver, gone)
return {through, #gone}
