"""The techniques: one file each, with its idea told on top."""
