"""Worlds as stores: what runs of ten steps cost when 64 callers write them at a time."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, TypeAlias
from unittest.mock import patch

from ulid import ULID

from peers.base import PAYLOAD, STEPS, MissingError, Peer, Round, Sample, event
from peers.servers import private_redis, server_version
from peers.watching import of_redis, watched
from redis_world import RedisWorld
from redis_world.testing.servers import ServerKind

__all__ = ["PEERS", "EmbeddedPeer", "LocalPeer", "RedisPeer"]

CALLERS: Final = 64
EVENTS: Final = 3 * STEPS + 3
TIMEOUT: Final = 600.0
"""Seconds after which a round is given up."""

WriteRun: TypeAlias = Callable[[], Awaitable[str]]
"""Writes one run from its creation to its end; returns its id."""
ReadRun: TypeAlias = Callable[[str], Awaitable[tuple[str, int]]]
"""Status of a run, and how many events its log has."""
Wire: TypeAlias = dict[str, Any]


# -- the runs ------------------------------------------------------------------------------


def _step_id(run_id: str, number: int) -> str:
    """As long as an SDK's, and the same as with the npm Worlds."""
    return f"{run_id.replace('wrun_', 'step_')}{number}"


def _events_of_steps(run_id: str) -> Iterator[tuple[Wire, Wire, Wire]]:
    for number in range(STEPS):
        name = _step_id(run_id, number)
        yield (
            event("step_created", name, stepName="s", input=PAYLOAD),
            event("step_started", name),
            event("step_completed", name, result=PAYLOAD),
        )


_START: Final[Wire] = {"deploymentId": "", "workflowName": "bench", "input": PAYLOAD}


async def one_by_one(world: RedisWorld) -> str:
    """Write a run with a call for each of its events."""
    create = world.events.create
    created = await create(None, event("run_created", **_START), resolve_data="none")
    assert created.run is not None
    run_id = created.run.run_id
    await create(run_id, event("run_started"), skip_preload=True, resolve_data="none")
    for events in _events_of_steps(run_id):
        for each in events:
            await create(run_id, each, resolve_data="none")
    await create(run_id, event("run_completed", output=PAYLOAD), resolve_data="none")
    return run_id


async def in_batches(world: RedisWorld) -> str:
    """Write the same log, step after step, in as few calls as the contract has.

    Those are 12: a run_started that brings along what makes the run; the end of a step together
    with the next one, which is born running; the end of the last step with that of the run.
    """
    run_id = f"wrun_{ULID()}"
    await world.events.create(
        run_id, event("run_started", **_START), skip_preload=True, resolve_data="none"
    )
    batch: list[Wire] = []
    for created, started, completed in _events_of_steps(run_id):
        await _write_batch(world, run_id, [*batch, created, started])
        batch = [completed]
    await _write_batch(world, run_id, [*batch, event("run_completed", output=PAYLOAD)])
    return run_id


async def _write_batch(world: RedisWorld, run_id: str, batch: list[Wire]) -> None:
    written = await world.events.create_batch(run_id, batch, resolve_data="none")
    # A batch does not raise what its events are refused for.
    refused = [result.message for result in written.results if result.status != 200]
    assert not refused, refused


# -- rounds --------------------------------------------------------------------------------


async def _measure(count: int, write: WriteRun, read: ReadRun) -> Sample:
    """Write so many runs, by as many callers as there are, and look at the last one."""
    left = iter(range(count))
    latencies: list[float] = []
    last = ""

    async def call() -> None:
        nonlocal last
        for _ in left:
            begun = time.perf_counter()
            last = await write()
            latencies.append(time.perf_counter() - begun)

    async with asyncio.timeout(TIMEOUT):
        begun = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(min(CALLERS, count))))
        seconds = time.perf_counter() - begun
        found = await read(last)
    assert found == ("completed", EVENTS), found
    return Sample(count, seconds, latencies)


@contextmanager
def _rounds(store: AbstractAsyncContextManager[tuple[WriteRun, ReadRun]]) -> Iterator[Round]:
    """Rounds in an event loop that lives as long as the peer, as its connections do."""
    with asyncio.Runner() as runner:
        write, read = runner.run(store.__aenter__())
        try:
            yield lambda count: runner.run(_measure(count, write, read))
        finally:
            runner.run(store.__aexit__(None, None, None))


@asynccontextmanager
async def _redis_world(
    url: str, write: Callable[[RedisWorld], Awaitable[str]]
) -> AsyncIterator[tuple[WriteRun, ReadRun]]:
    async with RedisWorld(url, namespace="bench") as world:

        async def read(run_id: str) -> tuple[str, int]:
            run = await world.runs.get(run_id, resolve_data="none")
            log = await world.events.list(run_id, resolve_data="none")
            return run.status, len(log.data)

        yield lambda: write(world), read


@asynccontextmanager
async def _local_world(folder: str) -> AsyncIterator[tuple[WriteRun, ReadRun]]:
    from vercel.workflow._internal import world as w
    from vercel.workflow._internal.worlds.local import LocalWorld

    # Its constructor looks at both: the first one would make it a client of a queue elsewhere.
    with patch.dict(os.environ, {"WORKFLOW_LOCAL_DATA_DIR": folder}):
        os.environ.pop("VERCEL_QUEUE_BASE_URL", None)
        world = LocalWorld()

    async def write() -> str:
        start = w.RunCreatedEventData(deployment_id="", workflow_name="bench", input=PAYLOAD)
        created = await world.events_create(None, start.into_event())
        assert created.run is not None
        run_id = created.run.run_id
        await world.events_create(run_id, w.RunStartedEvent())
        for number in range(STEPS):
            # Its calls never wait for anything: without this the 64 callers were one.
            await asyncio.sleep(0)
            name = _step_id(run_id, number)
            step = w.StepCreatedEventData(step_name="s", input=PAYLOAD)
            await world.events_create(run_id, step.into_event(name))
            await world.events_create(run_id, w.StepStartedEvent(correlation_id=name))
            result = w.StepCompletedEventData(result=PAYLOAD)
            await world.events_create(run_id, result.into_event(name))
        end = w.RunCompletedEvent(event_data=w.RunCompletedEventData(output=PAYLOAD))
        await world.events_create(run_id, end)
        return run_id

    async def read(run_id: str) -> tuple[str, int]:
        run = await world.runs_get(run_id)
        log = await world.events_list(run_id)
        return run.status, len(log.data)

    yield write, read


# -- the peers -----------------------------------------------------------------------------


@dataclass
class RedisPeer:
    """RedisWorld on a private server of one kind."""

    name: str
    kind: ServerKind
    write: Callable[[RedisWorld], Awaitable[str]] = one_by_one
    _server: str = ""

    @contextmanager
    def start(self) -> Iterator[Round]:
        with private_redis(self.kind) as server:
            self._server = server_version(server)
            with (
                _rounds(_redis_world(server.url, self.write)) as measure,
                of_redis(server) as look,
            ):
                yield watched(measure, look)

    def version(self) -> str:
        return f"{version('redis-world')}, {self._server}"


@dataclass
class EmbeddedPeer:
    """RedisWorld on the server that is emulated in the process."""

    name: str = "RedisWorld, embedded"

    def start(self) -> AbstractContextManager[Round]:
        return _rounds(_redis_world(f"memory://{secrets.token_hex(6)}", one_by_one))

    def version(self) -> str:
        return f"{version('redis-world')}, fakeredis {version('fakeredis')}"


@dataclass
class LocalPeer:
    """The World that the Python SDK brings along for development: files in a folder."""

    name: str = "LocalWorld"

    @contextmanager
    def start(self) -> Iterator[Round]:
        try:
            version("vercel-workflow")
        except PackageNotFoundError as error:
            raise MissingError("vercel-workflow isn't installed: redis-world[vercel]") from error
        with (
            tempfile.TemporaryDirectory(prefix="rw-local-") as folder,
            _rounds(_local_world(folder)) as measure,
        ):
            yield measure

    def version(self) -> str:
        return f"vercel-workflow {version('vercel-workflow')}, files"


PEERS: Final[list[Peer]] = [
    RedisPeer("RedisWorld", "redis7"),
    RedisPeer("RedisWorld, create_batch", "redis7", in_batches),
    RedisPeer("RedisWorld, Redis 8", "redis8"),
    RedisPeer("RedisWorld, Valkey 9", "valkey9"),
    EmbeddedPeer(),
    LocalPeer(),
]
