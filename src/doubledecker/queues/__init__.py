"""Fair queues: pulling over all partitions, waiting for messages, and consuming next to Redis."""
