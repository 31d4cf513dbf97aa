"""Days of sparse messages, over a network that drops idle connections without a word.

The clock of the server is set, and runs at the pace of the real one only around the time of a
message: so 48 hours pass in some minutes. `make chaos` runs the long form.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.testing import CuttingProxy, ManualClock, check_invariants, cutting_proxy
from redis_world.worker import Worker
from support.backends import KINDS, Backend
from support.queue_tools import NAME, TOPIC, content

IS_LONG = os.environ.get("REDIS_WORLD_CHAOS") == "long"
SPAN: Final = timedelta(hours=48)
MESSAGES: Final = 60 if IS_LONG else 3
LATE: Final = timedelta(seconds=4)
"""A look of an idle worker, whose notification went with its connection, and a second."""
BEFORE: Final = timedelta(seconds=2)
"""From when on before a message is due the clock runs at the real pace: workers look once a
second, and know the time of the next message by then."""
TICK: Final = 0.01


class PacedClock:
    """The server's clock: stands still, jumps, or runs at the real pace.

    While the machine is busy with something else it hardly runs: a worker that gets no time is
    not late by that.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    @property
    def now(self) -> datetime:
        return self._clock.now

    async def jump(self, moment: datetime) -> None:
        if moment > self.now:
            await self._clock.advance(moment - self.now)

    async def run_until(self, done: asyncio.Event, end: datetime) -> None:
        """Run until something is done, or to this moment."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while not done.is_set() and self.now < end:
            await asyncio.sleep(TICK)
            now = loop.time()
            await self.jump(self.now + timedelta(seconds=min(now - last, 2 * TICK)))
            last = now


class Handler:
    """Notes when each message came."""

    def __init__(self, clock: PacedClock) -> None:
        self._clock = clock
        self.came: dict[int, datetime] = {}
        self.events: dict[int, asyncio.Event] = {}

    async def __call__(self, payload: dict[str, Any], **_: Any) -> None:
        number = payload["number"]
        assert number not in self.came, "twice"
        self.came[number] = self._clock.now
        self.events[number].set()


@contextlib.asynccontextmanager
async def at_work(world: RedisWorld, handler: Handler) -> Any:
    worker = Worker(world, {TOPIC: handler}, lease=600)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task


@pytest.mark.parametrize("real_backend", KINDS[1:] if IS_LONG else ["redis7"], indirect=True)
@pytest.mark.parametrize("dropped", [True, False] if IS_LONG else [True])
async def test_no_message_is_late(real_backend: Backend, dropped: bool) -> None:
    """By more than a look after its time, by the server's clock; none is early."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)
    namespace = real_backend.namespace()
    library = ManualClock.library()
    async with (
        real_backend.world(namespace=namespace, library=library) as direct,
        cutting_proxy(real_backend.url) as proxy,
        RedisWorld(proxy.url, namespace=namespace, library=library) as world,
    ):
        clock = PacedClock(await ManualClock(direct).set())
        handler = Handler(clock)
        begin = clock.now
        due: dict[int, datetime] = {}
        for number in range(MESSAGES):
            # One of them comes late in the span, whatever the others do.
            earliest = SPAN / 2 if number == 0 else timedelta()
            delay = earliest + chance.random() * (SPAN - earliest)
            due[number] = begin + timedelta(milliseconds=delay // timedelta(milliseconds=1))
            handler.events[number] = asyncio.Event()
            await direct.queue.send(NAME, content(number), delay=due[number] - begin)
        async with at_work(world, handler):
            for number, moment in sorted(due.items(), key=lambda item: item[1]):
                await clock.jump(moment - BEFORE)
                if dropped:
                    drop_some(proxy, chance)
                await clock.run_until(handler.events[number], moment + 2 * LATE)
                assert number in handler.came, "it did not come at all"
                assert moment <= handler.came[number] <= moment + LATE
        assert len(handler.came) == MESSAGES
        assert clock.now - begin > SPAN / 4
        await check_invariants(direct)


def drop_some(proxy: CuttingProxy, chance: random.Random) -> None:
    """Forget the connections, now or at any moment until the message is due."""
    loop = asyncio.get_running_loop()
    loop.call_later(chance.uniform(0, 2), proxy.forget_connections)
