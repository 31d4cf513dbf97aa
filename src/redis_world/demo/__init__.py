"""A small order workflow that shows what a durable run is, live: `redis-world demo`."""
