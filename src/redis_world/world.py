"""`RedisWorld`: storage, queue and streams of durable workflows on one Redis."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import redis.asyncio

from redis_world.codec import Duration, to_duration_ms
from redis_world.config import WorldConfig, url_or_env
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
from redis_world.sweeper import Sweeper, record_sweep
from redis_world.values import flag, shown
from redis_world.waits import Waits

__all__ = ["RedisWorld"]

_PARTITIONS_AT_ONCE: Final = 16
"""How many are swept at a time."""
_SLOT_SECONDS: Final = 1.0
"""How long a partition counts as one of them."""


class RedisWorld:
    """A World on Redis or Valkey.

    Use it with `async with`, or without: then the first call opens it, and `aclose` closes it. One
    World is enough for a process. Any number of threads and event loops may use it at once, and a
    forked process may, too. Each event loop has separate connections, which close with the loop. A
    forked process does not touch the connections of its parent.

    `aclose` and the end of `async with` close the World for all threads and loops. After that,
    calls, stream readers and waiters raise `WorldClosedError`. A new `async with` opens it again.

    Args:
        url: `redis://`, `rediss://` or `unix://` as in redis-py; `redis+cluster://host:port,...`;
            `redis+sentinel://host:port,.../service`; or `memory://<name>` for the embedded store
            of this process. `valkey` may replace `redis`, and `valkeys` `rediss`.
        client: a `redis.asyncio.Redis` instead of a URL. The World uses its server and settings;
            its owner closes it.
        library: scripts to use instead of those of this package, for tests.
        options: see `WorldConfig`.

    Raises:
        ConfigurationError: an option, the URL or the client is invalid; the text tells why.

    Attributes:
        events: the event log. Only events change runs, steps, hooks and waits.
        runs: reads runs. So do `steps`, `hooks` and `waits` for theirs.
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
            raise ConfigurationError(f"library must be a ScriptLibrary, not {shown(library)}")
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
        """Make a World from `REDIS_WORLD_URL` and `REDIS_WORLD_<OPTION>`; keywords override them.

        Raises:
            ConfigurationError: there is no URL, or an option or the URL is invalid, or a variable
                looks like a misspelled option. For an embedded store, `memory://` must be given.
        """
        url = options.pop("url", None)
        config = WorldConfig.from_env(**options)
        return cls(
            url_or_env(url), **{name: getattr(config, name) for name in config.model_fields_set}
        )

    @property
    def connection(self) -> Connection:
        """Runs commands and scripts, for workers and tools of this package."""
        return self._connection

    @property
    def is_memory(self) -> bool:
        """Whether this is the embedded store, which only this process can see."""
        return self._connection.is_memory

    async def open(self) -> Self:
        """Connect to the server, check it, and create the namespace if it is new.

        Raises:
            ConfigurationError: the server or the namespace does not match; the text tells why.
            WorldClosedError: the World was closed.
            WorldUnavailableError: the server can't be reached.
        """
        await self._connection.open()
        return self

    async def sweep(self) -> dict[str, int]:
        """Do one round of recovery and removal (contract, sections 5 and 7).

        It ends the leases of lost workers. It sends messages that are missing since
        `sweep_interval`. It wakes live runs that have had no message for as long and do not wait
        for a hook. It removes expired hooks, and runs that ended longer ago than `retention`.

        One worker of a namespace sweeps without being asked. Any process may sweep at any time.

        Returns:
            How many were recovered: `expired_leases`, `queued_steps`, `woken_runs`; and how many
            were removed: `expired_hooks`, `removed_runs`.

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
        await record_sweep(self._connection)
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
        """Remove runs by the time since their end, independently of `retention`.

        It removes a run with its log, steps, streams and messages. A run stays as long as one of
        its hooks is retained (contract, section 5, Hook retention).

        Args:
            older_than: the minimum time since their end.
            status: only runs with these terminal statuses.
            dry_run: count them, and remove nothing.
            on_progress: called with the number of runs examined and the number removed.

        Returns:
            How many runs were removed, or would be with `dry_run`.

        Raises:
            InvalidInputError: a status is not terminal, or the age is negative.
            WorldUnavailableError: some partitions could not be reached; the runs of all others
                were removed.
        """
        wanted = check_terminal(status)
        age = to_duration_ms(older_than, "older_than")
        dry_run = flag(dry_run, "dry_run")
        if on_progress is not None and not callable(on_progress):
            raise InvalidInputError(f"on_progress must be a function, not {shown(on_progress)}")
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
        """Close the World for all threads and event loops.

        Running calls of this loop finish first. Other loops close their connections as soon as
        they can.
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
