"""Servers, Worlds, and how a benchmark is measured: by the clock, and by the server itself."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import pytest
from peers.base import event
from pytest_benchmark.fixture import BenchmarkFixture
from redis import Redis

from redis_world import RedisWorld
from redis_world.testing import ServerUnavailableError, redis_server

REPORT = pytest.StashKey[list[str]]()

SERVERS: Final = ("redis7", "redis8", "valkey9", "memory")
SIZES: Final = (100, 1_000, 10_000)
"""Bytes of a payload."""
CALLERS: Final = (1, 16, 64)
AT_ONCE: Final = 64
"""Calls at a time, where it is not the callers that differ."""
ROUNDS: Final = 10
PAYLOAD: Final = b"x" * 256

Run: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]
Wire: TypeAlias = dict[str, Any]

P = TypeVar("P")
R = TypeVar("R")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = []
    config.addinivalue_line("markers", "large: needs a log of 100,000 events, which takes a while")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash[REPORT]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> list[str]:
    """Lines that are printed when all benchmarks have run."""
    return pytestconfig.stash[REPORT]


@pytest.fixture(scope="session")
def url_of() -> Iterator[Callable[[str], str]]:
    """The URL of a kind of server, which is started when it is first asked for."""
    urls = {"memory": "memory://bench"}
    with ExitStack() as stack:

        def find(kind: Any) -> str:
            if kind not in urls:
                try:
                    urls[kind] = stack.enter_context(redis_server(kind)).url
                except ServerUnavailableError as error:
                    pytest.skip(str(error))
            return urls[kind]

        yield find


@pytest.fixture(scope="session")
def server_url(url_of: Callable[[str], str]) -> str:
    return url_of("redis7")


@pytest.fixture
def run() -> Iterator[Run]:
    """Run a coroutine in an event loop that lives as long as the benchmark."""
    with asyncio.Runner() as runner:
        yield runner.run


# -- the server's own time -----------------------------------------------------------------


@dataclass(slots=True)
class ServerTime:
    """How long the server is busy with a call, by `INFO commandstats`, round by round."""

    client: Redis
    commands: Sequence[str]
    """Those of one call."""
    rounds: list[tuple[int, int]] = field(default_factory=list)
    """Calls, and the microseconds of all of them."""

    def begin(self) -> None:
        self.client.config_resetstat()

    def end(self) -> None:
        stats = self.client.info("commandstats")
        found = [stats.get(f"cmdstat_{name}", {"calls": 0, "usec": 0}) for name in self.commands]
        calls = found[0]["calls"]
        assert calls, f"the server has seen no {self.commands[0]}"
        self.rounds.append((calls, sum(each["usec"] for each in found)))

    @property
    def calls(self) -> int:
        return sum(calls for calls, _ in self._measured)

    @property
    def us_per_call(self) -> list[float]:
        """Of each round, the quickest first."""
        return sorted(us / calls for calls, us in self._measured)

    @property
    def _measured(self) -> list[tuple[int, int]]:
        """Without the round to warm up, where there was one."""
        return self.rounds[1:] or self.rounds


@pytest.fixture(scope="session")
def server_times(report: list[str]) -> Iterator[list[str]]:
    """Rows of the table of the server's own time: the median and the least of the rounds.

    The least is the one to compare where others use the machine, too.
    """
    rows: list[str] = []
    yield rows
    if rows:
        title = "us per call of the server itself"
        head = f"{title:40} {'commands':14} {'calls':>7} {'median':>8} {'least':>8}"
        report.extend([head, *rows])


@dataclass(frozen=True, slots=True)
class Bench:
    """A World, and what measures it."""

    world: RedisWorld
    run: Run
    client: Redis | None
    """Of the same server; None for the embedded one, which has no time of its own."""
    benchmark: BenchmarkFixture
    server_times: list[str]

    def measure(
        self,
        work: Callable[[P], Coroutine[Any, Any, R]],
        prepare: Callable[[], Coroutine[Any, Any, P]],
        *,
        rounds: int = ROUNDS,
        commands: Sequence[str] = ("evalsha",),
    ) -> R:
        """Measure rounds of work, each on what was prepared for it, behind one to warm up.

        Args:
            work: what is timed.
            prepare: makes its argument, and is not timed.
            rounds: how many.
            commands: those of the server that make up one call.

        Returns:
            What the last round has returned.
        """
        time = None if self.client is None else ServerTime(self.client, commands)
        begun = False

        def end_round() -> None:
            if begun and time is not None:
                time.end()

        def setup() -> tuple[tuple[P], dict[str, Any]]:
            nonlocal begun
            end_round()
            prepared = self.run(prepare())
            begun = True
            if time is not None:
                time.begin()
            return (prepared,), {}

        def timed(prepared: P) -> R:
            result: R = self.run(work(prepared))
            return result

        result: R = self.benchmark.pedantic(timed, setup=setup, rounds=rounds, warmup_rounds=1)
        end_round()
        if time is not None:
            figures = time.us_per_call
            median, least = statistics.median(figures), figures[0]
            self.benchmark.extra_info["server_us_per_call"] = round(median, 2)
            self.benchmark.extra_info["server_us_per_call_least"] = round(least, 2)
            self.server_times.append(
                f"{self.benchmark.name:40} {' + '.join(commands):14} {time.calls:>7} "
                f"{median:>8.1f} {least:>8.1f}"
            )
        return result


@pytest.fixture
def bench(
    request: pytest.FixtureRequest,
    benchmark: BenchmarkFixture,
    run: Run,
    url_of: Callable[[str], str],
    server_times: list[str],
) -> Iterator[Bench]:
    """On Redis 7, or on the server of an indirect parameter."""
    kind = getattr(request, "param", "redis7")
    with ExitStack() as stack:
        url = url_of(kind)
        client = None
        if kind != "memory":
            client = stack.enter_context(Redis.from_url(url))
        world = open_world(url)
        run(world.open())
        stack.callback(lambda: run(world.aclose()))
        yield Bench(world, run, client, benchmark, server_times)


def open_world(url: str) -> RedisWorld:
    """The ceiling is looked at, but above the longest log of the benchmarks."""
    return RedisWorld(url, namespace="bench", max_events_per_run=1_000_000)


# -- what benchmarks prepare ---------------------------------------------------------------


async def nothing() -> None:
    """Prepare nothing."""


def run_data(size: int = len(PAYLOAD)) -> Wire:
    """What a run is made of."""
    return {"deploymentId": "", "workflowName": "bench", "input": b"x" * size}


async def start_run(world: RedisWorld) -> str:
    result = await world.events.create(
        None, event("run_created", **run_data()), resolve_data="none"
    )
    assert result.run is not None
    run_id = result.run.run_id
    await world.events.create(run_id, event("run_started"), skip_preload=True)
    return run_id


async def start_runs(world: RedisWorld, count: int) -> list[str]:
    return await asyncio.gather(*(start_run(world) for _ in range(count)))
