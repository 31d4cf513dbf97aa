"""`redis-world demo`."""
