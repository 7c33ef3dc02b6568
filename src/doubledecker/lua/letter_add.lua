-- Keep a receiver's dead letters.
--
-- uses dead_letters
-- arg receiver  text  whose they are
-- arg letters   pack  a table each, as `add_dead_letter` takes it; at most 500
-- returns       how many were kept

for _, letter in ipairs(letters) do
  add_dead_letter(receiver, letter)
end
write_dead_letters()
return #letters
