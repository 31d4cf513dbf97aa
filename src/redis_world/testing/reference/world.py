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
from redis_world.values import shown

__all__ = ["ReferenceWorld"]


class ReferenceWorld:
    """A World in plain Python, with the calls, answers and errors of `RedisWorld`.

    It replaces a `RedisWorld` in unit tests that need no server and no Lua, and that set the
    clock::

        now = datetime(2030, 1, 1, tzinfo=UTC)
        async with ReferenceWorld(clock=lambda: now) as world:
            await order_service(world)
            now += timedelta(hours=1)
            await world.sweep()

    It is simple, not fast: it searches linearly. Each has separate memory, which ends with the
    object. Use it in one process and one thread. Live readers of streams and waiters for runs
    belong to one event loop.

    Args:
        clock: returns the current time, which is cut to milliseconds; by default the system clock.
        options: see `WorldConfig`; it ignores those of the connection and of keys.

    Raises:
        ConfigurationError: an option is unknown or out of range; the text names it.

    Attributes:
        events: the event log. Only events change runs, steps, hooks and waits.
        runs: reads runs. So do `steps`, `hooks` and `waits` for theirs.
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
        """Do one round of recovery and removal.

        It ends lost leases, sends missing messages, and removes expired hooks and runs.

        Returns:
            How many were recovered: `expired_leases`, `queued_steps`, `woken_runs`; and how many
            were removed: `expired_hooks`, `removed_runs`.
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
        """Remove runs by the time since their end, independently of `retention`.

        Args:
            older_than: the minimum time since their end.
            status: only runs with these terminal statuses.
            dry_run: count them, and remove nothing.
            on_progress: accepted and ignored.

        Returns:
            How many runs were removed, or would be with `dry_run`.

        Raises:
            InvalidInputError: a status is not terminal, or the age is negative.
        """
        wanted = {status} if isinstance(status, str) else {*status}
        if not wanted <= {*TERMINAL}:
            raise InvalidInputError(
                f"{shown(status)} is not a terminal status: use one of {', '.join(TERMINAL)}"
            )
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
