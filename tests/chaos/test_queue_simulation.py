"""Random operations on the queue, held against its invariants after every one of them.

`make chaos` runs the long form: 100 seeds of 2,000 operations, on every server.
"""

from __future__ import annotations

import contextlib
import os
import random
from typing import TypeVar

import pytest

from redis_world.queue import Message
from redis_world.testing import ManualClock
from support.backends import Backend
from support.queue_invariants import QueueState
from support.queue_simulation import Simulation
from support.queue_tools import (
    NAME,
    TOPIC,
    content,
    send,
    step,
    wake,
)

T = TypeVar("T")

IS_LONG = os.environ.get("REDIS_WORLD_CHAOS") == "long"
SEEDS = 100 if IS_LONG else 4


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_random_operations_keep_the_queue_in_order(backend: Backend, seed: int) -> None:
    operations = 2000 if IS_LONG else 300 if backend.is_memory else 150
    print(f"seed {seed}, {operations} operations")  # noqa: T201 - shown when it fails
    async with backend.world(
        library=ManualClock.library(), max_failures=3, max_lost_leases=4
    ) as world:
        clock = await ManualClock(world).set()
        await Simulation(world, clock, backend, seed).run(operations)


async def test_random_operations_without_one_replay_per_run(backend: Backend) -> None:
    """Only what serialized runs promise does not hold then."""
    async with backend.world(library=ManualClock.library(), serialize_runs=False) as world:
        clock = await ManualClock(world).set()
        chance = random.Random(5)
        leased: list[Message] = []
        for i in range(80):
            match chance.choice(["send", "send", "claim", "ack", "time"]):
                case "send":
                    await send(world, chance.choice([wake(), content(i), step()]))
                case "claim":
                    leased += await world.queue.claim(TOPIC, limit=2, lease=20)
                case "ack" if leased:
                    await world.queue.ack(leased.pop(chance.randrange(len(leased))))
                case _:
                    await clock.advance(3)
            with contextlib.closing(backend.client()) as client:
                state = QueueState(client, world.connection.keys.base)
            assert state.violations(serialized=False) == []
            assert "held" not in {place for places in state.places.values() for place in places}
        assert await world.queue.send(NAME, content("last")) is not None
