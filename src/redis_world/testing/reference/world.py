"""`ReferenceWorld`: the contract in plain Python, in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from redis_world.codec import Duration, to_duration_ms
from redis_world.config import WorldConfig
from redis_world.errors import InvalidInputError
from redis_world.testing.reference.events import ReferenceEvents
from redis_world.testing.reference.queue import ReferenceQueue
from redis_world.testing.reference.reads import (
    ReferenceHooks,
    ReferenceRuns,
    ReferenceSteps,
    ReferenceWaits,
)
from redis_world.testing.reference.retention import clean, prune
from redis_world.testing.reference.state import TERMINAL, State
from redis_world.testing.reference.streams import ReferenceStreams
from redis_world.testing.reference.sweep import sweep

__all__ = ["ReferenceWorld"]


class ReferenceWorld:
    """A World in plain Python, with the calls, answers and errors of `RedisWorld`.

    It takes the place of a `RedisWorld` in unit tests that want neither a server nor Lua, and
    whose clock is theirs::

        now = datetime(2030, 1, 1, tzinfo=UTC)
        async with ReferenceWorld(clock=lambda: now) as world:
            await order_service(world)
            now += timedelta(hours=1)
            await world.sweep()

    It is written to be read, not to be fast: it looks at all that it has to find what it needs.
    It knows no other process, no connection that breaks and no thread but its own; each has its
    own memory, and forgets it with itself. Live readers of streams and waiters for runs belong to
    one event loop.

    Args:
        clock: tells the present time, by which everything is judged and dated, cut to
            milliseconds; by default the computer's.
        options: see `WorldConfig`; those of the connection and of keys mean nothing here.

    Raises:
        ConfigurationError: an option is unknown or out of range; the text names it.

    Attributes:
        events: the event log, and the only way to change anything.
        runs: reads runs. Likewise `steps`, `hooks` and `waits`.
        queue: messages that wake runs.
        streams: logs of binary chunks.
    """

    def __init__(self, *, clock: Callable[[], datetime] | None = None, **options: Any) -> None:
        self.config = WorldConfig.create(**options)
        self._state = State(self.config, clock)
        self.events = ReferenceEvents(self._state)
        self.runs = ReferenceRuns(self._state, self.events)
        self.steps = ReferenceSteps(self._state)
        self.hooks = ReferenceHooks(self._state)
        self.waits = ReferenceWaits(self._state)
        self.queue = ReferenceQueue(self._state)
        self.streams = ReferenceStreams(self._state)

    async def open(self) -> Self:
        """Do nothing: it is always open."""
        return self

    async def sweep(self) -> dict[str, int]:
        """Do one round of what nobody else does.

        It frees lost leases, sends missing messages, and removes what has had its time.

        Returns:
            How many of each were recovered: `expired_leases`, `queued_steps`, `woken_runs`; and
            how many have gone: `expired_hooks`, `removed_runs`.
        """
        return {**sweep(self._state), **clean(self._state)}

    async def prune(
        self,
        older_than: Duration,
        *,
        status: str | Sequence[str] = TERMINAL,
        dry_run: bool = False,
        on_progress: Callable[[int, int], None] | None = None,  # noqa: ARG002 - it is done at once
    ) -> int:
        """Remove runs that ended a while ago, whatever this World's `retention` is.

        Args:
            older_than: how long ago they ended at least.
            status: the terminal statuses of which they are.
            dry_run: only count them.
            on_progress: accepted and ignored.

        Returns:
            How many have gone, or would.

        Raises:
            InvalidInputError: a status is not terminal, or the age is negative.
        """
        wanted = {status} if isinstance(status, str) else {*status}
        if not wanted <= {*TERMINAL}:
            raise InvalidInputError(f"{status!r} is no terminal status")
        age = to_duration_ms(older_than, "older_than")
        return prune(self._state, age, wanted, dry_run=dry_run)

    async def aclose(self) -> None:
        """Do nothing: what was stored stays readable."""

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
