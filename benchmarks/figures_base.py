"""What the figures have in common: their shape, rounds in turns, and looks at the server."""

from __future__ import annotations

import asyncio
import codecs
import csv
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import hiredis
from peers.base import MissingError
from redis import Redis

from redis_world import RedisWorld
from redis_world.testing import Server

__all__ = [
    "CALLERS",
    "Command",
    "Figure",
    "Measured",
    "Run",
    "Seen",
    "Stats",
    "alternate",
    "control",
    "cpu_seconds",
    "in_loop",
    "monitored",
    "opened",
    "pack",
    "redis_benchmark",
    "rounded",
    "script_stats",
    "stream",
    "together",
]

CALLERS: Final = 64
"""Who call a World at a time, where many do."""
TIMEOUT: Final = 600.0
"""Seconds after which one piece of work is given up."""
_ANSWER_TIMEOUT: Final = 120.0
"""Seconds that a server, or redis-benchmark, may be silent."""
_AT_ONCE: Final = 2**18
_END: Final = b"the end of what is asked"
_MONITORED: Final = re.compile(rb"\+\d+\.\d+ \[\d+ (?P<client>[^\]]*)\] (?P<words>.*)\r\n")
_WORD: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"')

Command: TypeAlias = tuple[bytes, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a figure has come to.

    Attributes:
        value: is compared with the goal.
        unit: of the value; `x` is a ratio.
        text: what was compared with what, with the raw numbers.
        details: all rounds.
    """

    value: float
    unit: str
    text: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that the project wants to be good at.

    Attributes:
        name: the part in front of a dot is that of a group, which is measured together.
        goal: such as `>= 0.8`; empty where there is none.
        measure: raises MissingError where it can't be measured.
    """

    name: str
    goal: str
    measure: Callable[[], Measured]

    def is_met(self, value: float) -> bool | None:
        """Whether a value reaches the goal; None where there is none."""
        if not self.goal:
            return None
        sign, bound = self.goal.split()
        return value >= float(bound) if sign == ">=" else value <= float(bound)


# -- rounds --------------------------------------------------------------------------------


def alternate(rounds: int, *sides: Callable[[], T]) -> list[list[T]]:
    """Measure sides in turns, so that what else goes on hits them alike; the results of each."""
    results: list[list[T]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, result in zip(sides, results, strict=True):
            result.append(side())
    return results


def rounded(values: Iterable[float], digits: int = 1) -> list[float]:
    """Values as the details show them."""
    return [round(value, digits) for value in values]


Run: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end, in a loop that lives on."""


@contextmanager
def in_loop() -> Iterator[Run]:
    """An event loop for the length of a `with` block; what it runs takes ten minutes at most."""
    with asyncio.Runner() as runner:

        async def bounded(coroutine: Coroutine[Any, Any, Any]) -> Any:
            async with asyncio.timeout(TIMEOUT):
                return await coroutine

        yield lambda coroutine: runner.run(bounded(coroutine))


@contextmanager
def opened(url: str, **options: Any) -> Iterator[tuple[RedisWorld, Run]]:
    """A World for the length of a `with` block, and what runs its coroutines."""
    with in_loop() as run:
        world = RedisWorld(url, **{"namespace": "figures", **options})
        run(world.open())
        try:
            yield world, run
        finally:
            run(world.aclose())


async def together(
    work: Iterable[T], call: Callable[[T], Awaitable[object]], callers: int = CALLERS
) -> float:
    """Do work, by so many callers at a time; returns the seconds that it took."""
    left = iter(work)

    async def caller() -> None:
        for each in left:
            await call(each)

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return time.perf_counter() - begun


# -- the server ----------------------------------------------------------------------------


@contextmanager
def control(server: Server) -> Iterator[Redis]:
    """A client that looks at a server, beside those that are measured."""
    with closing(
        Redis(host=server.host, port=server.port, socket_timeout=_ANSWER_TIMEOUT)
    ) as client:
        yield client


@dataclass(frozen=True, slots=True)
class Stats:
    """Calls of scripts, and the server's own time of them in microseconds, until now."""

    calls: int
    microseconds: int

    def since(self, earlier: Stats) -> Stats:
        """Those between two looks."""
        return Stats(self.calls - earlier.calls, self.microseconds - earlier.microseconds)

    @property
    def each(self) -> float:
        """Microseconds of a call."""
        return self.microseconds / self.calls


def script_stats(client: Redis) -> Stats:
    """What `INFO commandstats` says of EVALSHA."""
    found = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0, "usec": 0})
    return Stats(found["calls"], found["usec"])


def cpu_seconds(client: Redis) -> float:
    """Processor time of the server's main thread and the others, until now."""
    found = client.info("cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


def redis_benchmark(server: Server, count: int, spread: int, command: Sequence[str]) -> float:
    """Commands a second of 50 connections of redis-benchmark, each with one at a time.

    Args:
        server: that is asked.
        count: of commands.
        spread: each `__rand_int__` in the command becomes a number below it, in 12 digits.
        command: the words of it.

    Raises:
        MissingError: there is no redis-benchmark.
    """
    program = shutil.which("redis-benchmark")
    if program is None:
        raise MissingError("redis-benchmark isn't on the path")
    options = ["-h", server.host, "-p", str(server.port), "-c", "50", "-P", "1"]
    options += ["-n", str(count), "-r", str(spread), "--csv"]
    try:
        done = subprocess.run(
            [program, *options, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT,
            check=True,
        )
    except subprocess.SubprocessError as error:
        raise MissingError(f"redis-benchmark: {error}") from error
    rows = [*csv.DictReader(done.stdout.splitlines())]
    if not rows or "rps" not in rows[-1]:
        raise MissingError(f"redis-benchmark has another output: {done.stdout[-200:]!r}")
    return float(rows[-1]["rps"])


@dataclass(slots=True)
class Seen:
    """A command of a client, as MONITOR has shown it, and those that its script has run."""

    command: Command
    inner: list[Command] = field(default_factory=list)


@contextmanager
def monitored(server: Server) -> Iterator[list[Seen]]:
    """Watch what a server is asked in a `with` block; the list is filled at its end."""
    seen: list[Seen] = []
    with (
        control(server) as client,
        socket.create_connection((server.host, server.port), _ANSWER_TIMEOUT) as watcher,
        watcher.makefile("rb") as lines,
    ):
        # What its connection begins with is not to be seen.
        client.ping()
        watcher.sendall(b"MONITOR\r\n")
        assert lines.readline() == b"+OK\r\n"
        yield seen
        client.echo(_END)
        for line in lines:
            match = _MONITORED.fullmatch(line)
            assert match is not None, line
            words = tuple(codecs.escape_decode(word)[0] for word in _WORD.findall(match["words"]))
            if words[1:] == (_END,):
                return
            if match["client"] == b"lua":
                seen[-1].inner.append(words)
            else:
                seen.append(Seen(words))


def pack(commands: Iterable[Command]) -> bytes:
    """Commands as they are sent."""
    return b"".join([hiredis.pack_command(each) for each in commands])  # type: ignore[arg-type]


def stream(server: Server, packed: bytes) -> tuple[float, list[Any]]:
    """Send commands through one socket, all of them at once.

    Returns:
        The seconds until the last reply was read, and the replies, which are parsed after that.
    """
    received: list[bytes] = []
    with socket.create_connection((server.host, server.port), _ANSWER_TIMEOUT) as link:
        begun = time.perf_counter()
        # The server keeps replies that are not read yet: nobody waits for the other.
        link.sendall(packed + pack([(b"ECHO", _END)]))
        while not (received and b"".join(received[-2:]).endswith(_END + b"\r\n")):
            data = link.recv(_AT_ONCE)
            assert data, "the server has closed the connection"
            received.append(data)
        seconds = time.perf_counter() - begun
    reader = hiredis.Reader()
    reader.feed(b"".join(received))
    replies = [*iter(reader.gets, _END)]
    return seconds, replies
