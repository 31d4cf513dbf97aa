"""Figures of work: a worker that wakes up, processes that share a server, and the SDK."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple
from unittest.mock import patch

from figures_base import (
    Figure,
    Measured,
    alternate,
    control,
    cpu_seconds,
    rounded,
    script_stats,
)
from peers.base import MissingError
from peers.commands import run
from peers.environments import ROOT as ENVIRONMENTS
from peers.environments import Ask, environment, program
from peers.servers import private_cluster, private_redis
from redis import Redis

from redis_world.testing import Server

__all__ = ["EARLIER", "FIGURES", "HERE", "PYTHON", "earlier_python"]

PYTHON: Final = Path(sys.executable)
HERE: Final = Path(__file__).resolve().parent
GIT_TIMEOUT: Final = 60.0


# -- idle worker ---------------------------------------------------------------------------

MESSAGES: Final = 50
IDLE_WORKERS: Final = 60


def _latencies(workers: int) -> list[float]:
    """Milliseconds from the send of a message until the handler of an idle worker begins."""
    found: list[float] = []
    with (
        patch.dict(os.environ, {"BENCH_WORKERS": str(workers)}),
        private_redis() as server,
        program(PYTHON, "queue_redis_world.py", server.url) as ask,
    ):
        while len(found) < MESSAGES:
            found += [seconds * 1000 for seconds in ask({"jobs": 1})["latencies"]]
    return sorted(found[:MESSAGES])


def idle_worker() -> Measured:
    """From the send of a message until the handler of an idle worker begins."""
    latencies = _latencies(1)
    return Measured(
        median(latencies),
        "ms",
        f"Time from send to handler in another process. {MESSAGES} messages, one at a time, up to"
        f" half a second apart: {latencies[0]:.2f} to {latencies[-1]:.2f} ms, 90 % below"
        f" {latencies[MESSAGES * 9 // 10]:.2f} ms.",
        {"ms": rounded(latencies, 3)},
    )


def idle_workers() -> Measured:
    """The same, with many idle workers."""
    one, many = _latencies(1), _latencies(IDLE_WORKERS)
    return Measured(
        median(many) / median(one),
        "x",
        f"Time from send to handler, with {IDLE_WORKERS} idle workers against one:"
        f" {median(many):.2f} against {median(one):.2f} ms.",
        {"one": rounded(one, 3), "many": rounded(many, 3)},
    )


# -- processes -----------------------------------------------------------------------------

PROCESSES: Final = (1, 2, 4)
RUNS: Final = 768
"""Of each round, shared by the processes."""
PROCESS_ROUNDS: Final = 3
_BUSY: Final = 0.9
"""Processors' time by which something is called the limit."""


@dataclass(frozen=True, slots=True)
class _Load:
    """A round: runs a second, and how many processors were busy with them, or idle."""

    rate: float
    clients: float
    server: float
    idle: float

    def limit(self, processes: int) -> str:
        """What there was not enough of."""
        cores = os.cpu_count() or 1
        if self.server >= _BUSY:
            return "the server"
        if self.clients >= _BUSY * min(processes, cores):
            return "the clients"
        if self.idle >= 1 - _BUSY:
            return "clients and server wait for each other"
        if self.clients + self.server >= _BUSY * cores:
            return "the machine"
        return "other programs"


def _idle_seconds() -> float:
    """For how long processors had nothing to do, until now; 0 where that can't be known."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return int(words[4]) / os.sysconf("SC_CLK_TCK")


def processes() -> Measured:
    """Several client processes on one server."""
    with ExitStack() as stack:
        server = stack.enter_context(private_redis())
        client = stack.enter_context(control(server))
        command = str(HERE / "figures_clients.py")
        asks = [
            stack.enter_context(program(PYTHON, command, server.url)) for _ in range(PROCESSES[-1])
        ]
        pool = stack.enter_context(ThreadPoolExecutor(PROCESSES[-1]))

        def load(count: int) -> _Load:
            share = {"runs": RUNS // count}
            busy, idle = cpu_seconds(client), _idle_seconds()
            begun = time.perf_counter()
            answers = [*pool.map(lambda ask: ask(share), asks[:count])]
            seconds = time.perf_counter() - begun
            return _Load(
                RUNS / seconds,
                sum(answer["busy"] for answer in answers) / seconds,
                (cpu_seconds(client) - busy) / seconds,
                (_idle_seconds() - idle) / seconds,
            )

        load(PROCESSES[-1])
        sides = [lambda count=count: load(count) for count in PROCESSES]
        rounds = dict(zip(PROCESSES, alternate(PROCESS_ROUNDS, *sides), strict=True))
    medians = {
        count: _Load(
            median(each.rate for each in loads),
            median(each.clients for each in loads),
            median(each.server for each in loads),
            median(each.idle for each in loads),
        )
        for count, loads in rounds.items()
    }
    text = " ".join(
        f"{count} process{'es' if count > 1 else ''}: {load.rate:,.0f} runs/s (cores: clients"
        f" {load.clients:.2f}, server {load.server:.2f}, idle {load.idle:.2f}; limit:"
        f" {load.limit(count)})."
        for count, load in medians.items()
    )
    last = PROCESSES[-1]
    return Measured(
        medians[last].rate,
        "runs/s",
        f"Ten-step runs on one server, on {os.cpu_count()} cores. {text}",
        {
            f"{count} processes": {
                "runs/s": rounded(load.rate for load in loads),
                "cores of clients": rounded((load.clients for load in loads), 2),
                "cores of the server": rounded((load.server for load in loads), 2),
                "idle cores": rounded((load.idle for load in loads), 2),
            }
            for count, loads in rounds.items()
        },
    )


# -- the SDK -------------------------------------------------------------------------------

SEQUENTIAL: Final = 20
TOGETHER: Final = 50
SDK_ROUNDS: Final = 7


def _need_sdk() -> None:
    """
    Raises:
        MissingError: the SDK is not installed.
    """
    try:
        version("vercel-workflow")
    except PackageNotFoundError as error:
        raise MissingError("vercel-workflow isn't installed: redis-world[vercel]") from error


@contextmanager
def _sdk() -> Iterator[tuple[Server, Redis, Ask]]:
    _need_sdk()
    with private_redis() as server, control(server) as client:
        command = str(HERE / "figures_sdk.py")
        with program(PYTHON, command, server.url) as ask:
            yield server, client, ask


_DELIVERIES: Final = {"queue/claim", "queue/ack", "queue/ack+queue/claim"}
"""What the worker asks for by itself, beside what the runtime asks the World for."""


@cache
def _sequence() -> tuple[Measured, Measured]:
    """Round trips, and milliseconds, of a step of a workflow with one after the other."""
    with _sdk() as (_, _, ask):

        def calls(steps: int) -> tuple[Counter[str], float]:
            answer = ask({"workflow": "sequence", "steps": steps})
            return Counter(answer["round_trips"]), answer["seconds"]

        sides = (lambda: calls(SEQUENTIAL), lambda: calls(2 * SEQUENTIAL))
        alternate(1, *sides)
        short, long = alternate(SDK_ROUNDS, *sides)

    def of_step(found: Sequence[tuple[Counter[str], float]]) -> list[float]:
        """What the runtime asked for, of each workflow, shared out to so many steps."""
        return [
            sum(count for name, count in flights.items() if name not in _DELIVERIES) / SEQUENTIAL
            for flights, _ in found
        ]

    each, twice = of_step(short), of_step(long)
    flights = short[-1][0]
    trips = Measured(
        median(twice) - median(each),
        "",
        "Round trips per sequential step, without the worker's own claims and acks. All round"
        f" trips of a workflow of {SEQUENTIAL} steps:"
        f" `{', '.join(f'{count} {name}' for name, count in flights.most_common())}`.",
        {
            f"of {SEQUENTIAL} steps, by {SEQUENTIAL}": rounded(each, 2),
            f"of {2 * SEQUENTIAL} steps, by {SEQUENTIAL}": rounded(twice, 2),
            "of one workflow": dict(flights.most_common()),
        },
    )
    walls = [seconds * 1000 / SEQUENTIAL for _, seconds in short]
    wall = Measured(
        median(walls),
        "ms",
        f"Time per step of a workflow of {SEQUENTIAL} sequential steps, its start and end"
        f" included: {min(walls):.1f} to {max(walls):.1f} ms.",
        {"ms": rounded(walls, 2)},
    )
    return trips, wall


def sdk_gather() -> Measured:
    """A workflow of steps all at once."""
    with _sdk() as (_, client, ask):

        def gather() -> tuple[float, int]:
            before = script_stats(client)
            seconds = ask({"workflow": "gather", "steps": TOGETHER})["seconds"]
            return seconds * 1000, script_stats(client).since(before).calls

        alternate(2, gather)
        (found,) = alternate(SDK_ROUNDS, gather)
    walls = [wall for wall, _ in found]
    calls = median(count for _, count in found)
    return Measured(
        median(walls),
        "ms",
        f"gather of {TOGETHER} steps, from the start of the workflow until the caller is"
        f" notified of its end: {min(walls):.0f} to {max(walls):.0f} ms, {calls:g} scripts.",
        {"ms": rounded(walls), "scripts": [count for _, count in found]},
    )


# -- long logs -----------------------------------------------------------------------------

SHORT, LONG = 20, 300
LOG_ROUNDS: Final = 3
EARLIER: Final = os.environ.get("BENCH_EARLIER", "adcc57e")
"""The commit that is measured beside this one: its replays read whole logs."""


class _Replays(NamedTuple):
    """What a step of a workflow takes of the processors, in ms."""

    worker: float
    server: float


def earlier_python() -> Path:
    """The interpreter of an environment with the earlier commit."""
    name = f"redis-world-{EARLIER}"
    source = ENVIRONMENTS / f"{name}-source"
    if not source.exists():
        source.mkdir(parents=True)
        archive = source / "source.tar"
        top = HERE.parent
        run(["git", "-C", top, "archive", "-o", archive, EARLIER], timeout=GIT_TIMEOUT)
        run(["tar", "-xf", archive, "-C", source], timeout=GIT_TIMEOUT)
    return environment(name, [f"redis-world[vercel] @ {source.as_uri()}"])


def _replays(python: Path) -> dict[int, _Replays]:
    """Workflows of sequential steps, a short and a long one; each the median of its rounds."""
    _need_sdk()
    with (
        private_redis() as server,
        control(server) as client,
        program(python, str(HERE / "figures_sdk.py"), server.url) as ask,
    ):

        def replay(steps: int) -> _Replays:
            before = cpu_seconds(client)
            answer = ask({"workflow": "sequence", "steps": steps})
            each = 1000 / steps
            return _Replays(answer["cpu"] * each, (cpu_seconds(client) - before) * each)

        sides = (lambda: replay(SHORT), lambda: replay(LONG))
        replay(SHORT)
        found = alternate(LOG_ROUNDS, *sides)
    return {
        steps: _Replays(*(median(each) for each in zip(*rounds, strict=True)))
        for steps, rounds in zip((SHORT, LONG), found, strict=True)
    }


@cache
def _own_replays() -> dict[int, _Replays]:
    return _replays(PYTHON)


@cache
def _earlier_replays() -> dict[int, _Replays]:
    return _replays(earlier_python())


def long_log() -> Measured:
    """What a step of a long workflow costs Redis, against one of a short one."""
    own = _own_replays()
    short, long = own[SHORT].server, own[LONG].server
    return Measured(
        long / short,
        "x",
        f"Redis's processor time per step, of a workflow of {LONG} steps against one of {SHORT}:"
        f" {long:.2f} against {short:.2f} ms.",
        {str(steps): each._asdict() for steps, each in own.items()},
    )


def against_earlier(steps: int) -> Measured:
    """What a step costs its worker, against the earlier commit."""
    own, earlier = _own_replays()[steps], _earlier_replays()[steps]
    return Measured(
        own.worker / earlier.worker,
        "x",
        f"Processor time of the worker per step of a workflow of {steps} steps, against commit"
        f" {EARLIER}: {own.worker:.2f} against {earlier.worker:.2f} ms. Redis's:"
        f" {own.server:.2f} against {earlier.server:.2f} ms.",
        {"own": own._asdict(), "earlier": earlier._asdict()},
    )


def server_against_earlier() -> Measured:
    """What a step costs Redis, against the earlier commit."""
    own, earlier = _own_replays()[SHORT], _earlier_replays()[SHORT]
    return Measured(
        own.server / earlier.server,
        "x",
        f"Redis's processor time per step of a workflow of {SHORT} steps, against commit"
        f" {EARLIER}: {own.server:.2f} against {earlier.server:.2f} ms.",
        {"own": own._asdict(), "earlier": earlier._asdict()},
    )


# -- many workers, partitions and servers ---------------------------------------------------

BUSY, SPARE = 3, 30
MASTERS, PARTITIONS = 3, 16
WORKFLOWS: Final = BUSY
"""At once: so many workers have something to do."""
IDLE_SECONDS: Final = 3.0
"""For which servers are watched that nobody uses."""


class _Fleet:
    """Workers in one process, and the servers that they share."""

    def __init__(self, ask: Ask, servers: Sequence[Redis], rest: float) -> None:
        self._ask = ask
        self._servers = servers
        self._rest = rest
        """Processors that the servers take when nobody uses them."""

    def step(self) -> float:
        """Milliseconds of the processors of all servers per step, beside what they take anyway."""
        before, begun = _seconds_of(self._servers), time.perf_counter()
        self._ask({"workflow": "sequence", "steps": SHORT, "runs": WORKFLOWS})
        used = _seconds_of(self._servers) - before
        used -= self._rest * (time.perf_counter() - begun)
        return used * 1000 / SHORT / WORKFLOWS


def _seconds_of(servers: Iterable[Redis]) -> float:
    return sum(map(cpu_seconds, servers))


@contextmanager
def _fleet(url: str, servers: Sequence[Server], workers: int, partitions: int) -> Iterator[_Fleet]:
    _need_sdk()
    with ExitStack() as stack:
        clients = [stack.enter_context(control(server)) for server in servers]
        before = _seconds_of(clients)
        time.sleep(IDLE_SECONDS)
        rest = (_seconds_of(clients) - before) / IDLE_SECONDS
        words = (url, str(workers), str(partitions))
        command = str(HERE / "figures_sdk.py")
        fleet = _Fleet(stack.enter_context(program(PYTHON, command, *words)), clients, rest)
        # Where the workers have found out that nothing is there, and the scripts are everywhere.
        fleet.step()
        yield fleet


def fleet() -> Measured:
    """What many workers, partitions and servers add to a step, against few of each."""
    many = BUSY + SPARE
    with (
        private_redis() as one_server,
        private_redis() as other_server,
        private_cluster(1) as one_master,
        private_cluster(MASTERS) as cluster,
        _fleet(one_server.url, [one_server], BUSY, 1) as small,
        _fleet(other_server.url, [other_server], many, PARTITIONS) as crowded,
        _fleet(one_master.url, one_master.masters, BUSY, 1) as clustered,
        _fleet(cluster.url, cluster.masters, many, PARTITIONS) as large,
    ):
        sides = (small.step, crowded.step, clustered.step, large.step)
        found = alternate(SDK_ROUNDS, *sides)
    one, of_many, of_cluster, of_all = map(median, found)
    names = ("small", "many workers and partitions", "a cluster of one master", "large")
    return Measured(
        of_all / one,
        "x",
        f"Processor time of all servers per step of {WORKFLOWS} workflows of {SHORT} steps."
        f" {MASTERS} masters, {PARTITIONS} partitions and {many} workers: {of_all:.2f} ms."
        f" One server, one partition and {BUSY} workers: {one:.2f} ms. So many workers and"
        f" partitions on one server: {of_many:.2f} ms. A cluster of one master instead of a server"
        f" that is none: {of_cluster:.2f} ms.",
        {name: rounded(times, 3) for name, times in zip(names, found, strict=True)},
    )


FIGURES: Final[tuple[Figure, ...]] = (
    Figure("idle_worker", "<= 1.5", idle_worker),
    Figure("idle_workers", "<= 1.3", idle_workers),
    Figure("sdk.long_log", "<= 1.3", long_log),
    Figure("sdk.short_against_earlier", "<= 0.8", partial(against_earlier, SHORT)),
    Figure("sdk.long_against_earlier", "<= 0.55", partial(against_earlier, LONG)),
    Figure("sdk.server_against_earlier", "<= 0.5", server_against_earlier),
    Figure("sdk.fleet", "<= 1.3", fleet),
    Figure("processes", "", processes),
    Figure("sdk.round_trips", "<= 5", lambda: _sequence()[0]),
    Figure("sdk.step", "", lambda: _sequence()[1]),
    Figure("sdk.gather", "<= 45", sdk_gather),
)
