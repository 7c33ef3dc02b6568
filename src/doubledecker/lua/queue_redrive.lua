-- Bring dead letters back to life, each to its old place in its own line, with all its attempts before it.
--
-- uses registry_fence
-- uses queue_dead
-- arg  ids           pack  the dead letters
-- arg  bytes_enough  int   stop when so many bytes of them came back
-- arg  job           text  the job that wants it, empty for none
-- returns            {how many ids were gone through, 0 when the registry has changed since; how many of them were there}

if is_stale() then
  return {0, 0}
end
local letters, through = take_dead_letters(as_receiver, ids, bytes_enough)
for _, letter in ipairs(letters) do
  letter.event = mark_redriven(letter.event)
  revive(letter, 1, letter.attempts)
end
count_for(job, #letters)
return_all()
conclude()
return {through, #letters}
