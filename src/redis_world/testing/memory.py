"""An embedded World for one test."""

from __future__ import annotations

import secrets
from typing import Any

from redis_world.world import RedisWorld

__all__ = ["memory_world"]


def memory_world(**options: Any) -> RedisWorld:
    """Create a World in memory that shares its data with no other World."""
    return RedisWorld(f"memory://{secrets.token_hex(8)}", **options)
