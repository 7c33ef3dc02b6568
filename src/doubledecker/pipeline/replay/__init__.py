"""Replays: past events are sent again to one target."""
