"""The contract in plain Python: what `RedisWorld` is held against, and a double for tests."""

from redis_world.testing.reference.world import ReferenceWorld

__all__ = ["ReferenceWorld"]
