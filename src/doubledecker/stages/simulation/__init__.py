"""Rehearsal: the same stages in virtual time, with made-up traffic and dependencies."""
