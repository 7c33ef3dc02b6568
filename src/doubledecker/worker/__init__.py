"""The process that delivers batches and does the chores."""
