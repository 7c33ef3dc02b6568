"""An event bus over HTTP: publish once, deliver in batches, lose nothing."""

__version__ = "0.2.0.dev0"
