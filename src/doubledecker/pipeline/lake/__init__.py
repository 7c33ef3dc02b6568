"""The tables of the lake as Spark reads and writes them, and their maintenance."""
