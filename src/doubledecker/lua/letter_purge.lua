-- Destroy dead letters.
--
-- uses dead_letters
-- arg receiver  text  whose they are
-- arg ids       pack  which
-- returns       how many of them were there

return #take_dead_letters(receiver, ids)
