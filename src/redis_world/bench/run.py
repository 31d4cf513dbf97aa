"""A whole bench: its namespace, its measurements, and the end of both."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import Any, Final

from redis_world import __version__
from redis_world.bench.figures import Measurement
from redis_world.bench.interrupts import Interrupts
from redis_world.bench.limits import Busy
from redis_world.bench.measurements import Bench, OnProgress, parameters
from redis_world.bench.observer import Observer, observing
from redis_world.bench.workload import EVENTS_PER_RUN, PAYLOAD_BYTES, STEPS
from redis_world.config import url_or_env
from redis_world.errors import WorldError, WorldUnavailableError
from redis_world.keys import pattern_of
from redis_world.world import RedisWorld

__all__ = ["Report", "fresh_namespace", "run_bench"]

_DELETED_AT_ONCE: Final = 1000
_PASSES: Final = 10
"""Looks for keys of the namespace; the last one finds none."""


@dataclass(frozen=True)
class Report:
    """The result of a benchmark.

    Attributes:
        date: when it started.
        versions: of redis-world, Python, redis-py, hiredis (None: not installed) and the server.
        machine: number of CPUs and platform of this machine.
        parameters: the server, the namespace and the duration.
        measurements: the measurements, in order.
        busy: CPU in use during the runs of 64 callers.
    """

    date: datetime
    versions: dict[str, Any]
    machine: dict[str, Any]
    parameters: dict[str, Any]
    measurements: Sequence[Measurement]
    busy: Busy

    def document(self) -> dict[str, Any]:
        """The report as a JSON document; durations are in ms, rates per second."""
        return {
            "date": self.date.isoformat(timespec="seconds"),
            "versions": self.versions,
            "machine": self.machine,
            "parameters": self.parameters,
            "measurements": {each.name: each.document() for each in self.measurements},
            "busy": self.busy.document(),
        }


def fresh_namespace() -> str:
    """A new random namespace."""
    return f"bench-{secrets.token_hex(5)}"


async def run_bench(
    url: str | None = None,
    *,
    namespace: str | None = None,
    partitions: int | None = None,
    seconds: float = 30.0,
    on_progress: OnProgress | None = None,
) -> Report:
    """Measure in a new namespace, and remove it afterwards.

    SIGINT, SIGTERM and SIGHUP cancel the benchmark; it removes the namespace then, too.

    Args:
        url: the URL of the server; None: `REDIS_WORLD_URL`.
        namespace: a namespace that does not exist; None: a random one.
        partitions: the number of its partitions; None: `REDIS_WORLD_PARTITIONS`, else 1.
        seconds: how long it takes, approximately; longer where calls are slow.
        on_progress: called after each round with the current measurement, the number of finished
            rounds and the number of all rounds.

    Raises:
        ConfigurationError: the URL or an option is invalid, the namespace exists, or other keys
            start with its prefix.
        WorldUnavailableError: the server can't be reached, or the namespace could not be removed.
    """
    is_fresh = namespace is None
    namespace = namespace or fresh_namespace()
    url = url_or_env(url)
    more = {} if partitions is None else {"partitions": partitions}
    world = RedisWorld.from_env(url=url, namespace=namespace, **more)
    with Interrupts() as interrupts:
        async with observing(url, world.config) as observer:
            await observer.check_unused(namespace, is_fresh=is_fresh)
            bench = Bench(world, observer, seconds)
            if on_progress is not None:
                bench.on_progress = on_progress
            try:
                await world.open()
                return await _measure(bench)
            finally:
                interrupts.hold()
                await _remove(world, namespace)


async def _measure(bench: Bench) -> Report:
    date = datetime.now(UTC)
    versions = await _versions(bench.observer)
    measurements = [each async for each in bench.measurements()]
    assert bench.busy is not None
    config = bench.world.config
    return Report(
        date=date,
        versions=versions,
        machine={"cpus": os.cpu_count(), "platform": platform.platform()},
        parameters={
            "server": bench.observer.where,
            "namespace": config.namespace,
            "partitions": config.partitions,
            "durability": config.durability,
            "seconds": bench.seconds,
            "stepsPerRun": STEPS,
            "eventsPerRun": EVENTS_PER_RUN,
            "payloadBytes": PAYLOAD_BYTES,
            **parameters(),
        },
        measurements=measurements,
        busy=bench.busy,
    )


async def _versions(observer: Observer) -> dict[str, Any]:
    return {
        "redisWorld": __version__,
        "python": platform.python_version(),
        "redisPy": _version_of("redis"),
        "hiredis": _version_of("hiredis"),
        "server": await observer.version(),
    }


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


async def _remove(world: RedisWorld, namespace: str) -> None:
    """Remove all keys of a namespace."""
    try:
        # What is under way ends first: a call whose caller is gone still writes.
        await world.aclose()
        async with world:
            for _ in range(_PASSES):
                if not await _delete_keys(world, namespace):
                    break
    except WorldError as error:
        raise WorldUnavailableError(
            f"could not remove namespace {namespace!r}: delete the keys that start with "
            f"{{{namespace} ({error})"
        ) from error
    finally:
        await world.aclose()


async def _delete_keys(world: RedisWorld, namespace: str) -> int:
    """Delete the keys that one look finds; how many they were."""
    # With the key that opening has made: nothing opens this World again.
    found = sorted({key async for key in world.connection.scan(pattern_of(namespace))})
    # A command of several keys has to be of one slot, as those of a tag are.
    for _, keys in groupby(found, key=lambda key: key.partition(b"}")[0]):
        of_tag = [*keys]
        for first in range(0, len(of_tag), _DELETED_AT_ONCE):
            await world.connection.execute(("UNLINK", *of_tag[first : first + _DELETED_AT_ONCE]))
    return len(found)
