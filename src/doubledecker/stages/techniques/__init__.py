"""The techniques: one file each, with its idea explained on top."""
