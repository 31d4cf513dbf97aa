"""Waiting for conditions, never for luck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

__all__ = ["until", "wait_until"]

_POLL = 0.002
_LIMIT = 30.0
"""Far more than anything takes: at its end the condition will never come true."""


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another task, thread or server brings about."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _LIMIT
    while not condition():
        if loop.time() > deadline:
            pytest.fail("the condition that the test waits for did not come true")
        await asyncio.sleep(_POLL)


def wait_until(condition: Callable[[], bool], limit: float = _LIMIT) -> None:
    """The same, for code that blocks; `limit` in seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("the condition that the test waits for did not come true")
        time.sleep(_POLL)
