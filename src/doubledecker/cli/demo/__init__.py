"""The demo that `doubledecker up` runs: a publisher and four receivers."""
