"""Figures of speed: the connection, an event, and the scripts against what they consist of."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import Any, Final

from figures_base import (
    CALLERS,
    Command,
    Figure,
    Measured,
    Run,
    Seen,
    alternate,
    control,
    cpu_seconds,
    monitored,
    opened,
    pack,
    redis_benchmark,
    rounded,
    stream,
    together,
)
from peers.base import STEPS
from peers.servers import private_redis
from peers.storage import one_by_one

from redis_world import RedisWorld
from redis_world.connection.sender import Sender
from redis_world.connection.source import Source
from redis_world.lua import Script, ScriptLibrary, default_library, script_root
from redis_world.models import (
    RunCreatedData,
    RunCreatedEvent,
    RunStartedEvent,
    StepCreatedData,
    StepCreatedEvent,
)
from redis_world.testing import Server

__all__ = ["FIGURES"]

ROUNDS: Final = 7
CALLS: Final = 15_000
"""Of each round."""
SPREAD: Final = 1000
"""How many keys of a kind there are; those of each call are chosen at random."""
VALUE: Final = "x" * 100

LIKE_AN_EVENT: Final = "figures/like_an_event"
_SOURCE: Final = """\
-- Does what an event does: reads, changes a hash and an index, appends to a log.
--
-- KEYS: entity, index, log
-- ARGV: member, value
-- Returns: OK slot found

local found = redis.call('HMGET', entity, 'status', 'value')
redis.call('HSET', entity, 'status', 'pending', 'value', value)
redis.call('ZADD', index, '0', member)
local slot = redis.call('XADD', log, '*', 'value', value)
return { 'OK', slot, found[1] }
"""
_PREFIXES: Final = ("entity:", "index:", "log:")


# -- connection and events.create ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pace:
    """A round: calls a second, and microseconds of processors that each took on either side."""

    rate: float
    client: float
    server: float


@dataclass(frozen=True, slots=True)
class _Bench:
    """A server with the script that is like an event, and a World on it."""

    server: Server
    world: RedisWorld
    run: Run
    script: Script

    def by_redis_benchmark(self) -> _Pace:
        """Calls of the script a second, by redis-benchmark."""
        keys = [f"{prefix}__rand_int__" for prefix in _PREFIXES]
        words = ["EVALSHA", self.script.sha, "3", *keys, "__rand_int__", VALUE]
        return self._fresh(lambda: redis_benchmark(self.server, CALLS, SPREAD, words))

    def by_connection(self) -> _Pace:
        """Calls of the script a second, by the connection of the World."""
        work = [self._arguments() for _ in range(CALLS)]
        call = self.world.connection.call
        done = together(work, lambda each: call(LIKE_AN_EVENT, *each))
        return self._fresh(lambda: CALLS / float(self.run(done)))

    def by_sender(self) -> _Pace:
        """The same below the names of arguments and their check."""
        evalsha = (b"EVALSHA", self.script.sha.encode())
        work: list[Any] = [
            (*evalsha, *self.script.arrange(*self._arguments())) for _ in range(CALLS)
        ]

        async def send() -> float:
            client = Source(self.server.url, None, self.world.config).client()
            sender = Sender(client, self.world.config, self.world.connection.open)
            seconds = await together(work, lambda row: sender.submit([row], {0: self.script}))
            await sender.finish()
            await client.aclose()
            return seconds

        return self._fresh(lambda: CALLS / float(self.run(send())))

    def by_events(self) -> _Pace:
        """Steps created a second, from models to models."""
        return self._fresh(lambda: CALLS / float(self.run(_create_steps(self.world))))

    def _arguments(self) -> tuple[dict[str, Any], dict[str, Any]]:
        numbers = [f"{random.randrange(SPREAD):012}" for _ in range(len(_PREFIXES) + 1)]
        keys = [f"{prefix}{number}" for prefix, number in zip(_PREFIXES, numbers, strict=False)]
        return (
            dict(zip(self.script.keys, keys, strict=True)),
            {"member": numbers[-1], "value": VALUE},
        )

    def _fresh(self, measure: Callable[[], float]) -> _Pace:
        """Measure on a server that is empty, whoever was there before."""
        with control(self.server) as client:
            client.flushall()
            busy, server_busy = sum(os.times()[:4]), cpu_seconds(client)
            rate = measure()
            microseconds = 1e6 / CALLS
            return _Pace(
                rate,
                (sum(os.times()[:4]) - busy) * microseconds,
                (cpu_seconds(client) - server_busy) * microseconds,
            )


@contextmanager
def _bench() -> Iterator[_Bench]:
    library = ScriptLibrary(script_root(), {LIKE_AN_EVENT: _SOURCE})
    script = library[LIKE_AN_EVENT]
    with (
        private_redis() as server,
        opened(server.url, library=library) as (world, run),
        control(server) as client,
    ):
        client.script_load(script.source)
        yield _Bench(server, world, run, script)


async def _create_steps(world: RedisWorld) -> float:
    """Seconds of as many step_created as there are calls in a round, in a run of each caller."""
    create = world.events.create
    runs = []
    for _ in range(CALLERS):
        start = RunCreatedData(deployment_id="", workflow_name="figures", input=b"")
        created = await create(None, RunCreatedEvent(event_data=start))
        assert created.run is not None
        runs.append(created.run.run_id)
        await create(runs[-1], RunStartedEvent(), skip_preload=True)
    payload = VALUE.encode()

    async def step(number: int) -> None:
        event = StepCreatedEvent(
            correlation_id=f"step_{number}",
            event_data=StepCreatedData(step_name="s", input=payload),
        )
        result = await create(runs[number % CALLERS], event)
        assert result.step is not None

    return await together(range(CALLS), step)


def _against_redis_benchmark(
    what: str, sides: Callable[[_Bench], Sequence[tuple[str, Callable[[], _Pace]]]]
) -> Measured:
    """The first side's calls a second against those of redis-benchmark."""
    with _bench() as bench:
        named = {"redis-benchmark": bench.by_redis_benchmark, **dict(sides(bench))}
        alternate(1, *named.values())
        paces = dict(zip(named, alternate(ROUNDS, *named.values()), strict=True))
    medians = {
        name: _Pace(*(median(getattr(pace, of) for pace in own) for of in _Pace.__slots__))
        for name, own in paces.items()
    }
    raw, ours, *_ = medians.values()
    text = " ".join(
        f"{name}: {pace.rate:,.0f}/s ({pace.rate / raw.rate:.2f} x; processor time per call:"
        f" client {pace.client:.0f} µs, server {pace.server:.0f} µs)."
        for name, pace in medians.items()
    )
    return Measured(
        ours.rate / raw.rate,
        "x",
        f"{what} {text}",
        {
            name: {
                "calls/s": rounded(pace.rate for pace in own),
                "µs of the client": rounded(pace.client for pace in own),
                "µs of the server": rounded(pace.server for pace in own),
            }
            for name, own in paces.items()
        },
    )


def connection() -> Measured:
    """The connection against redis-benchmark."""
    return _against_redis_benchmark(
        f"A script like an event, called by {CALLERS} callers in one process and by 50 connections"
        " of redis-benchmark.",
        lambda bench: (
            ("connection.call", bench.by_connection),
            ("Sender.submit", bench.by_sender),
        ),
    )


def events_create() -> Measured:
    """An event from model to model against redis-benchmark."""
    return _against_redis_benchmark(
        f"events.create of StepCreatedEvent, by {CALLERS} callers in one process. A script like an"
        " event, by 50 connections of redis-benchmark.",
        lambda bench: (("events.create", bench.by_events),),
    )


# -- scripts -------------------------------------------------------------------------------

SCRIPTED_RUNS: Final = 150
SCRIPT_ROUNDS: Final = 15
OF_A_RUN: Final = {
    "run_created": 1,
    "run_started": 1,
    "step_created": STEPS,
    "step_started": STEPS,
    "step_completed": STEPS,
    "run_completed": 1,
}
"""Events, and how many of them a run has."""
_RUN: Final = "run"


def _record(server: Server) -> list[tuple[str, Seen]]:
    """The scripts of some runs, by the names of their events, each with what it has run."""
    names = {script.sha.encode(): script.name for script in default_library()}
    with opened(server.url) as (world, run), monitored(server) as seen:
        for _ in range(SCRIPTED_RUNS):
            run(one_by_one(world))
    found = []
    for each in seen:
        if each.command[0].upper() == b"EVALSHA":
            folder, _, event = names[each.command[1]].partition("/")
            assert folder == "events"
            found.append((event, each))
    assert len(found) == SCRIPTED_RUNS * sum(OF_A_RUN.values())
    return found


def _as_transaction(seen: Seen) -> list[Command]:
    return [(b"MULTI",), *seen.inner, (b"EXEC",)]


def _as_bare_script(seen: Seen) -> tuple[str, list[bytes]]:
    """A script of the same commands with nothing between them, and its arguments.

    No script that runs these commands can be faster.
    """
    lines: list[str] = []
    arguments: list[bytes] = []
    for name, *rest in seen.inner:
        places = [f"ARGV[{len(arguments) + number}]" for number in range(1, len(rest) + 1)]
        lines.append(f"last = redis.call({', '.join([repr(name.decode()), *places])})")
        arguments += rest
    return "\n".join(["local last", *lines, "return { 'OK', last }"]), arguments


@dataclass(slots=True)
class _Side:
    """What is sent by event, and whole runs; and what each round of it took, in microseconds."""

    streams: dict[str, bytes]
    is_good: Callable[[Any], bool]
    wall: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    server: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, commands: dict[str, list[Command]], is_good: Callable[[Any], bool]) -> _Side:
        """A side that sends these."""
        return cls({name: pack(each) for name, each in commands.items()}, is_good)


def _play(server: Server, side: _Side) -> None:
    """Send the streams of a side, one after the other, to an empty server."""
    with control(server) as client:
        client.flushall()
        # In the order of a run: an event that comes early is refused, one that comes twice cheap.
        for name in (*OF_A_RUN, _RUN):
            if name == _RUN:
                client.flushall()
            before = cpu_seconds(client)
            seconds, replies = stream(server, side.streams[name])
            side.server[name].append((cpu_seconds(client) - before) * 1e6)
            side.wall[name].append(seconds * 1e6)
            bad = [reply for reply in replies if not side.is_good(reply)]
            assert not bad, bad[:3]


def _is_accepted(reply: Any) -> bool:
    """Whether a script has recorded its event."""
    return isinstance(reply, list) and reply[0] == b"OK"


def _is_done(reply: Any) -> bool:
    """Whether a command was run, or all of a transaction."""
    parts = reply if isinstance(reply, list) else [reply]
    return not any(isinstance(part, Exception) for part in parts)


@cache
def _scripts() -> dict[str, Measured]:
    """Each event's script, and those of whole runs, against MULTI and EXEC."""
    scripts: defaultdict[str, list[Command]] = defaultdict(list)
    bare: defaultdict[str, list[Command]] = defaultdict(list)
    commands: defaultdict[str, list[Command]] = defaultdict(list)
    inner: defaultdict[str, set[tuple[bytes, ...]]] = defaultdict(set)
    with private_redis() as server, control(server) as client:
        load = cache(lambda source: client.script_load(source).encode())
        for event, seen in _record(server):
            source, arguments = _as_bare_script(seen)
            inner[event].add(tuple(command[0].upper() for command in seen.inner))
            for name in (event, _RUN):
                scripts[name].append(seen.command)
                bare[name].append((b"EVALSHA", load(source), b"0", *arguments))
                commands[name] += _as_transaction(seen)
        sides = (
            _Side.of(scripts, _is_accepted),
            _Side.of(bare, _is_accepted),
            _Side.of(commands, _is_done),
        )
        # The first round is not as the others are.
        alternate(SCRIPT_ROUNDS + 1, *(lambda side=side: _play(server, side) for side in sides))
    measured = {}
    for name in (*OF_A_RUN, _RUN):
        count = SCRIPTED_RUNS * OF_A_RUN.get(name, 1)
        what = "ten-step run" if name == _RUN else name
        walls, servers = (
            [[microseconds / count for microseconds in times[name][1:]] for times in of]
            for of in ([side.wall for side in sides], [side.server for side in sides])
        )
        script, floor, plain = map(median, walls)
        busy, floor_busy, plain_busy = map(median, servers)
        text = (
            f"{what}: {script:,.1f} µs with our scripts, {plain:,.1f} µs with the same commands in"
            f" MULTI and EXEC, {floor:,.1f} µs ({floor / plain:.2f} x) with scripts of only these"
            " commands. Server processor time, compared with MULTI and EXEC:"
            f" {busy / plain_busy:.2f} x with our scripts, {floor_busy / plain_busy:.2f} x with"
            " scripts of only these commands."
        )
        if name in inner:
            commands_of_it = ", ".join(word.decode() for word in max(inner[name], key=len))
            text += f" Commands: `{commands_of_it}`."
        measured[name] = Measured(
            script / plain,
            "x",
            text,
            {
                f"{side}, µs{of}": rounded(times)
                for of, all_times in (("", walls), (" of the server", servers))
                for side, times in zip(
                    ("scripts", "bare scripts", "MULTI and EXEC"), all_times, strict=True
                )
            },
        )
    return measured


FIGURES: Final[tuple[Figure, ...]] = (
    Figure("connection", ">= 0.8", connection),
    Figure("events.create", ">= 0.4", events_create),
    # Without goals: what counts is the server's time per run, against that of others.
    *(
        Figure(f"scripts.{name}", "", lambda name=name: _scripts()[name])  # type: ignore[misc]
        for name in OF_A_RUN
    ),
    Figure(f"scripts.{_RUN}", "", lambda: _scripts()[_RUN]),
)
