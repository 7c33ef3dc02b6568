"""Everything kept in Redis, and the only package that talks to it."""
