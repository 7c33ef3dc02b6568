"""The rules of the bus: who may publish, who receives, what happens after an attempt."""
