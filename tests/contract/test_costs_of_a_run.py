"""What a run costs the server: commands that its scripts call, counted by a real server.

Redis runs one script at a time, and the number of commands is what a script takes. So these
figures may only fall.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest
import redis

from redis_world import RedisWorld
from support import events as e
from support.backends import Backend
from support.commandstats import Counts

STEPS: Final = 10
PAYLOAD: Final = b"x" * 256
MOST: Final = {
    "run_created": 14,
    "run_started": 10,
    "step_created": 5,
    "step_started": 5,
    "step_completed": 6,
    "run_completed": 18,
}
"""Commands of each event in a run of ten steps, which brings no messages along."""


@pytest.fixture
def server(real_backend: Backend) -> Iterator[redis.Redis]:
    with contextlib.closing(real_backend.client()) as client:
        yield client


async def commands_of_each(world: RedisWorld, server: redis.Redis) -> dict[str, list[int]]:
    """What each event of a run of ten steps calls, by its type."""
    run_id = e.new_run_id()
    created = e.run_created(input=PAYLOAD)
    events = [created, e.event("run_started")]
    for number in range(STEPS):
        name = f"step_{number}"
        events += [e.step_created(name, input=PAYLOAD), e.step_started(name)]
        events += [e.step_completed(name, result=PAYLOAD)]
    events += [e.event("run_completed", output=PAYLOAD)]
    found: dict[str, list[int]] = {}
    for event in events:
        counts = Counts(server)
        await world.events.create(run_id, event, skip_preload=True)
        calls: Counter[str] = counts.commands()
        assert counts.scripts() == 1
        found.setdefault(event["eventType"], []).append(calls.total() - 1)
    return found


async def test_a_run_of_ten_steps(real_backend: Backend, server: redis.Redis) -> None:
    async with real_backend.world() as world:
        # What is asked for once is no matter of a run.
        await commands_of_each(world, server)
        found = await commands_of_each(world, server)
        assert {kind: max(each) for kind, each in found.items()} == MOST
