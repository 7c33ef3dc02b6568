"""`doubledecker simulate`: chains of stages rehearsed in virtual time."""
