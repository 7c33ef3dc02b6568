"""Metrics: what landed, counted by minute and hour, topic and tenant, and summed up for reports."""
