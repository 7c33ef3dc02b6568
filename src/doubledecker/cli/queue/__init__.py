"""`doubledecker queue`: queues registered, looked into, pulled from and emptied."""
