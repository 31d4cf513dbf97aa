"""Figures against an earlier commit, against the Worlds of npm, and of reading a large run."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import hiredis
from figures_base import (
    CALLERS,
    Command,
    Figure,
    Measured,
    alternate,
    control,
    cpu_seconds,
    monitored,
    opened,
    pack,
    rounded,
)
from figures_work import EARLIER, HERE, PYTHON, earlier_python
from peers.base import STEPS, Peer, Round, Sample
from peers.environments import Ask, program
from peers.npm_worlds import PEERS
from peers.servers import private_redis
from peers.watching import of_redis, watched
from redis import Redis

from redis_world.testing import Server

__all__ = ["FIGURES"]

EVENTS: Final = 3 * STEPS + 3
"""Of each run."""
ROUNDS: Final = 7
CLIENTS: Final = str(HERE / "figures_clients.py")
ANSWER_TIMEOUT: Final = 60.0


# -- an earlier commit ---------------------------------------------------------------------

REPLAYED: Final = 100
"""Runs of each round."""
PIPELINE: Final = 16
CLIENT_RUNS: Final = 256


@dataclass(frozen=True, slots=True)
class _Replay:
    """The scripts of some runs, on the server that has them."""

    server: Server
    client: Redis
    pipelines: Sequence[bytes]

    def play(self) -> float:
        """Send all of them to an empty server; microseconds of its processors for each run."""
        self.client.flushall()
        before = cpu_seconds(self.client)
        with socket.create_connection(
            (self.server.host, self.server.port), ANSWER_TIMEOUT
        ) as link:
            reader = hiredis.Reader()
            for pipeline in self.pipelines:
                link.sendall(pipeline)
                for _ in range(PIPELINE):
                    reply = reader.gets()
                    while reply is False:
                        data = link.recv(2**16)
                        assert data, "the server has closed the connection"
                        reader.feed(data)
                        reply = reader.gets()
                    assert isinstance(reply, list), reply
                    assert reply[0] == b"OK", reply
        return (cpu_seconds(self.client) - before) * 1e6 / REPLAYED


@contextmanager
def _recorded(python: Path) -> Iterator[_Replay]:
    """Have runs written once by that interpreter's redis-world, and keep what it has sent."""
    with private_redis() as server, control(server) as client:
        with program(python, CLIENTS, server.url) as ask, monitored(server) as seen:
            ask({"runs": REPLAYED, "callers": 1})
        scripts = [each.command for each in seen if each.command[0].upper() == b"EVALSHA"]
        assert len(scripts) == REPLAYED * EVENTS, len(scripts)
        yield _Replay(server, client, _pipelines(scripts))


def _pipelines(commands: Sequence[Command]) -> list[bytes]:
    """Commands as they are sent, so many at a time; those that fill none are left out."""
    whole = len(commands) // PIPELINE * PIPELINE
    return [pack(commands[at : at + PIPELINE]) for at in range(0, whole, PIPELINE)]


def replayed() -> Measured:
    """The server's time for runs whose scripts come in pipelines, against the earlier commit."""
    with _recorded(PYTHON) as own, _recorded(earlier_python()) as earlier:
        alternate(1, own.play, earlier.play)
        ours, theirs = alternate(ROUNDS, own.play, earlier.play)
    return Measured(
        median(ours) / median(theirs),
        "x",
        f"Redis's processor time per ten-step run, whose scripts come in pipelines of {PIPELINE},"
        f" against commit {EARLIER}: {median(ours):,.0f} against {median(theirs):,.0f} µs.",
        {"own, µs": rounded(ours), "earlier, µs": rounded(theirs)},
    )


def client_time() -> Measured:
    """The client's time for an event, against the earlier commit."""

    def each(ask: Ask) -> float:
        answer = ask({"runs": CLIENT_RUNS})
        return float(answer["busy"]) * 1e6 / CLIENT_RUNS / EVENTS

    with (
        private_redis() as server,
        private_redis() as other,
        program(PYTHON, CLIENTS, server.url) as own,
        program(earlier_python(), CLIENTS, other.url) as earlier,
    ):
        sides = (partial(each, own), partial(each, earlier))
        alternate(1, *sides)
        ours, theirs = alternate(ROUNDS, *sides)
    return Measured(
        median(ours) / median(theirs),
        "x",
        f"Processor time of the client per event of ten-step runs, by {CALLERS} callers, against"
        f" commit {EARLIER}: {median(ours):.1f} against {median(theirs):.1f} µs.",
        {"own, µs": rounded(ours), "earlier, µs": rounded(theirs)},
    )


# -- the Worlds of npm ---------------------------------------------------------------------

NPM_ROUNDS: Final = 5
OWN_RUNS: Final = 768
NPM_RUNS: Final = {
    "@workflow-worlds/redis": 384,
    "@workflow/world-postgres": 128,
    "@workflow/world-local": 128,
}
"""Of each round, which takes some seconds then."""


def _of_processes(asks: Sequence[Ask], pool: ThreadPoolExecutor) -> Round:
    """Rounds of our clients, who share runs and callers."""

    def measure(count: int) -> Sample:
        share = {"runs": count // len(asks), "callers": CALLERS // len(asks)}
        answers = [*pool.map(lambda ask: ask(share), asks)]
        return Sample(count, max(answer["seconds"] for answer in answers))

    return measure


@cache
def _against_npm(name: str) -> list[list[Sample]]:
    """Rounds of one process of ours, of two, and of a World of npm."""
    peer: Peer
    (peer,) = (each for each in PEERS if each.name == name)
    with ExitStack() as stack:
        server = stack.enter_context(private_redis())
        look = stack.enter_context(of_redis(server))
        asks = [stack.enter_context(program(PYTHON, CLIENTS, server.url)) for _ in range(2)]
        pool = stack.enter_context(ThreadPoolExecutor(len(asks)))
        one = watched(_of_processes(asks[:1], pool), look)
        two = watched(_of_processes(asks, pool), look)
        theirs = stack.enter_context(peer.start())
        sides: tuple[Callable[[], Sample], ...] = (
            lambda: one(OWN_RUNS),
            lambda: two(OWN_RUNS),
            lambda: theirs(NPM_RUNS[name]),
        )
        alternate(1, *sides)
        return alternate(NPM_ROUNDS, *sides)


def runs_against_npm(name: str, processes: int) -> Measured:
    """Our runs a second, against those of a World of npm."""
    *ours, theirs = ([sample.rate for sample in side] for side in _against_npm(name))
    own = ours[processes - 1]
    several = f"{processes} processes" if processes > 1 else "1 process"
    return Measured(
        median(own) / median(theirs),
        "x",
        f"Ten-step runs a second of {CALLERS} callers, in {several} against {name} in one Node"
        f" process: {median(own):,.0f} against {median(theirs):,.0f}.",
        {f"own, {several}": rounded(own), name: rounded(theirs)},
    )


def server_against_npm() -> Measured:
    """The server's time for our runs, as they are written, against npm's World on Redis."""
    name = "@workflow-worlds/redis"

    def times(side: Sequence[Sample]) -> list[float]:
        return [(each.server or 0.0) * 1e6 / each.count for each in side]

    own, _, theirs = map(times, _against_npm(name))
    return Measured(
        median(own) / median(theirs),
        "x",
        f"Redis's processor time per ten-step run, written by {CALLERS} callers in one process,"
        f" against {name}: {median(own):,.0f} against {median(theirs):,.0f} µs.",
        {"own, µs": rounded(own), f"{name}, µs": rounded(theirs)},
    )


# -- a large run ---------------------------------------------------------------------------

LARGE: Final = 1_000_000
READS: Final = 100


def large_get() -> Measured:
    """`runs.get` of a run with a large input, against the command that reads it alone."""
    with (
        private_redis() as server,
        control(server) as client,
        opened(server.url) as (world, run),
    ):
        payload = b"x" * LARGE
        data: dict[str, Any] = {"deploymentId": "", "workflowName": "figures", "input": payload}
        event = {"eventType": "run_created", "eventData": data}
        created = run(world.events.create(None, event, resolve_data="none"))
        run_id = created.run.run_id
        key = world.connection.keys.of_run(run_id).payloads
        (slot,) = client.hkeys(key)

        async def get() -> None:
            for _ in range(READS):
                found = await world.runs.get(run_id)
                assert found.input == payload

        def hmget() -> None:
            for _ in range(READS):
                (found,) = client.hmget(key, [slot])
                assert isinstance(found, bytes)
                # A tag of one byte tells that these are bytes.
                assert found[1:] == payload

        def cost(reads: Callable[[], object]) -> float:
            before = cpu_seconds(client)
            reads()
            return (cpu_seconds(client) - before) * 1e6 / READS

        sides = (lambda: cost(lambda: run(get())), lambda: cost(hmget))
        alternate(1, *sides)
        gets, plain = alternate(ROUNDS, *sides)
    return Measured(
        median(gets) / median(plain),
        "x",
        f"Redis's processor time of `runs.get` of a run with an input of {LARGE:,} bytes, against"
        f" HMGET of this input: {median(gets):,.0f} against {median(plain):,.0f} µs.",
        {"runs.get, µs": rounded(gets), "HMGET, µs": rounded(plain)},
    )


_GOALS: Final = {
    "redis": ("@workflow-worlds/redis", ">= 4", ">= 5"),
    "postgres": ("@workflow/world-postgres", ">= 15", ">= 18"),
    "local": ("@workflow/world-local", ">= 14", ">= 17"),
}

FIGURES: Final[tuple[Figure, ...]] = (
    Figure("server.against_earlier", "<= 0.5", replayed),
    Figure("server.against_npm", "<= 0.45", server_against_npm),
    Figure("client.against_earlier", "<= 0.55", client_time),
    Figure("large_get", "<= 2", large_get),
    *(
        Figure(f"npm.{short}.{processes}", goal, partial(runs_against_npm, name, processes))
        for short, (name, *goals) in _GOALS.items()
        for processes, goal in enumerate(goals, 1)
    ),
)
