"""Bulk delivery: subscribers of the bulk tier are served from the lake."""
