"""`doubledecker doctor`: whether this machine, its Redis and a bus that runs are fit, and how to mend what is not."""
