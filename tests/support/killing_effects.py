"""Effects of steps: counted in the server, outside of any World's namespace."""

from __future__ import annotations

import functools
import os
from typing import Final

import redis
from vercel.workflow import get_step_metadata

__all__ = ["URL", "count_effect", "effect_key"]

URL: Final = "REDIS_WORLD_TEST_EFFECTS"
"""The variable that names the server to workers."""


def effect_key(run_id: str, step_id: str) -> str:
    return f"effect:{run_id}:{step_id}"


def count_effect() -> None:
    """Count that the body of the present step runs."""
    step = get_step_metadata()
    _client().incr(effect_key(step.run_id, step.step_id))


@functools.cache
def _client() -> redis.Redis:
    """A connection that has nothing to do with the World's, made after the process was forked."""
    return redis.Redis.from_url(os.environ[URL])
