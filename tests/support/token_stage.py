"""Worlds of one namespace whose clients take turns; each of its partitions has its own clock."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace
from typing import Final
from unittest import mock

import redis

import redis_world.tokens
from redis_world import RedisWorld
from redis_world.keys import Keys
from redis_world.lua import ScriptLibrary
from redis_world.testing import ManualClock
from support.backends import Backend
from support.token_scheduler import Scheduler

__all__ = ["SkewedClock", "Stage", "staged"]

BEGIN: Final = datetime(2030, 1, 1, tzinfo=UTC)
WORLDS: Final = 3


class SkewedClock(ManualClock):
    """One clock to a partition, each off by its own seconds."""

    def __init__(self, worlds: list[RedisWorld], skews: list[int]) -> None:
        super().__init__(worlds[0])
        self._worlds = worlds
        self._skews = skews

    def of(self, keys: Keys) -> int:
        """The time of a partition, in ms."""
        return self._now + self._skews[keys.number] * 1000

    async def _store(self) -> None:
        await super()._store()
        connection = self._world.connection
        await connection.execute(
            *(("SET", f"{keys.base}clock", str(self.of(keys))) for keys in connection.partitions)
        )
        for world in self._worlds:
            world.connection.observe_server_time(self._now)


@dataclass
class Stage:
    """Worlds of one namespace whose clients take turns.

    Attributes:
        worlds: all alike.
        scheduler: before all of them.
        clock: theirs.
        client: a plain one, to look behind their backs.
    """

    worlds: list[RedisWorld]
    scheduler: Scheduler
    clock: SkewedClock
    client: redis.Redis


@contextlib.asynccontextmanager
async def staged(
    backend: Backend,
    *,
    partitions: int,
    skew: int = 0,
    library: ScriptLibrary | None = None,
    tokens: ModuleType = redis_world.tokens,
) -> AsyncIterator[Stage]:
    """Open some Worlds of one namespace, behind one scheduler.

    Args:
        backend: where they are.
        partitions: theirs.
        skew: by how many seconds, at most, the clock of a partition is off; the same every time.
        library: other scripts, on a manual clock.
        tokens: another protocol than that of `redis_world.tokens`.
    """
    namespace, scheduler = backend.namespace(), Scheduler()
    library = library or ManualClock.library()
    chance = random.Random(skew)
    skews = [chance.randint(-skew, skew) for _ in range(partitions)]
    async with contextlib.AsyncExitStack() as stack:
        worlds = [
            await stack.enter_async_context(
                backend.world(namespace=namespace, library=library, partitions=partitions)
            )
            for _ in range(WORLDS)
        ]
        for world in worlds:
            scheduler.adopt(world)
        client = stack.enter_context(contextlib.closing(backend.client()))
        stack.enter_context(_protocol(tokens, scheduler))
        clock = SkewedClock(worlds, skews)
        await clock.set(BEGIN)
        yield Stage(worlds, scheduler, clock, client)


@contextlib.contextmanager
def _protocol(tokens: ModuleType, scheduler: Scheduler) -> Iterator[None]:
    """Use this protocol, and have its pauses take turns, too."""
    turns = SimpleNamespace(sleep=scheduler.sleep, gather=asyncio.gather)
    with (
        mock.patch("redis_world.events.create_hook", tokens.create_hook),
        mock.patch("redis_world.janitor.release_stale", tokens.release_stale),
        mock.patch.object(tokens, "asyncio", turns),
    ):
        yield
