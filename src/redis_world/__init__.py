"""A World for durable workflows on Redis: one event, one Lua script, one round trip."""

from redis_world.world import RedisWorld

__all__ = ["RedisWorld", "__version__"]

__version__ = "0.1.0"
