"""Erasure: the events of a tenant or a key leave the lake."""
