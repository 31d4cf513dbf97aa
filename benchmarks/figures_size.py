"""Figures of size: what a long history, queue or list costs, and what a run takes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from figures_base import (
    Figure,
    Measured,
    Run,
    alternate,
    control,
    monitored,
    opened,
    rounded,
    script_stats,
    together,
)
from peers.base import PAYLOAD, STEPS
from peers.servers import private_redis
from peers.storage import in_batches, one_by_one
from redis import Redis
from ulid import ULID

from redis_world import RedisWorld
from redis_world.lua import default_library

__all__ = ["FIGURES"]

ROUNDS: Final = 11
AT_ONCE: Final = 512
"""Calls that fill a server, in one packet."""

_COPY: Final = """\
-- Copies keys, and adds to indexes, once for each id.
local copies, indexes = tonumber(ARGV[1]), tonumber(ARGV[2])
local first = 3 + 3 * copies + 2 * indexes
for place = first, #ARGV do
  local id = ARGV[place]
  for at = 3, 3 * copies, 3 do
    redis.call('COPY', ARGV[at], ARGV[at + 1] .. id .. ARGV[at + 2])
  end
  for at = 3 + 3 * copies, first - 2, 2 do
    redis.call('ZADD', ARGV[at], ARGV[at + 1], id)
  end
end
"""
_COPIED_AT_ONCE: Final = 5000


# -- a long one against a short one --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a call has taken in a round, in microseconds: of the server, and at the clock."""

    server: float
    wall: float


def _timed(client: Redis, run: Run, calls: Coroutine[Any, Any, Any]) -> _Cost:
    """Run calls, each of which is one script."""
    before = script_stats(client)
    begun = time.perf_counter()
    run(calls)
    seconds = time.perf_counter() - begun
    spent = script_stats(client).since(before)
    return _Cost(spent.each, seconds / spent.calls * 1e6)


def _compared(what: str, much: str, little: str, costs: Sequence[Sequence[_Cost]]) -> Measured:
    """The cost where there is much against that where there is little."""
    sides = {
        f"{name}, µs {of}": [getattr(cost, attribute) for cost in side]
        for name, side in zip((much, little), costs, strict=True)
        for of, attribute in (("of the server", "server"), ("at the clock", "wall"))
    }
    server, wall, less_server, less_wall = map(median, sides.values())
    return Measured(
        server / less_server,
        "x",
        f"{what}: {much} against {little}. Server time: {server:,.1f} µs against"
        f" {less_server:,.1f} µs. Wall time, one call at a time: {wall:,.0f} µs against"
        f" {less_wall:,.0f} µs ({wall / less_wall:.2f} x).",
        {name: rounded(side) for name, side in sides.items()},
    )


def _copy(
    client: Redis,
    ids: Sequence[str],
    keys: Sequence[tuple[str, str, str]],
    indexes: Sequence[tuple[str, float | str]],
) -> None:
    """Write what many calls would have written, as copies of what one call has.

    Args:
        client: of a server that nobody else uses.
        ids: of the copies.
        keys: source, and prefix and suffix of the target, around the id.
        indexes: a sorted set and the score there.
    """
    copy = client.register_script(_COPY)
    head = [len(keys), len(indexes), *(each for group in (*keys, *indexes) for each in group)]
    for first in range(0, len(ids), _COPIED_AT_ONCE):
        copy(args=[*head, *ids[first : first + _COPIED_AT_ONCE]])


# -- history -------------------------------------------------------------------------------

LONG: Final = 100_000
SHORT: Final = 10
STARTS: Final = 50
"""Measured in each round, one after the other."""


async def _run_with_events(world: RedisWorld, events: int) -> str:
    """A run of which the next event has this number; most are starts of one step."""
    create = world.events.create
    start = {"deploymentId": "", "workflowName": "figures", "input": PAYLOAD}
    created = await create(None, {"eventType": "run_created", "eventData": start})
    assert created.run is not None
    run_id = created.run.run_id
    await create(run_id, {"eventType": "run_started"}, skip_preload=True)
    step = {"stepName": "s", "input": PAYLOAD}
    await create(run_id, {"eventType": "step_created", "correlationId": "s", "eventData": step})
    left = events - 4
    await together(range(left), lambda _: _start_step(world, run_id), min(AT_ONCE, left))
    return run_id


def _start_step(world: RedisWorld, run_id: str) -> Awaitable[object]:
    event = {"eventType": "step_started", "correlationId": "s"}
    return world.events.create(run_id, event, resolve_data="none")


def history() -> Measured:
    """An event of a run with many against one of a run with few."""
    with (
        private_redis() as server,
        control(server) as client,
        opened(server.url, max_events_per_run=None) as (world, run),
    ):

        async def starts(run_id: str) -> None:
            for _ in range(STARTS):
                await _start_step(world, run_id)

        long = run(_run_with_events(world, LONG))

        def much() -> _Cost:
            return _timed(client, run, starts(long))

        def little() -> _Cost:
            return _timed(client, run, starts(run(_run_with_events(world, SHORT))))

        alternate(1, much, little)
        costs = alternate(ROUNDS, much, little)
    return _compared("A bare step_started", f"event {LONG:,}", f"event {SHORT}", costs)


# -- claim ---------------------------------------------------------------------------------

MANY_DELAYED: Final = 1_000_000
FEW_DELAYED: Final = 10
CLAIMS: Final = 50
TOPIC: Final = "__wkf_workflow_"
DELAY: Final = 3600.0


_COPY_MESSAGE: Final = """
local source, prefix, due, score, first = unpack(ARGV, 1, 5)
local fields = redis.call('HGETALL', source)
for at = 6, #ARGV do
  local id, copied = ARGV[at], {}
  for i = 1, #fields, 2 do
    copied[i], copied[i + 1] = string.gsub(fields[i], first .. '$', id), fields[i + 1]
  end
  redis.call('HSET', prefix .. id, unpack(copied))
  redis.call('ZADD', due, score, id .. '/')
end
"""
"""Stores a message of no run again under other ids: its fields end in its id."""


async def _delay(world: RedisWorld, client: Redis, count: int) -> None:
    """Have so many messages that aren't due; all but the first are copies of it."""
    keys = world.connection.keys
    first = await world.queue.send(f"{TOPIC}figures", {"number": 0}, delay=DELAY)
    assert first is not None
    due = keys.topic(TOPIC, "due")
    score = client.zscore(due, f"{first}/")
    assert score is not None
    copy = client.register_script(_COPY_MESSAGE)
    head = [keys.message(TOPIC, first), keys.message(TOPIC, ""), due, str(score), first]
    ids = [f"msg_{ULID()}" for _ in range(count - 1)]
    for at in range(0, len(ids), _COPIED_AT_ONCE):
        copy(args=[*head, *ids[at : at + _COPIED_AT_ONCE]])
    stats = await world.queue.stats(TOPIC)
    assert stats.delayed == count, stats


def claim() -> Measured:
    """A claim where many messages are delayed against one where few are."""
    with (
        private_redis() as server,
        control(server) as client,
        opened(server.url, namespace="many") as (many, run),
    ):
        few = RedisWorld(server.url, namespace="few")

        async def prepare(world: RedisWorld) -> None:
            sends = (world.queue.send(f"{TOPIC}figures", {"number": n}) for n in range(CLAIMS))
            await asyncio.gather(*sends)

        async def claims(world: RedisWorld, claimed: list[Any]) -> None:
            for _ in range(CLAIMS):
                claimed += await world.queue.claim(TOPIC, limit=1)

        async def ack(world: RedisWorld, claimed: list[Any]) -> None:
            assert len(claimed) == CLAIMS
            await asyncio.gather(*map(world.queue.ack, claimed))

        def side(world: RedisWorld) -> _Cost:
            claimed: list[Any] = []
            run(prepare(world))
            cost = _timed(client, run, claims(world, claimed))
            run(ack(world, claimed))
            return cost

        run(few.open())
        try:
            run(_delay(many, client, MANY_DELAYED))
            run(_delay(few, client, FEW_DELAYED))
            alternate(1, lambda: side(many), lambda: side(few))
            costs = alternate(ROUNDS, lambda: side(many), lambda: side(few))
        finally:
            run(few.aclose())
    return _compared(
        "A claim of one message. Delayed messages in its topic (copies of one)",
        f"{MANY_DELAYED:,}",
        f"{FEW_DELAYED}",
        costs,
    )


# -- listing -------------------------------------------------------------------------------

MANY_RUNS: Final = 1_000_000
FEW_RUNS: Final = 1_000
PAGE: Final = 100
PAGES: Final = 5
"""Read in each round, from the newest run on."""


async def _fill_with_runs(world: RedisWorld, client: Redis, count: int) -> None:
    """Have so many runs; all but the first are copies of it, without their logs."""
    keys = world.connection.keys
    # As a run is that has begun: it has its input, and no output yet.
    start = {"deploymentId": "", "workflowName": "figures", "input": PAYLOAD}
    created = await world.events.create(None, {"eventType": "run_created", "eventData": start})
    assert created.run is not None
    first = created.run.run_id
    await world.events.create(first, {"eventType": "run_started"}, skip_preload=True)
    source, target = keys.of_run(first), keys.of_run("")
    suffixes = [own.removeprefix(source.run) for own in (source.attributes, source.payloads)]
    indexes = [keys.runs, keys.runs_of_status("running")]
    indexes.append(keys.runs_of_workflow("figures", "running"))
    assert all(client.zscore(index, first) is not None for index in indexes)
    _copy(
        client,
        [f"wrun_{ULID()}" for _ in range(count - 1)],
        [(f"{source.run}{suffix}", target.run, suffix) for suffix in ("", *suffixes)],
        [(index, "0") for index in indexes],
    )
    assert client.zcard(keys.runs) == count


def _listing(**options: Any) -> Measured:
    with (
        private_redis() as server,
        control(server) as client,
        opened(server.url, namespace="many") as (many, run),
    ):
        few = RedisWorld(server.url, namespace="few")

        async def pages(world: RedisWorld) -> None:
            cursor = None
            for _ in range(PAGES):
                page = await world.runs.list(limit=PAGE, cursor=cursor, **options)
                assert len(page.data) == PAGE
                cursor = page.cursor

        run(few.open())
        try:
            run(_fill_with_runs(many, client, MANY_RUNS))
            run(_fill_with_runs(few, client, FEW_RUNS))
            sides = [
                lambda world=world: _timed(client, run, pages(world)) for world in (many, few)
            ]
            alternate(1, *sides)
            costs = alternate(ROUNDS, *sides)
        finally:
            run(few.aclose())
    return _compared(
        f"A page of {PAGE} runs. Stored runs (copies of one)",
        f"{MANY_RUNS:,}",
        f"{FEW_RUNS:,}",
        costs,
    )


# -- memory and round trips ----------------------------------------------------------------

STORED_RUNS: Final = 500
STORED_ROUNDS: Final = 3
CALLED_RUNS: Final = 20
_STEP_NAME: Final = "step//./app//charge_card"


async def _whole_run(world: RedisWorld, payload: bytes) -> None:
    """A finished run of ten steps, all of whose inputs and outputs are this payload.

    Its steps are named as the Python SDK names them.
    """

    async def create(run_id: str | None, kind: str, step: str | None = None, **data: Any) -> str:
        event: dict[str, Any] = {"eventType": kind}
        if step is not None:
            event["correlationId"] = step
        if data:
            event["eventData"] = data
        written = await world.events.create(run_id, event, skip_preload=True, resolve_data="none")
        assert written.event is not None
        assert written.event.run_id is not None
        return written.event.run_id

    run_id = await create(
        None, "run_created", deploymentId="", workflowName="figures", input=payload
    )
    await create(run_id, "run_started")
    for _ in range(STEPS):
        step = f"step_{ULID()}"
        await create(run_id, "step_created", step, stepName=_STEP_NAME, input=payload)
        await create(run_id, "step_started", step)
        await create(run_id, "step_completed", step, result=payload)
    await create(run_id, "run_completed", output=payload)


def _memory(size: int) -> Measured:
    with (
        private_redis() as server,
        control(server) as client,
        opened(server.url) as (world, run),
    ):

        def used() -> tuple[int, int]:
            found = client.info("memory")
            return int(found["used_memory_dataset"]), int(found["used_memory"])

        async def write() -> None:
            await together(range(STORED_RUNS), lambda _: _whole_run(world, b"x" * size))

        run(write())
        datasets, totals = [], []
        for _ in range(STORED_ROUNDS):
            before = used()
            run(write())
            dataset, total = (now - then for now, then in zip(used(), before, strict=True))
            datasets.append(dataset / STORED_RUNS / 1024)
            totals.append(total / STORED_RUNS / 1024)
    payloads = (2 * STEPS + 2) * size / 1024
    return Measured(
        median(datasets),
        "KB",
        f"Memory of a finished ten-step run in used_memory_dataset: {median(datasets):,.1f} KB."
        f" {payloads:,.1f} KB of it are {2 * STEPS + 2} payloads of {size:,} bytes. Step ids are"
        f" those of the SDK, step names have {len(_STEP_NAME)} characters. In used_memory:"
        f" {median(totals):,.1f} KB.",
        {"used_memory_dataset, KB": rounded(datasets, 2), "used_memory, KB": rounded(totals, 2)},
    )


def _round_trips(write: Callable[[RedisWorld], Awaitable[str]]) -> Measured:
    names = {script.sha.encode(): script.name for script in default_library()}
    with (
        private_redis() as server,
        control(server) as client,
        opened(server.url) as (world, run),
    ):

        async def several() -> None:
            for _ in range(CALLED_RUNS):
                await write(world)

        before = script_stats(client)
        run(several())
        scripts = script_stats(client).since(before).calls / CALLED_RUNS
        with monitored(server) as seen:
            run(several())
    asked = Counter(names.get(each.command[1], each.command[0].decode()) for each in seen)
    shares = {name: count / CALLED_RUNS for name, count in asked.most_common()}
    return Measured(
        len(seen) / CALLED_RUNS,
        "",
        f"Commands of a ten-step run. {scripts:g} of them are scripts:"
        f" `{', '.join(f'{count:g} {name}' for name, count in shares.items())}`.",
        shares,
    )


FIGURES: Final[tuple[Figure, ...]] = (
    Figure("history", "<= 1.2", history),
    Figure("claim", "<= 1.2", claim),
    Figure("listing.all", "<= 1.2", _listing),
    Figure("listing.of_status", "<= 1.2", lambda: _listing(status="running")),
    Figure("memory.256", "<= 18", lambda: _memory(256)),
    Figure("memory.4096", "<= 125", lambda: _memory(4096)),
    Figure("round_trips.create", "<= 33", lambda: _round_trips(one_by_one)),
    Figure("round_trips.create_batch", "<= 15", lambda: _round_trips(in_batches)),
)
