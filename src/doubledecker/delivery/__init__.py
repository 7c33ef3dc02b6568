"""One attempt at a receiver: format it, post it, say how it went."""
