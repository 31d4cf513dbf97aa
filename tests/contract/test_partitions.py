"""A namespace of several partitions is one World (contract, sections 5 to 7)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import pytest
import pytest_asyncio
from redis.crc import key_slot

from redis_world import RedisWorld
from redis_world.errors import (
    ConfigurationError,
    EntityConflictError,
    HookNotFoundError,
    MessageNotFoundError,
)
from redis_world.keys import Partitions
from redis_world.models import HookConflictEvent
from redis_world.queue import FollowUp
from redis_world.testing import ManualClock, check_invariants
from redis_world.worker import Worker
from support import events as e
from support.backends import Backend
from support.queue_tools import content, health_check, step, wake
from support.until import until

pytestmark = pytest.mark.large

PARTITIONS: Final = 8
TOPIC: Final = "__wkf_workflow_"
NAME: Final = f"{TOPIC}orders"
Clocked = tuple[RedisWorld, ManualClock]


@pytest_asyncio.fixture
async def wide(backend: Backend) -> AsyncIterator[Clocked]:
    """A World of several partitions, whose clock stands still."""
    library = ManualClock.library()
    async with backend.world(partitions=PARTITIONS, library=library) as world:
        yield world, await ManualClock(world).set()


def place_of(world: RedisWorld, run_id: str) -> int:
    return world.connection.partitions.of(run_id).number


async def run_in(world: RedisWorld, partition: int) -> str:
    """A running run that lies in this partition."""
    while place_of(world, run_id := e.new_run_id()) != partition:
        pass
    await e.write(world, run_id, e.run_created(), e.event("run_started"))
    return run_id


async def runs_everywhere(world: RedisWorld, of_each: int = 1) -> list[str]:
    return [await run_in(world, p) for p in range(PARTITIONS) for _ in range(of_each)]


async def pages(listing: Any, **options: Any) -> list[list[Any]]:
    """All pages of a listing, each by the cursor of the one before."""
    found, cursor = [], None
    while True:
        page = await listing(cursor=cursor, **options)
        found.append(page.data)
        if not page.has_more:
            return found
        cursor = page.cursor


# -- where keys lie ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 16, 64, 1024])
def test_partitions_spread_over_all_slots(count: int) -> None:
    """Each lies in its own share of a cluster's slots, so that every node has as many."""
    slots = [key_slot(keys.base.encode()) for keys in Partitions("orders", count)]
    assert [slot * count // 16_384 for slot in slots] == list(range(count))


@pytest.mark.parametrize("count", [2, 16, 64])
def test_runs_spread_over_all_partitions(count: int) -> None:
    partitions = Partitions("orders", count)
    runs = Counter(partitions.of(e.new_run_id()).number for _ in range(count * 200))
    assert len(runs) == count
    assert max(runs.values()) < 2 * 200


async def test_a_run_lies_in_one_partition(wide: Clocked, backend: Backend) -> None:
    world, _ = wide
    run_id = await run_in(world, 3)
    await e.write(world, run_id, e.step_created(), e.hook_created(), e.wait_created())
    await world.streams.write(run_id, "out", b"1")
    await world.queue.send(NAME, content(1, run_id))
    base = world.connection.partitions[3].base.encode()
    keys = [key for key in backend.dump() if run_id.encode() in key]
    assert len(keys) > 8
    assert all(key.startswith(base) for key in keys)


@pytest.mark.parametrize("other", [1, 2, 16])
async def test_the_number_is_pinned(backend: Backend, other: int) -> None:
    namespace = backend.namespace()
    async with backend.world(namespace=namespace, partitions=PARTITIONS):
        before = backend.dump()
        world = backend.world(namespace=namespace, partitions=other)
        with pytest.raises(ConfigurationError, match=f"partitions={PARTITIONS}"):
            await world.open()
        await world.aclose()
        assert backend.dump() == before


@pytest.mark.parametrize("number", [0, -1, 1025])
def test_no_number_of_partitions(backend: Backend, number: int) -> None:
    with pytest.raises(ConfigurationError, match="partitions"):
        backend.world(partitions=number)


# -- listings ------------------------------------------------------------------------------


# Contract: 6.runs, 6.pages
@pytest.mark.large
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 5, 16, 100])
async def test_runs_are_listed_as_one(wide: Clocked, order: Any, limit: int) -> None:
    world, _ = wide
    ids = sorted(await runs_everywhere(world, 2), reverse=order == "desc")
    found = await pages(world.runs.list, limit=limit, sort_order=order)
    assert [run.run_id for page in found for run in page] == ids
    assert all(len(page) == limit for page in found[:-1])
    assert found[-1]
    found = await pages(world.runs.list, limit=limit, sort_order=order, status="running")
    assert [run.run_id for page in found for run in page] == ids


# Contract: 6.pages
async def test_a_cursor_finds_what_came_after(wide: Clocked) -> None:
    world, _ = wide
    await runs_everywhere(world)
    page = await world.runs.list(limit=100, sort_order="asc")
    assert not page.has_more
    late = [await run_in(world, p) for p in (5, 1)]
    after = [run_id for run_id in late if run_id > page.data[-1].run_id]
    found = await world.runs.list(limit=100, sort_order="asc", cursor=page.cursor)
    assert {run.run_id for run in found.data} == {*after}


# Contract: 6.hooks, 6.pages
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_hooks_are_listed_as_one(wide: Clocked, order: Any) -> None:
    """By their creation, then by their id, wherever they lie."""
    world, clock = wide
    expected = []
    for number, run_id in enumerate(await runs_everywhere(world, 2)):
        if number % 3 == 0:
            await clock.advance(0.001)
        result = await world.events.create(run_id, e.hook_created(f"h{number % 5}", f"t{number}"))
        assert result.hook is not None
        expected.append((result.hook.created_at, result.hook.hook_id, run_id))
    expected.sort(reverse=order == "desc")
    found = await pages(world.hooks.list, limit=3, sort_order=order)
    told = [(hook.created_at, hook.hook_id, hook.run_id) for page in found for hook in page]
    assert told == expected
    for number in range(5):
        newest = max(each for each in expected if each[1] == f"h{number}")
        assert (await world.hooks.get(f"h{number}")).run_id == newest[2]


# Contract: 7.dead letters
@pytest.mark.large
async def test_dead_letters_are_listed_as_one(wide: Clocked) -> None:
    world, clock = wide
    sent = []
    for number, run_id in enumerate(await runs_everywhere(world)):
        if number % 3 == 0:
            await clock.advance(0.001)
        sent.append(await world.queue.send(NAME, content(number, run_id)))
        for _ in range(world.config.max_failures):
            for message in await world.queue.claim(TOPIC):
                await world.queue.retry(message, error="no", delay=0)

    async def listing(**options: Any) -> Any:
        return await world.queue.dead_letters(TOPIC, **options)

    found = await pages(listing, limit=3)
    assert [letter.message_id for page in found for letter in page] == sent
    assert (await world.queue.stats(TOPIC)).dead == len(sent)
    assert sent[5] is not None
    assert await world.queue.redrive(sent[5]) == sent[5]
    with pytest.raises(MessageNotFoundError):
        await world.queue.redrive(sent[5])
    assert await world.queue.redrive_all(TOPIC) == len(sent) - 1
    assert (await world.queue.stats(TOPIC)).ready == len(sent)
    await check_invariants(world)


# -- queue ---------------------------------------------------------------------------------


# Contract: 7.claim
async def test_a_claim_takes_from_all_of_them(wide: Clocked) -> None:
    """However much lies in one, the others have their share."""
    world, _ = wide
    runs = await runs_everywhere(world)
    for number in range(50):
        await world.queue.send(NAME, step(f"s{number}", runs[0]))
    for run_id in runs[1:]:
        await world.queue.send(NAME, wake(run_id))
    batch = await world.queue.claim_batch(TOPIC, limit=2 * PARTITIONS)
    assert {message.run_id for message in batch.messages} == {*runs}
    assert len(batch.messages) == 2 * PARTITIONS
    assert batch.more
    ages = [(message.due_at, message.message_id) for message in batch.messages]
    assert ages == sorted(ages)
    stats = await world.queue.stats(TOPIC)
    assert stats.leased == 2 * PARTITIONS
    assert stats.ready == 50 + len(runs) - 1 - 2 * PARTITIONS


# Contract: 7.claim
@pytest.mark.large
async def test_a_small_claim_is_fair_in_the_long_run(wide: Clocked) -> None:
    world, _ = wide
    runs = await runs_everywhere(world)
    for run_id in runs:
        for number in range(20):
            await world.queue.send(NAME, step(f"s{number}", run_id))
    first: Counter[str | None] = Counter()
    for _ in range(80):
        (message,) = await world.queue.claim(TOPIC, limit=1)
        first[message.run_id] += 1
    assert len(first) == len(runs)


async def test_when_to_come_again(wide: Clocked) -> None:
    world, clock = wide
    one, other = await run_in(world, 1), await run_in(world, 6)
    assert (await world.queue.claim_batch(TOPIC)).wait is None
    await world.queue.send(NAME, content(1, one), delay=30)
    await world.queue.send(NAME, content(2, other), delay=20)
    assert (await world.queue.claim_batch(TOPIC)).wait == 20
    await clock.advance(20)
    batch = await world.queue.claim_batch(TOPIC, lease=60)
    assert (len(batch.messages), batch.wait) == (1, 10)


# Contract: 7.receipts, 7.continuation, 7.idempotency keys
@pytest.mark.parametrize("payload", [content(1, "wrun_x"), health_check()], ids=["run", "none"])
async def test_a_message_is_ended_where_it_lies(wide: Clocked, payload: dict[str, Any]) -> None:
    world, clock = wide
    sent = await world.queue.send(NAME, payload, idempotency_key="key")
    (message,) = await world.queue.claim(TOPIC)
    assert await world.queue.extend(message)
    assert await world.queue.retry(message, error="no", delay=0)
    (message,) = await world.queue.claim(TOPIC)
    assert await world.queue.release(message)
    (message,) = await world.queue.claim(TOPIC)
    assert message.message_id == sent
    assert await world.queue.ack(message, follow_up=FollowUp(delay=1, idempotency_key="own"))
    again = await world.queue.send(NAME, payload, idempotency_key="own")
    assert (await world.queue.stats(TOPIC)).delayed == 1, "the same key is the same message"
    await clock.advance(1)
    (message,) = await world.queue.claim(TOPIC)
    assert message.message_id == again
    assert await world.queue.ack(message)
    assert await world.queue.topics() == [TOPIC]


# Contract: 7.no run is left behind, 5.run retention
async def test_a_sweep_sees_to_all_of_them(wide: Clocked) -> None:
    world, clock = wide
    runs = await runs_everywhere(world)
    await clock.advance(world.config.sweep_interval)
    assert (await world.sweep())["woken_runs"] == len(runs)
    messages = await world.queue.claim(TOPIC, limit=100)
    assert {message.run_id for message in messages} == {*runs}
    await asyncio.gather(*(world.queue.ack(message) for message in messages))
    await asyncio.gather(*(e.write(world, each, e.run_ended("failed")) for each in runs))
    await check_invariants(world)
    assert await world.prune(0, dry_run=True) == len(runs)
    await clock.advance(timedelta(days=30))
    assert (await world.sweep())["removed_runs"] == len(runs)
    await check_invariants(world)


async def test_a_worker_is_hinted_from_all_of_them(backend: Backend) -> None:
    async with backend.world(partitions=PARTITIONS) as world:
        seen: set[str] = set()

        async def handler(payload: Any, **_: Any) -> None:
            seen.add(payload["runId"])

        worker = Worker(world, {TOPIC: handler}, sweep_interval=3600)
        running = asyncio.create_task(worker.run())
        try:
            for _ in range(3):
                runs = {e.new_run_id() for _ in range(20)}
                await asyncio.gather(*(world.queue.send(NAME, wake(each)) for each in runs))
                await until(lambda runs=runs: runs <= seen)  # type: ignore[misc]
        finally:
            worker.stop()
            await running


# -- tokens --------------------------------------------------------------------------------


async def claim_token(world: RedisWorld, run_id: str, hook: str = "hook") -> str | None:
    """Who is said to hold the token; None for the one who has just got it."""
    result = await world.events.create(run_id, e.hook_created(hook, "token"))
    if isinstance(result.event, HookConflictEvent):
        assert result.event.event_data is not None
        return result.event.event_data.conflicting_run_id
    assert result.hook is not None
    return None


async def end_hook(world: RedisWorld, run_id: str, how: str) -> None:
    if how == "disposal":
        await e.write(world, run_id, e.hook_disposed("hook"))
    elif how == "removal":
        await e.write(world, run_id, e.run_ended("completed"))
        assert await world.prune(0) == 1
    else:
        await e.write(world, run_id, e.run_ended("cancelled"))


# Contract: 5.tokens across partitions
@pytest.mark.large
@pytest.mark.parametrize("owner_in", range(PARTITIONS))
async def test_a_token_has_one_hook_wherever_they_lie(wide: Clocked, owner_in: int) -> None:
    world, _ = wide
    owner = await run_in(world, owner_in)
    assert await claim_token(world, owner) is None
    for run_id in await runs_everywhere(world):
        assert await claim_token(world, run_id) == owner
    assert (await world.hooks.get_by_token("token")).run_id == owner
    await check_invariants(world)


# Contract: 5.tokens across partitions
@pytest.mark.parametrize("how", ["disposal", "end", "removal"])
@pytest.mark.parametrize("swept", [False, True], ids=["unswept", "swept"])
async def test_a_token_is_free_in_the_same_instant(wide: Clocked, how: str, swept: bool) -> None:
    world, clock = wide
    owner = await run_in(world, 2)
    await claim_token(world, owner)
    await end_hook(world, owner, how)
    with pytest.raises(HookNotFoundError):
        await world.hooks.get_by_token("token")
    if swept:
        await clock.advance(10)
        await world.sweep()
        await check_invariants(world)
    other = await run_in(world, 5)
    assert await claim_token(world, other) is None
    # What is cleaned late takes nothing from the new holder.
    await clock.advance(10)
    await world.sweep()
    assert (await world.hooks.get_by_token("token")).run_id == other
    await check_invariants(world)


# Contract: 5.tokens across partitions, 5.hook retention
async def test_a_retained_hook_holds_its_token(wide: Clocked) -> None:
    world, clock = wide
    owner, other, third = [await run_in(world, p) for p in (1, 4, 6)]
    until_then = clock.now + timedelta(minutes=1)
    await e.write(world, owner, e.hook_created("hook", "token", tokenRetentionUntil=until_then))
    await e.write(world, owner, e.run_ended("completed"))
    assert await claim_token(world, other) == owner
    await clock.advance(59.999)
    assert (await world.hooks.get_by_token("token")).run_id == owner
    await clock.advance(0.001)
    with pytest.raises(HookNotFoundError):
        await world.hooks.get_by_token("token")
    assert await claim_token(world, third) is None
    await world.sweep()
    await check_invariants(world)


# Contract: 5.tokens across partitions, 1.rivals
async def test_of_rivals_one_gets_the_token(backend: Backend) -> None:
    namespace = backend.namespace()
    options: dict[str, Any] = {"namespace": namespace, "partitions": PARTITIONS}
    async with contextlib.AsyncExitStack() as stack:
        worlds = [await stack.enter_async_context(backend.world(**options)) for _ in range(4)]
        runs = await runs_everywhere(worlds[0], 2)
        found = await asyncio.gather(
            *(claim_token(worlds[n % 4], run_id) for n, run_id in enumerate(runs))
        )
        (winner,) = [run_id for run_id, told in zip(runs, found, strict=True) if told is None]
        assert {told for told in found if told is not None} == {winner}
        assert (await worlds[0].hooks.get_by_token("token")).run_id == winner
        await check_invariants(worlds[0])


# Contract: 5.tokens across partitions
async def test_a_reservation_whose_creator_is_gone_ends(wide: Clocked) -> None:
    """After the time that a creator has the next one gets the token, and the late one does not."""
    world, clock = wide
    gone, other = await run_in(world, 0), await run_in(world, 7)
    call = world.connection.call_then
    stopped = asyncio.Event()
    go_on = asyncio.Event()

    async def stop_in_front_of_the_hook(name: str, keys: Any, args: Any, commands: Any) -> Any:
        if args.get("phase") == "create" and args["run_id"] == gone and not go_on.is_set():
            stopped.set()
            await go_on.wait()
        return await call(name, keys, args, commands)

    world.connection.call_then = stop_in_front_of_the_hook  # type: ignore[method-assign]
    late = asyncio.create_task(claim_token(world, gone))
    await stopped.wait()
    await clock.advance(3.001)
    assert await claim_token(world, other) is None
    go_on.set()
    assert await late == other
    await check_invariants(world)


# Contract: 5.tokens across partitions
async def test_a_reservation_that_nobody_wants_goes_by_itself(wide: Clocked) -> None:
    world, clock = wide
    run_id = await run_in(world, 0)
    call = world.connection.call_then

    async def fail(name: str, keys: Any, args: Any, commands: Any) -> Any:
        if args.get("phase") == "create":
            raise ConnectionResetError
        return await call(name, keys, args, commands)

    world.connection.call_then = fail  # type: ignore[method-assign]
    with pytest.raises(ConnectionResetError):
        await claim_token(world, run_id)
    world.connection.call_then = call  # type: ignore[method-assign]
    await clock.advance(10)
    await world.sweep()
    keys = world.connection.partitions.of("token")
    found = await world.connection.execute(
        ("EXISTS", keys.token("token")), ("ZCARD", keys.reservations)
    )
    assert found == [0, 0]
    # Its creator may come yet, under a new number.
    assert await claim_token(world, run_id) is None
    await check_invariants(world)


# Contract: 5.tokens across partitions, 5.hook_created
async def test_a_stale_replay_creates_its_hook_no_second_time(wide: Clocked) -> None:
    world, _ = wide
    run_id = await run_in(world, 3)
    await claim_token(world, run_id)
    with pytest.raises(EntityConflictError):
        await claim_token(world, run_id)
    await end_hook(world, run_id, "disposal")
    with pytest.raises(EntityConflictError):
        await claim_token(world, run_id)
    await check_invariants(world)
