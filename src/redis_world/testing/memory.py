"""An embedded World of its own."""

from __future__ import annotations

import secrets
from typing import Any

from redis_world.world import RedisWorld

__all__ = ["memory_world"]


def memory_world(**options: Any) -> RedisWorld:
    """Make a World in memory that no other one shares."""
    return RedisWorld(f"memory://{secrets.token_hex(8)}", **options)
