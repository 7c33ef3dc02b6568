"""The lake without Spark: its rows, how far its tables have come, and reads that touch few files."""
