"""Messages whose record is gone, evicted or deleted by hand: the topic goes on (section 7)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import MessageNotFoundError
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.message_fields import find_record
from support.queue_tools import (
    LEASED_CALLS,
    RUN,
    TOPIC,
    claim_one,
    claimed_ids,
    content,
    finish_run,
    health_check,
    outcome,
    owed,
    send,
    start_run,
    step,
    wake,
)

pytestmark = pytest.mark.large

Clocked = tuple[RedisWorld, ManualClock]


def evict(backend: Backend, *message_ids: str) -> None:
    """Let records vanish, deleted by hand."""
    with contextlib.closing(backend.client()) as client:
        for message_id in message_ids:
            find_record(client, message_id).delete()


def evict_with_all_others(backend: Backend, message_id: str) -> None:
    """Let all messages of a run vanish, as a server does that evicts keys."""
    with contextlib.closing(backend.client()) as client:
        client.delete(find_record(client, message_id).key)


def lost_ones(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages that were told of as lost, at the level of errors, with their topic."""
    return [
        record.__dict__["message_id"]
        for record in caplog.records
        if record.levelno == logging.ERROR
        and record.__dict__.get("event") == "message.lost"
        and record.__dict__.get("topic") == TOPIC
    ]


# Contract: 7.delivery
@pytest.mark.parametrize("place", ["due", "postponed"])
async def test_a_claim_goes_on_behind_it(
    backend: Backend, world: RedisWorld, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    ids = [await send(world, health_check(n)) for n in range(5)]
    if place == "postponed":
        for message in await world.queue.claim(TOPIC):
            await world.queue.postpone(message, 3600)
    evict(backend, ids[0], ids[2], ids[4])
    claim = await world.queue.claim_batch(TOPIC, worker="other")
    assert sorted(m.message_id for m in claim.messages) == sorted([ids[1], ids[3]])
    assert sorted(lost_ones(caplog)) == sorted([ids[0], ids[2], ids[4]])
    for message in claim.messages:
        assert await world.queue.ack(message)
    assert await claimed_ids(world) == []
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.delayed, stats.leased, stats.postponed) == (0, 0, 0, 0)
    await check_invariants(world)


# Contract: 7.lease
@pytest.mark.parametrize("finder", ["claim", "sweep"])
async def test_a_lease_of_it_ends(
    backend: Backend, clocked: Clocked, caplog: pytest.LogCaptureFixture, finder: str
) -> None:
    world, clock = clocked
    ids = [await send(world, health_check(n)) for n in range(3)]
    assert len(await world.queue.claim(TOPIC, lease=5)) == 3
    evict(backend, ids[1])
    await clock.advance(5)
    if finder == "sweep":
        assert (await world.sweep())["expired_leases"] == 3
    assert sorted(await claimed_ids(world)) == sorted([ids[0], ids[2]])
    assert lost_ones(caplog) == [ids[1]]
    await check_invariants(world)


# Contract: 7.receipts
@pytest.mark.parametrize("name", LEASED_CALLS)
async def test_its_holder_has_lost_the_lease(
    backend: Backend, world: RedisWorld, name: str
) -> None:
    sent = await send(world, content(1))
    message = await claim_one(world)
    evict(backend, sent)
    assert await LEASED_CALLS[name](world, message) is False


# Contract: 7.dead letters
async def test_dead_letters_go_on_behind_it(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    async with backend.world(max_failures=1) as world:
        ids = [await send(world, health_check(n)) for n in range(6)]
        for message in await world.queue.claim(TOPIC):
            await world.queue.retry(message, error="no")
        evict(backend, ids[0], ids[3])
        assert isinstance(await outcome(world.queue.redrive(ids[3])), MessageNotFoundError)
        page = await world.queue.dead_letters(TOPIC, limit=2)
        found = [*page.data]
        while page.has_more:
            assert page.data
            page = await world.queue.dead_letters(TOPIC, limit=2, cursor=page.cursor)
            found += page.data
        assert sorted(letter.message_id for letter in found) == sorted(
            [ids[1], ids[2], ids[4], ids[5]]
        )
        assert sorted(lost_ones(caplog)) == sorted([ids[0], ids[3]])
        evict(backend, ids[1])
        assert await world.queue.redrive_all(TOPIC) == 3
        await check_invariants(world)


async def test_a_purge_goes_on_behind_it(backend: Backend) -> None:
    async with backend.world(max_failures=1) as world:
        ids = [await send(world, health_check(n)) for n in range(3)]
        for message in await world.queue.claim(TOPIC):
            await world.queue.retry(message, error="no")
        evict(backend, ids[1])
        assert await world.queue.purge_dead_letters(TOPIC) == 3
        await check_invariants(world)


Repair = Callable[[RedisWorld, str], Awaitable[str]]


async def _send_the_step_again(world: RedisWorld, run_id: str) -> str:
    return await send(world, step("s", run_id), idempotency_key="s")


async def _wake(world: RedisWorld, run_id: str) -> str:
    return await send(world, wake(run_id))


async def _send_the_key_again(world: RedisWorld, run_id: str) -> str:
    return await send(world, content(2, run_id), idempotency_key="k")


WAYS: Final[dict[str, tuple[dict[str, Any], dict[str, str], Repair]]] = {
    "a step": ({"stepId": "s", "stepName": "n"}, {"idempotency_key": "s"}, _send_the_step_again),
    "a wake": ({}, {}, _wake),
    "a key": ({"number": 1}, {"idempotency_key": "k"}, _send_the_key_again),
}


# Contract: 7.idempotency keys
@pytest.mark.parametrize("leased", [False, True], ids=["due", "leased"])
@pytest.mark.parametrize("what", WAYS)
async def test_a_new_message_takes_its_place(
    backend: Backend, world: RedisWorld, what: str, leased: bool
) -> None:
    """Its run names it in its bookkeeping: nobody may be merged into nothing, or wait for it."""
    run_id = await e.new_run(world)
    payload, options, repair = WAYS[what]
    sent = await send(world, {"runId": run_id, **payload}, **options)
    if leased:
        await claim_one(world)
    evict(backend, sent)
    again = await repair(world, run_id)
    assert again != sent
    message = await claim_one(world)
    assert message.message_id == again
    assert await world.queue.ack(message)


# Contract: 7.claim
async def test_held_replays_do_not_wait_for_it(backend: Backend, world: RedisWorld) -> None:
    sent = await send(world, content(1))
    leased = await claim_one(world)
    held = [await send(world, content(n)) for n in range(2, 5)]
    assert await claimed_ids(world) == []
    evict(backend, sent, held[0])
    assert await world.queue.ack(leased) is False
    last = await send(world, content(5))
    (message,) = await world.queue.claim(TOPIC)
    assert message.message_id == last
    got = []
    while True:
        assert await world.queue.ack(message)
        if not (messages := await world.queue.claim(TOPIC)):
            break
        (message,) = messages
        got.append(message.message_id)
    assert got == held[1:]


# Contract: 7.no run is left behind
async def test_a_run_that_is_owed_a_wake_gets_it(backend: Backend, clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await start_run(world)
    wakes = [await send(world, wake(run_id)), await send(world, content(1, run_id))]
    await world.queue.ack(await claim_one(world))
    evict(backend, wakes[1])
    await e.write(world, run_id, e.lazy_start("s"), e.step_completed("s"))
    assert run_id in await owed(world, run_id)
    await clock.advance(60)
    assert (await world.sweep())["woken_runs"] == 1
    (message,) = await world.queue.claim(TOPIC)
    assert message.run_id == run_id


# Contract: 5.run retention
async def test_its_run_is_removed(backend: Backend, world: RedisWorld) -> None:
    run_id = await start_run(world)
    ids = [await send(world, content(n, run_id)) for n in range(3)]
    await finish_run(world, run_id)
    evict(backend, ids[1])
    assert await world.prune(0) == 1
    assert await claimed_ids(world) == []
    await check_invariants(world)


# -- its run is not left behind ----------------------------------------------------------------

INTERVAL: Final = 15
"""Seconds of the default `sweep_interval`."""

Losing = Callable[[RedisWorld, str], Awaitable[list[str]]]
"""Brings messages of a run about; those whose records go."""


async def _due_wake(world: RedisWorld, run_id: str) -> list[str]:
    return [await send(world, wake(run_id))]


async def _due_replay(world: RedisWorld, run_id: str) -> list[str]:
    return [await send(world, content(1, run_id))]


async def _delayed(world: RedisWorld, run_id: str) -> list[str]:
    return [await send(world, content(1, run_id), delay=20)]


async def _leased(world: RedisWorld, run_id: str) -> list[str]:
    sent = await send(world, content(1, run_id))
    await claim_one(world, lease=30)
    return [sent]


async def _leased_before_a_held_one(world: RedisWorld, run_id: str) -> list[str]:
    lost = await _leased(world, run_id)
    await send(world, content(2, run_id))
    assert await claimed_ids(world) == []
    return lost


async def _held(world: RedisWorld, run_id: str) -> list[str]:
    await _leased(world, run_id)
    sent = await send(world, content(2, run_id))
    assert await claimed_ids(world) == []
    return [sent]


async def _held_before_another(world: RedisWorld, run_id: str) -> list[str]:
    lost = await _held(world, run_id)
    await send(world, content(3, run_id))
    assert await claimed_ids(world) == []
    return lost


async def _held_and_due(world: RedisWorld, run_id: str) -> list[str]:
    return [*await _held(world, run_id), await send(world, wake(run_id))]


async def _postponed(world: RedisWorld, run_id: str) -> list[str]:
    sent = await send(world, content(1, run_id))
    await world.queue.postpone(await claim_one(world), 20)
    return [sent]


async def _bury(world: RedisWorld, payload: dict[str, Any]) -> str:
    sent = await send(world, payload)
    for _ in range(world.config.max_failures):
        await world.queue.retry(await claim_one(world), error="no", delay=0)
    return sent


async def _dead(world: RedisWorld, run_id: str) -> list[str]:
    return [await _bury(world, content(1, run_id))]


async def _dead_step(world: RedisWorld, run_id: str) -> list[str]:
    await e.write(world, run_id, e.step_created("s"))
    return [await _bury(world, step("s", run_id))]


async def _due_step(world: RedisWorld, run_id: str) -> list[str]:
    await e.write(world, run_id, e.step_created("s"))
    return [await send(world, step("s", run_id), idempotency_key="s")]


async def _leased_step(world: RedisWorld, run_id: str) -> list[str]:
    lost = await _due_step(world, run_id)
    await claim_one(world, lease=30)
    return lost


STATES: Final[dict[str, Losing]] = {
    "due wake": _due_wake,
    "due replay": _due_replay,
    "delayed": _delayed,
    "leased": _leased,
    "leased, one held": _leased_before_a_held_one,
    "held": _held,
    "held, one behind it": _held_before_another,
    "held and due": _held_and_due,
    "postponed": _postponed,
    "dead": _dead,
    "dead step": _dead_step,
    "due step": _due_step,
    "leased step": _leased_step,
}


def bookkeeping(backend: Backend, world: RedisWorld, run_id: str) -> Any:
    keys = world.connection.partitions.of(run_id)
    with contextlib.closing(backend.client()) as client:
        return client.hgetall(keys.of_run(run_id).queue)


async def work(clocked: Clocked, rounds: int, limit: int = 10) -> list[Any]:
    """What claims and sweeps alone bring about, each message being done at once."""
    world, clock = clocked
    got = []
    for _ in range(rounds):
        for message in await world.queue.claim(TOPIC, limit=limit):
            got.append(message)
            assert await world.queue.ack(message)
        await clock.advance(INTERVAL)
        await world.sweep()
    return got


# Contract: 7.no run is left behind
@pytest.mark.large
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("state", STATES)
async def test_its_run_is_woken(
    backend: Backend, caplog: pytest.LogCaptureFixture, state: str, partitions: int
) -> None:
    options: dict[str, Any] = {
        "max_failures": 2,
        "partitions": partitions,
        "library": ManualClock.library(),
    }
    async with backend.world(**options) as world:
        clock = await ManualClock(world).set()
        run_id = await start_run(world)
        lost = await STATES[state](world, run_id)
        others = {
            name.removeprefix(b"message:").decode()
            for name in bookkeeping(backend, world, run_id)
            if name.startswith(b"message:")
        } - {*lost}
        evict(backend, *lost)
        got = await work((world, clock), 10)
        ids = {message.message_id for message in got}
        assert {message.run_id for message in got} == {run_id}
        assert ids >= others
        assert ids - others, "it was not woken"
        assert any(message.is_step for message in got) == state.endswith("step")
        book = bookkeeping(backend, world, run_id)
        assert int(book[b"n"]) <= 1
        assert int(book.get(b"dead", b"0")) == 0
        told = [
            record.__dict__["message_id"]
            for record in caplog.records
            if record.__dict__.get("event") == "message.lost"
            and record.__dict__.get("run_id") == run_id
        ]
        assert sorted(told) == sorted(lost)
        await check_invariants(world)


# Contract: 7.no run is left behind
@pytest.mark.parametrize("state", STATES)
async def test_a_run_that_lost_all_of_them_is_woken(backend: Backend, state: str) -> None:
    """The key that a server evicts has all messages of a run, with what is counted of them."""
    options: dict[str, Any] = {"max_failures": 2, "library": ManualClock.library()}
    async with backend.world(**options) as world:
        clock = await ManualClock(world).set()
        run_id = await start_run(world)
        (lost, *_) = await STATES[state](world, run_id)
        evict_with_all_others(backend, lost)
        got = await work((world, clock), 10)
        assert {message.run_id for message in got} == {run_id}
        assert lost not in {message.message_id for message in got}
        assert any(message.is_step for message in got) == state.endswith("step")
        assert int(bookkeeping(backend, world, run_id)[b"n"]) <= 1
        await check_invariants(world)


# Contract: 7.no run is left behind
@pytest.mark.large
async def test_many_are_lost_at_once(backend: Backend, clocked: Clocked) -> None:
    """More held replays and more steps than one script looks at."""
    world, clock = clocked
    run_id = await start_run(world)
    lost = await send(world, content(-1, run_id))
    await claim_one(world, lease=3600)
    for first in range(0, 1200, 100):
        for number in range(first, first + 100):
            await send(world, content(number, run_id))
        assert await claimed_ids(world, limit=100) == []
    assert (await world.queue.stats(TOPIC)).held == 1200
    steps = [f"s{number:04}" for number in range(1100)]
    for first in range(0, len(steps), 100):
        await world.events.create_batch(
            run_id, [e.step_created(name) for name in steps[first : first + 100]]
        )
    evict_with_all_others(backend, lost)
    await clock.advance(3600)
    got = await work((world, clock), 8, 1000)
    assert (await world.queue.stats(TOPIC)).held == 0
    assert {message.payload.get("stepId") for message in got} - {None} == {*steps}
    assert any(not message.is_step for message in got)
    await check_invariants(world)


# Contract: 7.no run is left behind
async def test_a_step_that_was_started_lazily_gets_no_message(
    backend: Backend, clocked: Clocked
) -> None:
    """The replay that started it runs it."""
    world, clock = clocked
    run_id = await start_run(world)
    await e.write(world, run_id, e.lazy_start("lazy"), e.step_created("s"))
    await e.write(world, run_id, e.step_started("s"))
    evict_with_all_others(backend, await send(world, content(1, run_id)))
    got = await work((world, clock), 6)
    assert {message.payload.get("stepId") for message in got} == {None, "s"}
    await check_invariants(world)


# Contract: 7.no run is left behind
@pytest.mark.parametrize("finder", ["claim", "sweep"])
@pytest.mark.parametrize("state", ["due wake", "leased", "dead"])
async def test_the_namespace_is_whole_until_then(
    backend: Backend, state: str, finder: str
) -> None:
    """A run that still counts on it, while it is sought, is no fault."""
    options: dict[str, Any] = {"max_failures": 2, "library": ManualClock.library()}
    async with backend.world(**options) as world:
        clock = await ManualClock(world).set()
        run_id = await start_run(world)
        evict(backend, *await STATES[state](world, run_id))
        await clock.advance(30)
        if finder == "claim":
            assert await claimed_ids(world) == []
        await world.sweep()
        await world.queue.claim(TOPIC)
        await check_invariants(world)


# Contract: 7.no run is left behind
async def test_a_run_that_is_owed_a_wake_frees_what_it_holds(
    backend: Backend, clocked: Clocked
) -> None:
    """The sweeper comes by before the lease of what is gone ends."""
    world, clock = clocked
    run_id = await start_run(world)
    leased = await send(world, content(1, run_id))
    await claim_one(world, lease=3600)
    held = await send(world, content(2, run_id))
    assert await claimed_ids(world) == []
    evict(backend, leased)
    await e.write(world, run_id, e.lazy_start("s"), e.step_completed("s"))
    got = await work((world, clock), 4)
    assert held in [message.message_id for message in got]
    await check_invariants(world)


# Contract: 7.no run is left behind
async def test_a_message_after_it_is_the_last_one(backend: Backend, clocked: Clocked) -> None:
    """The count of the run is right again, so that its end parks the run."""
    world, clock = clocked
    run_id = await start_run(world)
    evict(backend, await send(world, content(1, run_id)))
    assert await claimed_ids(world) == []
    await work((world, clock), 2)
    sent = await send(world, content(2, run_id))
    got = await work((world, clock), 5)
    assert sent in [message.message_id for message in got]
    assert len(got) > 1
    await check_invariants(world)


# Contract: 7.no run is left behind
@pytest.mark.parametrize("is_there", [True, False], ids=["a run", "no run"])
async def test_counts_of_thousands_of_messages_are_right_again(
    backend: Backend, clocked: Clocked, is_there: bool
) -> None:
    """While they are there they are too many to be counted."""
    world, clock = clocked
    run_id = await start_run(world) if is_there else RUN
    sent: list[str] = []
    for first in range(0, 1200, 400):
        names = [f"step_{n}" for n in range(first, first + 400)]
        sent += await asyncio.gather(
            *(send(world, step(name, run_id), idempotency_key=name) for name in names)
        )
    evict(backend, *sent[:3])
    for message in await world.queue.claim(TOPIC):
        assert await world.queue.ack(message)
    await clock.advance(INTERVAL)
    await world.sweep()
    while messages := await world.queue.claim(TOPIC, limit=400):
        assert all(await asyncio.gather(*map(world.queue.ack, messages)))
    await clock.advance(3600 + INTERVAL)
    await work((world, clock), 3)
    for message in await world.queue.claim(TOPIC):
        assert await world.queue.ack(message)
    keys = world.connection.partitions.of(run_id)
    (parked, lost) = await world.connection.execute(
        ("ZSCORE", keys.parked, run_id), ("EXISTS", keys.lost)
    )
    assert (parked is not None, lost) == (is_there, 0)
    await check_invariants(world)


# Contract: 7.no run is left behind
@pytest.mark.large
async def test_it_is_sought_among_many_runs(backend: Backend, clocked: Clocked) -> None:
    """More than one script looks at; and what belongs to no run is given up."""
    world, clock = clocked
    run_id = await start_run(world)
    lost = [await send(world, content(n, run_id)) for n in range(3)]
    lost.append(await send(world, health_check(1)))
    evict(backend, *lost)
    for _ in range(205):
        await finish_run(world, await start_run(world))
    assert await claimed_ids(world) == []
    got = await work((world, clock), 6)
    assert got
    (left,) = await world.connection.execute(("EXISTS", world.connection.keys.lost))
    assert left == 0
    await check_invariants(world)


# Contract: 7.no run is left behind
@pytest.mark.large
async def test_a_search_goes_on_at_the_next_sweep(
    backend: Backend, clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_world.sweeper._MAX_LOOKS", 1)
    world, clock = clocked
    run_id = await start_run(world)
    evict(backend, await send(world, content(1, run_id)))
    for _ in range(205):
        await finish_run(world, await start_run(world))
    assert {message.run_id for message in await work((world, clock), 8)} == {run_id}


# Contract: 5.run retention
@pytest.mark.parametrize("state", ["due replay", "dead", "held"])
async def test_a_run_that_is_over_is_forgotten(backend: Backend, state: str) -> None:
    options: dict[str, Any] = {"max_failures": 2, "library": ManualClock.library()}
    async with backend.world(**options) as world:
        clock = await ManualClock(world).set()
        run_id = await start_run(world)
        evict(backend, *await STATES[state](world, run_id))
        await finish_run(world, run_id)
        assert bookkeeping(backend, world, run_id)
        await work((world, clock), 10)
        assert bookkeeping(backend, world, run_id) == {}
        await check_invariants(world)


# Contract: 5.run retention
@pytest.mark.parametrize("state", ["due replay", "dead"])
async def test_a_run_may_be_removed_before_it_is_found(backend: Backend, state: str) -> None:
    options: dict[str, Any] = {"max_failures": 2, "library": ManualClock.library()}
    async with backend.world(**options) as world:
        await ManualClock(world).set()
        run_id = await start_run(world)
        evict(backend, *await STATES[state](world, run_id))
        await world.queue.claim(TOPIC)
        await world.queue.purge_dead_letters(TOPIC)
        await finish_run(world, run_id)
        assert await world.prune(0) == 1
        assert bookkeeping(backend, world, run_id) == {}
        await check_invariants(world)


PARTS: Final[dict[str, Callable[[Any], None]]] = {
    "no envelope": lambda record: record.drop("message"),
    "no state": lambda record: record.drop("state"),
    "an envelope of something else": lambda record: record.put("message", "x"),
    "a state of something else": lambda record: record.put("state", "x"),
}


# Contract: 7.delivery, 7.no run is left behind
@pytest.mark.parametrize("part", PARTS)
async def test_a_part_of_it_is_gone(
    backend: Backend, clocked: Clocked, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """What is left of it goes with it, and its run is woken."""
    world, clock = clocked
    run_id = await start_run(world)
    ids = [await send(world, {**content(n, run_id), "data": "x" * 5000}) for n in range(2)]
    with contextlib.closing(backend.client()) as client:
        PARTS[part](find_record(client, ids[0]))
    got = await work((world, clock), 4)
    assert [message.message_id for message in got[:1]] == [ids[1]]
    assert any("number" not in message.payload for message in got)
    assert lost_ones(caplog) == [ids[0]]
    await check_invariants(world)


# Contract: 7.no run is left behind
async def test_what_is_held_behind_nothing_is_due_again(
    backend: Backend, clocked: Clocked
) -> None:
    """With the leased replay its place in the bookkeeping has gone."""
    world, clock = clocked
    run_id = await start_run(world)
    leased = await send(world, content(1, run_id))
    await claim_one(world, lease=30)
    held = await send(world, content(2, run_id))
    assert await world.queue.claim(TOPIC) == []
    with contextlib.closing(backend.client()) as client:
        record = find_record(client, leased)
        record.delete()
        client.hdel(record.key, "leased")
    await clock.advance(30)
    got = await work((world, clock), 4)
    assert held in {message.message_id for message in got}
    await check_invariants(world)


async def test_two_sweepers_come_by_it(backend: Backend, clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await start_run(world)
    evict(backend, await send(world, content(1, run_id)))
    assert await world.queue.claim(TOPIC) == []
    await clock.advance(INTERVAL)
    await asyncio.gather(world.sweep(), world.sweep())
    assert {message.run_id for message in await work((world, clock), 3)} == {run_id}
    await check_invariants(world)
