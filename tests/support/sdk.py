"""The official Python SDK on a server: where it runs, and what its World is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from vercel import workflow as sdk
from vercel.workflow import Run
from vercel.workflow._internal import runtime
from vercel.workflow._internal import world as sdk_world

from redis_world import RedisWorld
from redis_world.models import Run as StoredRun
from redis_world.vercel import VercelWorld, use_redis_world
from redis_world.vercel.log_cache import DEFAULT_BYTES
from support import sdk_bootstrap, sdk_files
from support import sdk_flows as flows

__all__ = [
    "TESTS",
    "TOPICS",
    "Calls",
    "Site",
    "attach",
    "ended",
    "flows",
    "idle",
    "kept_modules",
    "kept_world",
    "settled",
    "until",
    "value_of",
    "workers",
]

T = TypeVar("T")

# Whoever imports this module has made Redis the World before the workflows were loaded.
assert sdk_bootstrap.ADAPTER.handlers

TOPICS: Final = ("__wkf_workflow_", "__orders_wkf_workflow_")
"""The topics of the registries in `support.sdk_flows`."""

TESTS: Final = Path(__file__).resolve().parents[1]
"""The folder from which worker processes find `support`."""

PATIENCE: Final = 200.0
"""Seconds after which what a test waits for will not come any more."""


@dataclass(frozen=True)
class Site:
    """A server with something that consumes: worker processes, or this one."""

    kind: str
    url: str
    namespace: str
    log_cache: int = DEFAULT_BYTES

    @property
    def is_memory(self) -> bool:
        return self.kind == "memory"

    @contextlib.asynccontextmanager
    async def adapter(self) -> AsyncIterator[VercelWorld]:
        """Make this server the SDK's World; where no worker processes are, work here."""
        with kept_world():
            adapter = attach(use_redis_world(self.url, namespace=self.namespace))
            worker = adapter.worker(shutdown_timeout=5.0, log_cache=self.log_cache)
            working = asyncio.create_task(worker.run()) if self.is_memory else None
            try:
                yield adapter
            finally:
                if working is not None:
                    worker.stop()
                    await working
                await adapter.aclose()


@contextlib.contextmanager
def kept_world() -> Iterator[None]:
    """Give the SDK back the World that it has now."""
    present = sdk_world.the_world
    try:
        yield
    finally:
        sdk_world.set_world(present)


@contextlib.contextmanager
def kept_modules() -> Iterator[None]:
    """Forget the modules that a test has made, whose names begin with `made_`."""
    modules, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if name.startswith("made_"):
                del sys.modules[name]


def attach(adapter: VercelWorld) -> VercelWorld:
    """Register the workflows, which were loaded under another World, with this one."""
    runtime.workflow_entrypoint(flows.app)
    runtime.workflow_entrypoint(flows.orders)
    return adapter


@contextlib.contextmanager
def workers(url: str, folder: Path, *, processes: int = 2) -> Iterator[str]:
    """Run worker processes for the length of a block; yields their namespace.

    They have to end by themselves, with exit code 0, when they are asked to.
    """
    namespace = f"sdk{secrets.token_hex(6)}"
    command = [sys.executable, "-m", "redis_world", "worker", flows.__name__]
    command += ["--processes", str(processes), "--shutdown-timeout", "5"]
    environment = {
        **os.environ,
        "REDIS_WORLD_URL": url,
        "REDIS_WORLD_NAMESPACE": namespace,
        sdk_files.FOLDER: str(folder),
    }
    log = folder / f"{namespace}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=TESTS, env=environment, stderr=output)
    try:
        yield namespace
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(PATIENCE)
        finally:
            process.kill()
    assert code == 0, log.read_text(encoding="utf-8", errors="replace")[-4000:]


# -- waiting -------------------------------------------------------------------------------


async def until(look: Callable[[], Awaitable[T]], *, what: str = "") -> T:
    """Look again and again until there is something true; it is the answer."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < deadline, f"it did not come: {what or look}"
        await asyncio.sleep(0.02)


async def hook_of(token: str) -> sdk.Hook:
    """Wait until there is a hook with this token."""

    async def look() -> sdk.Hook | None:
        with contextlib.suppress(sdk.HookNotFoundError):
            return await sdk.get_hook_by_token(token)
        return None

    found = await until(look, what="the hook")
    assert found is not None
    return found


async def ended(adapter: VercelWorld, run: Run[Any]) -> StoredRun:
    """Wait until a run is terminal."""
    stored = await adapter.world.runs.wait_for_terminal(run.run_id, timeout=PATIENCE)
    assert stored.status in ("completed", "failed", "cancelled"), stored.status
    return stored


async def value_of(adapter: VercelWorld, run: Run[T]) -> T:
    """Wait for a run, and take its value as the SDK gives it."""
    await ended(adapter, run)
    return await run.return_value()


async def settled(adapter: VercelWorld, *runs: Run[Any]) -> None:
    """Wait until no message of these runs is left; they must have ended."""
    world = adapter.world
    books = [world.connection.partitions.of(run.run_id).of_run(run.run_id).queue for run in runs]

    async def nothing_left() -> bool:
        (left,) = await world.connection.execute(("EXISTS", *books))
        return not left

    await until(nothing_left, what="the end of the last message")
    assert [(await world.queue.stats(topic)).dead for topic in TOPICS] == [0, 0]


async def idle(world: RedisWorld) -> None:
    """Wait until the queue is empty."""

    async def nothing_left() -> bool:
        stats = [await world.queue.stats(topic) for topic in TOPICS]
        return not any(s.ready or s.delayed or s.leased or s.held or s.dead for s in stats)

    await until(nothing_left, what="an empty queue")


# -- counting ------------------------------------------------------------------------------


_WATCHED: Final = ("events_create", "events_list", "queue")


@dataclass
class Calls:
    """What a World was asked for since `watch`."""

    methods: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """Event types whose creation raised an error."""

    @classmethod
    def watch(cls, adapter: VercelWorld) -> Calls:
        """Count the calls of this adapter from now on."""
        calls = cls()
        for name in _WATCHED:
            setattr(adapter, name, calls._counted(name, getattr(adapter, name)))
        return calls

    @property
    def summary(self) -> tuple[int, ...]:
        """How many events_create, events_list, queue."""
        return tuple(self.methods[name] for name in _WATCHED)

    def _counted(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(method)
        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.methods[name] += 1
            if name == "events_create":
                self.events[args[1].event_type] += 1
            try:
                return await method(*args, **kwargs)
            except Exception:
                if name == "events_create":
                    self.refusals[args[1].event_type] += 1
                raise

        return counted
