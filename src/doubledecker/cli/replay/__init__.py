"""`doubledecker replay`, `replays` and `erase`."""
