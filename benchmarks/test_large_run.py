"""What the scripts of a very large run cost the server: how long each holds up everybody else.

A run of 50,000 events, 10,000 steps and 2,000 hooks is built, and then ended, cancelled, ended
without retention of its data, pruned, or read. The server itself measures every script, and the
table of the durations by script is printed at the end: their 99th percentiles are to be below
10 ms.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from redis import Redis

from conftest import Run
from redis_world import RedisWorld
from redis_world.lua import default_library

EVENTS: Final = 50_000
STEPS: Final = 10_000
HOOKS: Final = 2_000
PAYLOADS_OF_HOOK: Final = 8
WAITS: Final = 998
PAYLOAD: Final = b"x" * 256
RESUME_AT: Final = datetime(2040, 1, 1, tzinfo=UTC)
AT_ONCE: Final = 200
ROUNDS: Final = 3
LIMIT_MS: Final = 10

Durations = dict[str, list[float]]
Event = dict[str, Any]


class Stopwatch:
    """The server's own log of how long each script took, in milliseconds."""

    def __init__(self, url: str) -> None:
        self._client = Redis.from_url(url)
        self._names = {script.sha: script.name for script in default_library()}
        self.durations: Durations = defaultdict(list)
        self._client.config_set("slowlog-max-len", 1_000_000)
        self._client.config_set("slowlog-log-slower-than", 0)
        self._client.slowlog_reset()

    def collect(self) -> Durations:
        """What ran since the last time, by script."""
        found: Durations = defaultdict(list)
        for entry in self._client.slowlog_get(1_000_000):
            verb, _, rest = entry["command"].partition(b" ")
            name = self._names.get(rest[:40].decode("latin-1"))
            if verb == b"EVALSHA" and name is not None:
                found[name].append(entry["duration"] / 1000)
        self._client.slowlog_reset()
        for name, durations in found.items():
            self.durations[name] += durations
        return found

    def note(self, benchmark: BenchmarkFixture) -> None:
        """Keep what ran since the last time with a benchmark."""
        benchmark.extra_info["99 % ms by script"] = {
            name: round(percentile_99(durations), 3) for name, durations in self.collect().items()
        }

    def close(self) -> None:
        self._client.config_set("slowlog-log-slower-than", 10_000)
        self._client.slowlog_reset()
        self._client.close()


def percentile_99(durations: Sequence[float]) -> float:
    if len(durations) < 100:
        return max(durations)
    return statistics.quantiles(durations, n=100)[-1]


@pytest.fixture(scope="module")
def stopwatch(server_url: str, report: list[str]) -> Iterator[Stopwatch]:
    stopwatch = Stopwatch(server_url)
    yield stopwatch
    stopwatch.close()
    report.append(f"{'script':24} {'calls':>7} {'median ms':>11} {'99 % ms':>9} {'max ms':>8}")
    for name, durations in sorted(stopwatch.durations.items()):
        p99 = percentile_99(durations)
        report.append(
            f"{name:24} {len(durations):>7} {statistics.median(durations):>11.3f} {p99:>9.3f} "
            f"{max(durations):>8.3f}{'  too long' if p99 > LIMIT_MS else ''}"
        )


@pytest.fixture
def large_world(server_url: str, run: Run) -> Iterator[RedisWorld]:
    world = RedisWorld(server_url, namespace="large", max_events_per_run=None)
    run(world.open())
    yield world
    run(world.aclose())


async def in_turns(call: Callable[[str], Awaitable[None]], prefix: str, count: int) -> None:
    for start in range(0, count, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, count))
        await asyncio.gather(*(call(f"{prefix}_{number}") for number in numbers))


async def build(world: RedisWorld) -> str:
    """A run that lacks only its last event."""
    created = await world.events.create(
        None,
        {
            "eventType": "run_created",
            "eventData": {"deploymentId": "", "workflowName": "large", "input": PAYLOAD},
        },
    )
    assert created.run is not None
    run_id = created.run.run_id
    await world.events.create(run_id, {"eventType": "run_started"}, skip_preload=True)

    async def record(kind: str, name: str, data: Event | None = None) -> None:
        event: Event = {"eventType": kind, "correlationId": name}
        if data is not None:
            event["eventData"] = data
        await world.events.create(run_id, event, resolve_data="none")

    async def step(name: str) -> None:
        await record("step_created", name, {"stepName": "s", "input": PAYLOAD})
        await record("step_started", name)
        await record("step_completed", name, {"result": PAYLOAD})

    async def hook(name: str) -> None:
        await record("hook_created", name, {"token": f"{run_id}/{name}"})
        for _ in range(PAYLOADS_OF_HOOK):
            await record("hook_received", name, {"payload": PAYLOAD})

    async def wait(name: str) -> None:
        await record("wait_created", name, {"resumeAt": RESUME_AT})
        await record("wait_completed", name)

    await in_turns(step, "step", STEPS)
    await in_turns(hook, "hook", HOOKS)
    await in_turns(wait, "wait", WAITS)
    await set_attribute(world, run_id, "size", "large")
    return run_id


async def set_attribute(world: RedisWorld, run_id: str, key: str, value: str) -> None:
    data = {
        "changes": [{"key": key, "value": value}],
        "writer": {"type": "workflow"},
        "allowReservedAttributes": True,
    }
    await world.events.create(run_id, {"eventType": "attr_set", "eventData": data})


async def end(world: RedisWorld, run_id: str) -> None:
    await world.events.create(
        run_id,
        {"eventType": "run_completed", "eventData": {"output": PAYLOAD}},
        resolve_data="none",
    )


async def cancel(world: RedisWorld, run_id: str) -> None:
    await world.events.create(run_id, {"eventType": "run_cancelled"}, resolve_data="none")


async def purge(world: RedisWorld, run_id: str) -> None:
    """Zero retention: its data go with its end."""
    await set_attribute(world, run_id, "$retention", "0")
    await end(world, run_id)


@pytest.mark.parametrize("finish", [end, cancel, purge], ids=["end", "cancel", "purge"])
@pytest.mark.benchmark(group="the end of a run of 50,000 events, with all that follows")
def test_end(
    benchmark: BenchmarkFixture,
    large_world: RedisWorld,
    stopwatch: Stopwatch,
    run: Run,
    finish: Any,
) -> None:
    def prepare() -> tuple[tuple[str], dict[str, Any]]:
        run_id = run(build(large_world))
        stopwatch.collect()
        return (run_id,), {}

    async def see_to_its_end(run_id: str) -> None:
        await finish(large_world, run_id)
        # What the end leaves to the sweeper belongs to it.
        await large_world.sweep()

    def finished(run_id: str) -> None:
        run(see_to_its_end(run_id))

    benchmark.pedantic(finished, setup=prepare, rounds=ROUNDS)
    stopwatch.note(benchmark)


@pytest.mark.benchmark(group="pruning a run of 50,000 events")
def test_prune(
    benchmark: BenchmarkFixture, large_world: RedisWorld, stopwatch: Stopwatch, run: Run
) -> None:
    def prepare() -> tuple[tuple[()], dict[str, Any]]:
        run(large_world.prune(0))
        run_id = run(build(large_world))
        run(end(large_world, run_id))
        stopwatch.collect()
        return (), {}

    def prune() -> None:
        assert run(large_world.prune(0)) == 1

    benchmark.pedantic(prune, setup=prepare, rounds=ROUNDS)
    stopwatch.note(benchmark)


@pytest.mark.benchmark(group="reading a run of 50,000 events whole")
def test_read(
    benchmark: BenchmarkFixture, large_world: RedisWorld, stopwatch: Stopwatch, run: Run
) -> None:
    run_id = run(build(large_world))

    async def read() -> None:
        cursor = None
        count = 0
        while True:
            page = await large_world.events.list(run_id, cursor=cursor)
            count += len(page.data)
            cursor = page.cursor
            if not page.has_more:
                break
        assert count == EVENTS - 1
        await large_world.steps.list(run_id)
        await large_world.hooks.list(run_id)

    benchmark.pedantic(lambda: run(read()), rounds=ROUNDS)
    stopwatch.collect()
