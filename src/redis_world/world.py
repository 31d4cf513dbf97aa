"""`RedisWorld`: storage, queue and streams of durable workflows on one Redis."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import redis.asyncio

from redis_world.codec import Duration, to_duration_ms
from redis_world.config import ENVIRONMENT_PREFIX, WorldConfig
from redis_world.connection import Connection
from redis_world.errors import (
    ConfigurationError,
    InvalidInputError,
    WorldError,
    WorldUnavailableError,
)
from redis_world.events import Events
from redis_world.hooks import Hooks
from redis_world.ids import IdFactory
from redis_world.janitor import Janitor
from redis_world.keys import Keys
from redis_world.lua import ScriptLibrary, default_library
from redis_world.queue import Queue
from redis_world.runs import TERMINAL, Runs, check_terminal
from redis_world.scatter import complete, raise_worst
from redis_world.steps import Steps
from redis_world.streams import Streams
from redis_world.sweeper import Sweeper
from redis_world.values import flag, shown
from redis_world.waits import Waits

__all__ = ["RedisWorld"]

DEFAULT_URL: Final = "memory://"
_PARTITIONS_AT_ONCE: Final = 16
"""How many are swept at a time."""
_SLOT_SECONDS: Final = 1.0
"""How long a partition counts as one of them."""


class RedisWorld:
    """A World on Redis or Valkey.

    An async context manager; usable without one too: it opens at the first call and closes by
    `aclose`. One World does for a process: any number of threads and event loops may use it at
    once, and so may a process that was forked from it. Each event loop has connections of its
    own, which are closed with the loop; a forked process leaves those of its parent alone.

    `aclose` and the end of `async with` close the World for all threads and loops. From then on
    calls raise `WorldClosedError`, and so do readers of streams and waiters that were left behind.
    A further `async with` opens it again.

    Args:
        url: `redis://`, `rediss://` or `unix://` as redis-py has them, or `memory://<name>` for
            the embedded store of this process.
        client: a ready `redis.asyncio.Redis` instead, whose server and settings are used; its
            owner closes it.
        library: other scripts than the ones of this package, for tests.
        options: see `WorldConfig`.

    Raises:
        ConfigurationError: an option, the URL or the client can't be used; the text says why.

    Attributes:
        events: the event log, and the only way to change anything.
        runs: reads runs. Likewise `steps`, `hooks` and `waits`.
        queue: messages that wake runs.
        streams: logs of binary chunks.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client: redis.asyncio.Redis | None = None,
        library: ScriptLibrary | None = None,
        **options: Any,
    ) -> None:
        self.config = WorldConfig.create(**options)
        if library is None:
            library = default_library()
        elif not isinstance(library, ScriptLibrary):
            raise ConfigurationError(f"library is a ScriptLibrary, not {shown(library)}")
        self._connection = Connection(
            url=url,
            client=client,
            config=self.config,
            library=library,
        )
        ids = IdFactory()
        self.events = Events(self._connection, ids)
        self.runs = Runs(self._connection)
        self.steps = Steps(self._connection)
        self.hooks = Hooks(self._connection)
        self.waits = Waits(self._connection)
        self.queue = Queue(self._connection, ids)
        self.streams = Streams(self._connection)
        self._ids = ids
        self._sweepers: dict[int, Sweeper] = {}

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """A World of `REDIS_WORLD_URL` and `REDIS_WORLD_<OPTION>`; keywords win.

        Without a URL it is the embedded store, `memory://`.
        """
        url = options.pop("url", None) or os.environ.get(ENVIRONMENT_PREFIX + "URL", DEFAULT_URL)
        config = WorldConfig.from_env(**options)
        return cls(url, **{name: getattr(config, name) for name in config.model_fields_set})

    @property
    def connection(self) -> Connection:
        """The commands and scripts below, for workers and tools of this package."""
        return self._connection

    @property
    def is_memory(self) -> bool:
        """Whether this is the embedded store, which nobody outside of the process sees."""
        return self._connection.is_memory

    async def open(self) -> Self:
        """Reach the server, check it, and pin the namespace.

        Raises:
            ConfigurationError: the server or the namespace does not fit; the text says why.
            WorldClosedError: it was closed.
            WorldUnavailableError: the server can't be reached.
        """
        await self._connection.open()
        return self

    async def sweep(self) -> dict[str, int]:
        """Do one round of what nobody else does (contract, section 7).

        It frees the leases of workers that are gone, sends the messages that events of
        `sweep_interval` ago still lack, and wakes live runs that have had no message for so long
        and wait for no hook. Any process may do it at any time; workers do it anyway.

        And it removes what has had its time (section 5): hooks that outlived their run, and runs
        that ended longer ago than `retention`.

        Returns:
            How many of each were recovered: `expired_leases`, `queued_steps`, `woken_runs`; and
            how many have gone: `expired_hooks`, `removed_runs`.

        Raises:
            WorldUnavailableError: some partitions could not be swept; all others were.
        """
        # Some at a time, each time in another order: a namespace may have a thousand partitions,
        # and whoever sweeps may be stopped before the last of them.
        partitions = [*self._connection.partitions]
        random.shuffle(partitions)
        slots = asyncio.Semaphore(_PARTITIONS_AT_ONCE)
        total: Counter[str] = Counter()
        for found in await complete([self._sweep(keys, slots) for keys in partitions]):
            total.update(found)
        return dict(total)

    async def _sweep(self, keys: Keys, slots: asyncio.Semaphore) -> dict[str, int]:
        async with slots:
            sweeping = asyncio.create_task(self._sweep_one(keys))
            try:
                # One that takes long makes room: those on a node that hangs would take up all.
                await asyncio.wait({sweeping}, timeout=_SLOT_SECONDS)
            except asyncio.CancelledError:
                sweeping.cancel()
                raise
        return await sweeping

    async def _sweep_one(self, keys: Keys) -> dict[str, int]:
        janitor = Janitor(self._connection, keys)
        sweeper = self._sweepers.setdefault(
            keys.number, Sweeper(self._connection, keys, self._ids)
        )
        began = time.monotonic()
        try:
            recovered = await sweeper.sweep()
        except WorldError:
            # A server without memory refuses messages at once, and the janitor makes room. One
            # that was tried for long is away.
            if time.monotonic() - began < _SLOT_SECONDS:
                await janitor.clean()
            raise
        return {**recovered, **await janitor.clean()}

    async def prune(
        self,
        older_than: Duration,
        *,
        status: str | Sequence[str] = TERMINAL,
        dry_run: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Remove runs that ended a while ago, whatever this World's `retention` is.

        With a run all that belongs to it goes: log, steps, streams, messages. A run stays as long
        as one of its hooks has to (contract, section 5, Hook retention).

        Args:
            older_than: how long ago they ended at least.
            status: the terminal statuses of which they are.
            dry_run: only count them.
            on_progress: called with how many were looked at and how many of them have gone.

        Returns:
            How many have gone, or would.

        Raises:
            InvalidInputError: a status is not terminal, or the age is negative.
            WorldUnavailableError: some partitions could not be reached; what was due in all
                others has gone.
        """
        wanted = check_terminal(status)
        age = to_duration_ms(older_than, "older_than")
        dry_run = flag(dry_run, "dry_run")
        if on_progress is not None and not callable(on_progress):
            raise InvalidInputError(f"on_progress is a function, not {shown(on_progress)}")
        seen = gone = 0
        failed: list[BaseException | None] = []
        for keys in self._connection.partitions:
            janitor = Janitor(self._connection, keys)
            try:
                async for runs in janitor.finished(age):
                    ids = [run.run_id for run in runs if run.status in wanted]
                    gone += sum(await janitor.remove(ids, age, "look" if dry_run else ""))
                    seen += len(runs)
                    if on_progress is not None:
                        on_progress(seen, gone)
                failed.append(None)
            except WorldUnavailableError as error:
                failed.append(error)
        raise_worst(failed)
        return gone

    async def aclose(self) -> None:
        """Close what this World opened, for all threads and event loops.

        Calls that are under way in this loop are answered first. What belongs to other loops is
        closed there, as soon as they can.
        """
        try:
            await self.queue.release_claims()
        finally:
            await self._connection.aclose()

    async def __aenter__(self) -> Self:
        await self._connection.reopen()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
