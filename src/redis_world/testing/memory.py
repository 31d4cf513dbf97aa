"""An embedded World of its own."""

from __future__ import annotations

import secrets
from typing import Any

from redis_world.world import RedisWorld

__all__ = ["memory_world"]


def memory_world(**options: Any) -> RedisWorld:
    """A World in memory that no other one shares: `async with memory_world() as world`."""
    return RedisWorld(f"memory://{secrets.token_hex(8)}", **options)
