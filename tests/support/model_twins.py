"""A RedisWorld and a ReferenceWorld that get the same calls at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

from redis_world import RedisWorld
from redis_world.errors import WorldError
from redis_world.testing import ManualClock, ReferenceWorld
from support.backends import Backend
from support.model_compare import Matching

AnyWorld: TypeAlias = RedisWorld | ReferenceWorld
Call: TypeAlias = Callable[[AnyWorld], Awaitable[Any]]

START: Final = datetime(2030, 1, 1, tzinfo=UTC)

T = TypeVar("T")


async def outcome(call: Awaitable[Any]) -> Any:
    """What a call answers, or the error that it raises on purpose."""
    try:
        return await call
    except WorldError as error:
        return error


class Twins:
    """Both Worlds, their clock, and the event loop that all calls run in."""

    def __init__(self, backend: Backend, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.redis = backend.world(library=ManualClock.library(), **options)
        self.clock = ManualClock(self.redis)
        self.reference = ReferenceWorld(clock=lambda: self.clock.now, **options)
        self._matching = Matching()
        self.run(self.redis.open())
        self.run(self.clock.set(START))

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def both(self, call: Call, what: str) -> tuple[Any, Any]:
        """Do the same in both Worlds; both answers, which are alike."""
        expected = self.run(outcome(call(self.reference)))
        actual = self.run(outcome(call(self.redis)))
        self._matching.check(expected, actual, what)
        return expected, actual

    def each(self, in_reference: Awaitable[Any], in_redis: Awaitable[Any], what: str) -> Any:
        """The same, where the calls differ in ids; the expected answer."""
        expected = self.run(outcome(in_reference))
        self._matching.check(expected, self.run(outcome(in_redis)), what)
        return expected

    def all_of(self, calls: dict[str, Call]) -> None:
        """Do many reads, which on the server take few round trips."""

        async def together(world: AnyWorld) -> list[Any]:
            return await asyncio.gather(*(outcome(call(world)) for call in calls.values()))

        expected, actual = self.run(together(self.reference)), self.run(together(self.redis))
        for name, one, other in zip(calls, expected, actual, strict=True):
            self._matching.check(one, other, name)

    def close(self) -> None:
        self.run(self.redis.aclose())
        self.run(self.loop.shutdown_asyncgens())
        self.loop.close()
