"""What goes when a run has ended: its user data, or the whole of it (contract, section 5)."""

# Contract: 5.run retention

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import (
    EntityConflictError,
    EventNotFoundError,
    InvalidInputError,
    RunExpiredError,
    RunNotFoundError,
    StepNotFoundError,
    StreamClosedError,
)
from redis_world.models import Event
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.queue_tools import content, owed, step, wake

Clocked = tuple[RedisWorld, ManualClock]
TOPIC: Final = "__wkf_workflow_"
NAME: Final = f"{TOPIC}orders"
DAY: Final = timedelta(days=1)
RETENTION: Final = timedelta(days=30)
ZERO: Final[dict[str, Any]] = {"attributes": {"$retention": "0"}, "allowReservedAttributes": True}
MANY: Final = 230
"""More streams, or steps, than one script deletes at a time."""


def set_retention(value: str | None) -> dict[str, Any]:
    return e.attr_set({"$retention": value}, allowReservedAttributes=True)


# -- user data -----------------------------------------------------------------------------


async def full_run(world: RedisWorld, clock: ManualClock, **data: Any) -> str:
    """A run with a payload in every place that has one."""
    run_id = await e.new_run(world, **data)
    until_then = clock.now + DAY
    await e.write(
        world,
        run_id,
        e.lazy_start("done"),
        e.step_completed("done"),
        e.lazy_start("failed"),
        e.step_failed("failed"),
        e.lazy_start("waiting"),
        e.step_retrying("waiting"),
        e.lazy_start("running"),
        e.lazy_start("late"),
        e.hook_created("hook", "token", metadata=b"meta", tokenRetentionUntil=until_then),
        e.hook_received("hook"),
    )
    await world.streams.write_many(run_id, "open", [b"1", b"2"])
    await world.streams.write(run_id, "closed", b"3")
    await world.streams.close(run_id, "closed")
    return run_id


def payloads_of(event: Event) -> dict[str, Any]:
    names = ("input", "output", "result", "error", "payload", "metadata")
    wire = event.to_wire().get("eventData") or {}
    return {name: wire[name] for name in names if name in wire}


# Contract: 5.user data
@pytest.mark.parametrize("status", e.TERMINAL)
@pytest.mark.parametrize("late", [False, True], ids=["from the start", "set later"])
async def test_user_data_goes_with_the_end(clocked: Clocked, status: str, late: bool) -> None:
    world, clock = clocked
    run_id = await full_run(world, clock, **({} if late else ZERO))
    if late:
        await e.write(world, run_id, set_retention("0"))
    before = await world.runs.get(run_id)
    assert before.expired_at is None
    assert before.input == b"in"
    types = await e.log_types(world, run_id)
    steps = (await world.steps.list(run_id)).data

    result = await world.events.create(run_id, e.run_ended(status))

    run = await world.runs.get(run_id)
    assert result.run == run
    assert run.expired_at == run.completed_at == clock.now
    assert not {"input", "output", "error"} & run.model_fields_set
    for name in ("workflow_name", "deployment_id", "attributes", "created_at", "started_at"):
        assert getattr(run, name) == getattr(before, name)
    log = (await world.events.list(run_id)).data
    assert [event.event_type for event in log] == [*types, f"run_{status}"]
    assert [payloads_of(event) for event in log] == [{}] * len(log)
    for old, new in zip(steps, (await world.steps.list(run_id)).data, strict=True):
        assert old.model_fields_set & {"input", "output", "error"}
        assert not new.model_fields_set & {"input", "output", "error"}
        assert (new.step_id, new.status, new.attempt) == (old.step_id, old.status, old.attempt)
    hook = await world.hooks.get("hook")
    assert hook.token == "token"
    assert "metadata" not in hook.model_fields_set
    await check_invariants(world)
    (left,) = await world.connection.execute(
        ("EXISTS", world.connection.partitions.of(run_id).of_run(run_id).payloads)
    )
    assert left == 0


# Contract: 5.user data, 8.streams and runs
async def test_its_streams_are_empty_and_closed(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await full_run(world, clock, **ZERO)
    await e.write(world, run_id, e.run_ended("completed"))
    assert await world.streams.list(run_id) == ["closed", "open"]
    for name in ("open", "closed", "unknown"):
        info = await world.streams.get_info(run_id, name)
        assert (info.tail_index, info.done) == (-1, True)
        page = await world.streams.get_chunks(run_id, name)
        assert (page.data, page.done, page.has_more) == ([], True, False)
        assert [chunk async for chunk in world.streams.read(run_id, name)] == []
        assert [chunk async for chunk in world.streams.read(run_id, name, start_index=-1)] == []
        with pytest.raises(StreamClosedError):
            await world.streams.write(run_id, name, b"more")
        await world.streams.close(run_id, name)
    await check_invariants(world)


# Contract: 5.user data, 8.streams and runs
async def test_a_live_reader_comes_to_its_end(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await full_run(world, clock, **ZERO)
    reader = world.streams.read(run_id, "open")
    assert [await anext(reader), await anext(reader)] == [b"1", b"2"]
    rest = asyncio.ensure_future(anext(reader, None))
    await e.write(world, run_id, e.run_ended("completed"))
    async with asyncio.timeout(20):
        assert await rest is None


# Contract: 5.user data
async def test_a_late_outcome_keeps_no_payload(clocked: Clocked) -> None:
    """A running step may still record how it went: that, and no more."""
    world, clock = clocked
    run_id = await full_run(world, clock, **ZERO)
    await e.write(world, run_id, e.run_ended("cancelled"))
    for step_id, event, status in (
        ("running", e.step_completed("running"), "completed"),
        ("waiting", None, "pending"),
        ("late", e.step_retrying("late"), "pending"),
    ):
        if event is not None:
            result = await world.events.create(run_id, event)
            assert result.step == await world.steps.get(run_id, step_id)
        found = await world.steps.get(run_id, step_id)
        assert found.status == status
        assert not {"input", "output", "error"} & found.model_fields_set
    assert [payloads_of(event) for event in (await world.events.list(run_id)).data][-2:] == [
        {},
        {},
    ]
    await check_invariants(world)


# Contract: 5.user data
@pytest.mark.parametrize("value", [None, "1", "00", "", "-0", "0 "])
async def test_any_other_value_keeps_it(clocked: Clocked, value: str | None) -> None:
    """Also one that was `0` before the end."""
    world, clock = clocked
    run_id = await full_run(world, clock, **ZERO)
    await e.write(world, run_id, set_retention(value), e.run_ended("completed"))
    run = await world.runs.get(run_id)
    assert run.expired_at is None
    assert (run.input, run.output) == (b"in", b"out")
    assert await world.streams.list(run_id) == ["closed", "open"]
    assert (await world.streams.get_info(run_id, "open")).tail_index == 1


# Contract: 5.user data
@pytest.mark.large
async def test_many_streams_are_empty_at_once(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await e.new_run(world, **ZERO)
    await asyncio.gather(*(world.streams.write(run_id, f"s{i}", b"data") for i in range(MANY)))
    await e.write(world, run_id, e.run_ended("completed"))
    names = sorted(f"s{i}" for i in range(MANY))
    assert await world.streams.list(run_id) == names
    for name in names:
        assert (await world.streams.get_chunks(run_id, name)).data == []
        assert [chunk async for chunk in world.streams.read(run_id, name)] == []
    await check_invariants(world)
    await world.sweep()
    await check_invariants(world)
    assert await world.streams.list(run_id) == names
    keys = world.connection.partitions.of(run_id).of_run(run_id)
    (left,) = await world.connection.execute(("EXISTS", *(keys.stream(name) for name in names)))
    assert left == 0


# -- whole runs ----------------------------------------------------------------------------


async def finished_run(world: RedisWorld, status: str = "completed") -> str:
    run_id = await e.new_run(world)
    await e.write(
        world,
        run_id,
        e.step_created("step"),
        e.hook_created("hook", f"token of {run_id}"),
        e.wait_created("wait"),
        e.run_ended(status),
    )
    await world.streams.write(run_id, "out", b"1")
    return run_id


async def assert_gone(world: RedisWorld, run_id: str) -> None:
    """No read knows the run, and no key is left of it."""
    with pytest.raises(RunNotFoundError):
        await world.runs.get(run_id)
    with pytest.raises(StepNotFoundError):
        await world.steps.get(run_id, "step")
    with pytest.raises(EventNotFoundError):
        await world.events.get(run_id, f"evnt_{1:026}")
    with pytest.raises(RunNotFoundError):
        await world.events.create(run_id, e.run_ended("cancelled"))
    for page in (
        await world.events.list(run_id),
        await world.steps.list(run_id),
        await world.waits.list(run_id),
        await world.hooks.list(run_id),
    ):
        assert page.data == []
    assert await world.streams.list(run_id) == []
    assert run_id not in [run.run_id for run in (await world.runs.list(limit=1000)).data]
    pattern = f"*{run_id}*"
    keys = [key async for key in scan(world, pattern)]
    assert keys == []


async def scan(world: RedisWorld, pattern: str) -> Any:
    cursor: Any = 0
    while True:
        ((cursor, keys),) = await world.connection.execute(
            ("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        )
        for key in keys:
            yield key
        if int(cursor) == 0:
            return


@pytest.mark.parametrize("status", e.TERMINAL)
async def test_a_finished_run_goes_after_its_time(clocked: Clocked, status: str) -> None:
    world, clock = clocked
    run_id = await finished_run(world, status)
    await clock.advance(RETENTION - timedelta(milliseconds=1))
    assert (await world.sweep())["removed_runs"] == 0
    assert (await world.runs.get(run_id)).status == status
    await clock.advance(timedelta(milliseconds=1))
    assert (await world.sweep())["removed_runs"] == 1
    await assert_gone(world, run_id)
    await check_invariants(world)


async def test_live_runs_stay(clocked: Clocked) -> None:
    world, clock = clocked
    ids = {await e.new_run(world), await e.new_run(world, "pending")}
    await clock.advance(10 * RETENTION)
    assert (await world.sweep())["removed_runs"] == 0
    assert {run.run_id for run in (await world.runs.list()).data} == ids


async def test_for_ever(backend: Backend) -> None:
    async with backend.world(library=ManualClock.library(), retention=None) as world:
        clock = await ManualClock(world).set()
        run_id = await finished_run(world)
        await clock.advance(1000 * RETENTION)
        await world.sweep()
        assert (await world.runs.get(run_id)).status == "completed"


async def test_it_is_the_age_of_the_end_that_counts(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    await clock.advance(2 * RETENTION)
    await e.write(world, run_id, e.run_ended("failed"))
    await world.sweep()
    assert (await world.runs.get(run_id)).status == "failed"


# Contract: 5.run retention, 5.hook retention
@pytest.mark.parametrize("others", [0, MANY])
async def test_no_earlier_than_its_last_hook(clocked: Clocked, others: int) -> None:
    world, clock = clocked
    kept_until = clock.now + RETENTION + DAY
    run_id = await e.new_run(world)
    for number in range(others):
        await e.write(world, run_id, e.hook_created(f"hook {number}", f"token {number}"))
    await e.write(
        world,
        run_id,
        e.hook_created("hook", "token", tokenRetentionUntil=kept_until),
        e.run_ended("completed"),
    )
    await clock.advance(RETENTION)
    for _ in range(2):
        assert (await world.sweep())["removed_runs"] == 0
        assert (await world.hooks.get_by_token("token")).run_id == run_id
    await check_invariants(world)
    await clock.set(kept_until)
    assert (await world.sweep())["removed_runs"] == 1
    await assert_gone(world, run_id)
    await check_invariants(world)


async def test_its_messages_go_with_it(clocked: Clocked) -> None:
    """Due, delayed, leased, held and dead ones; those of others stay."""
    world, _ = clocked
    run_id, other = await e.new_run(world), await e.new_run(world)
    queue = world.queue
    dead = await queue.send("__dead_wkf_workflow_w", content(0, run_id))
    for _ in range(world.config.max_failures):
        (message,) = await queue.claim("__dead_wkf_workflow_")
        await queue.retry(message, error="it failed", delay=0)
    await queue.send(NAME, wake(run_id))
    leased = await queue.claim(TOPIC)
    assert len(leased) == 1
    await queue.send(NAME, content(1, run_id))
    assert await queue.claim(TOPIC) == []
    await queue.send(NAME, content(2, run_id), idempotency_key="key")
    await queue.send(NAME, step("late", run_id), delay=timedelta(days=300))
    kept = await queue.send(NAME, content(3, other))
    stats = await queue.stats(TOPIC)
    assert (stats.leased, stats.held, stats.delayed, stats.ready) == (1, 1, 1, 2)
    await e.write(world, run_id, e.run_ended("completed"))
    await check_invariants(world)

    assert await world.prune(0) == 1
    await check_invariants(world)
    stats = await queue.stats(TOPIC)
    assert (stats.leased, stats.held, stats.delayed, stats.ready) == (0, 0, 0, 1)
    assert [letter.message_id for letter in (await queue.dead_letters(TOPIC)).data] == []
    assert dead not in [
        letter.message_id for letter in (await queue.dead_letters("__dead_wkf_workflow_")).data
    ]
    assert not await queue.ack(leased[0]), "nobody holds it any more"
    assert [message.message_id for message in await queue.claim(TOPIC)] == [kept]
    await assert_gone(world, run_id)


# Contract: 5.run retention, 8.streams and runs
async def test_live_readers_and_waiters_come_to_their_end(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.streams.write(run_id, "out", b"1")
    await e.write(world, run_id, e.run_ended("completed"))
    reader = world.streams.read(run_id, "out")
    assert await anext(reader) == b"1"
    rest = asyncio.ensure_future(anext(reader, None))
    assert await world.prune(0) == 1
    async with asyncio.timeout(20):
        assert await rest is None
    with pytest.raises(RunNotFoundError):
        await world.runs.wait_for_terminal(run_id)


@pytest.mark.large
async def test_a_large_run_is_removed_piece_by_piece(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    await asyncio.gather(
        *(e.write(world, run_id, e.step_created(f"step {i}")) for i in range(MANY)),
        *(world.streams.write(run_id, f"s{i}", b"1") for i in range(MANY)),
        *(world.queue.send(NAME, content(i, run_id), delay=3600) for i in range(MANY)),
    )
    for number in range(MANY):
        await e.write(world, run_id, e.hook_created(f"hook {number}", f"t {number}"))
    await e.write(world, run_id, e.run_ended("completed"))
    await clock.advance(RETENTION)
    assert (await world.sweep())["removed_runs"] == 1
    await assert_gone(world, run_id)
    assert (await world.queue.stats(TOPIC)).delayed == 0
    await check_invariants(world)


async def remove_some(world: RedisWorld, run_id: str, older_than: str = "0") -> list[Any]:
    """The first script of a removal, which ends a run and some of its parts."""
    partition = world.connection.partitions.of(run_id)
    keys = partition.of_run(run_id)
    return await world.connection.call(
        "runs/remove",
        {"run": keys.run, "hooks": keys.hooks, "finished": partition.finished},
        {
            "base": partition.base,
            "run_id": run_id,
            "older_than": older_than,
            "mode": "",
            "after": "0",
        },
    )


@pytest.mark.large
async def fill_streams(world: RedisWorld, run_id: str) -> None:
    """More parts of a run than one script removes."""
    for number in range(MANY):
        await world.streams.write(run_id, f"stream {number}", b"x")


async def test_a_removal_that_was_interrupted_is_finished(clocked: Clocked) -> None:
    """Its id is taken as long, and nobody finds a half of it."""
    world, _ = clocked
    run_id = e.new_run_id()
    await world.events.create(run_id, e.run_created())
    await e.write(world, run_id, e.step_created("s"))
    await fill_streams(world, run_id)
    await e.write(world, run_id, e.run_ended("completed"))
    assert await remove_some(world, run_id) == [b"OK", b""]
    # Who asks for it again is told that there is more to do.
    assert await remove_some(world, run_id) == [b"OK", b""]
    await check_invariants(world)
    with pytest.raises(RunNotFoundError):
        await world.runs.get(run_id)
    with pytest.raises(EntityConflictError):
        await world.events.create(run_id, e.run_created())
    with pytest.raises(RunExpiredError):
        await world.events.create(run_id, e.resilient_start())
    assert (await world.steps.list(run_id)).data == []
    with pytest.raises(StepNotFoundError):
        await world.steps.get(run_id, "s")
    await world.sweep()
    await assert_gone(world, run_id)
    await world.events.create(run_id, e.run_created())
    assert (await world.steps.list(run_id)).data == []
    await check_invariants(world)


@pytest.mark.parametrize(
    "late", ["step_started", "step_completed", "step_failed", "step_retrying"]
)
@pytest.mark.large
async def test_the_steps_of_a_run_that_is_being_removed_are_gone(
    clocked: Clocked, late: str
) -> None:
    """Nothing is written to them, although other parts of the run are still there."""
    world, _ = clocked
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.lazy_start("s"))
    await fill_streams(world, run_id)
    await e.write(world, run_id, e.run_ended("completed"))
    assert await remove_some(world, run_id) == [b"OK", b""]
    outcomes = {"step_completed": "result", "step_failed": "error", "step_retrying": "error"}
    data = {outcomes[late]: b"x"} if late in outcomes else {}
    with pytest.raises((RunNotFoundError, StepNotFoundError)):
        await world.events.create(run_id, e.event(late, "s", **data))
    await world.sweep()
    await assert_gone(world, run_id)


async def test_a_late_janitor_finds_nothing_to_do(world: RedisWorld) -> None:
    """It has seen a run that another one has removed since, or that was created anew."""
    run_id = await e.new_run(world)
    partition = world.connection.partitions.of(run_id)
    cleaning = {"run": partition.of_run(run_id).run, "cleaning": partition.cleaning}
    chore = {"base": partition.base, "run_id": run_id, "kind": "run", "after": ""}
    assert await remove_some(world, run_id) == [b"LEFT"]
    assert await world.connection.call("runs/clean", cleaning, chore) == [b"OK", b""]
    assert (await world.runs.get(run_id)).status == "running"
    await e.write(world, run_id, e.run_ended("completed"))
    assert await remove_some(world, run_id, older_than="60000") == [b"LEFT"]
    assert (await world.runs.get(run_id)).status == "completed"


async def test_a_run_may_be_removed_by_several(world: RedisWorld) -> None:
    ids = [await finished_run(world) for _ in range(10)]
    counts = await asyncio.gather(*(world.prune(0) for _ in range(5)))
    assert sum(counts) >= len(ids)
    assert (await world.runs.list()).data == []
    await check_invariants(world)


# -- prune ---------------------------------------------------------------------------------


async def test_prune_by_age_and_status(clocked: Clocked) -> None:
    world, clock = clocked
    old = {status: await finished_run(world, status) for status in e.TERMINAL}
    await clock.advance(timedelta(hours=2))
    young = await finished_run(world)
    assert await world.prune(timedelta(hours=2), dry_run=True) == 3
    assert await world.prune(timedelta(hours=2), status=["failed"], dry_run=True) == 1
    assert len((await world.runs.list()).data) == 4
    assert await world.prune(timedelta(hours=2), status=["failed"]) == 1
    await assert_gone(world, old["failed"])
    assert await world.prune(timedelta(hours=3)) == 0
    assert await world.prune(timedelta(hours=2)) == 2
    assert [run.run_id for run in (await world.runs.list()).data] == [young]
    await check_invariants(world)


@pytest.mark.large
async def test_prune_goes_on_behind_what_it_leaves(clocked: Clocked) -> None:
    world, clock = clocked
    kept = [await finished_run(world, "failed") for _ in range(120)]
    await clock.advance(1)
    for _ in range(3):
        await finished_run(world)
    seen: list[tuple[int, int]] = []
    gone = await world.prune(
        0, status="completed", on_progress=lambda done, gone: seen.append((done, gone))
    )
    assert gone == 3
    assert seen[-1] == (123, 3)
    assert len((await world.runs.list(limit=1000)).data) == len(kept)


@pytest.mark.parametrize(
    "call",
    [
        lambda world: world.prune(0, status=["running"]),
        lambda world: world.prune(0, status="nonsense"),
        lambda world: world.prune(-1),
    ],
)
async def test_prune_refuses_what_it_can_t_do(
    world: RedisWorld, call: Callable[[RedisWorld], Awaitable[int]]
) -> None:
    with pytest.raises(InvalidInputError):
        await call(world)


async def test_a_debt_of_a_step_goes_with_its_run(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created("step"), e.run_ended("completed"))
    assert await world.prune(0) == 1
    assert not [debt for debt in await owed(world, run_id) if run_id in debt]
    await check_invariants(world)


async def test_a_run_that_was_put_off_is_found_when_its_hook_is_gone(clocked: Clocked) -> None:
    """A sweep has put it off until the hook's time; but the hook is disposed of before."""
    world, clock = clocked
    run_id = await e.new_run(world)
    until_then = clock.now + 3 * RETENTION
    await e.write(
        world,
        run_id,
        e.hook_created("hook", "token", tokenRetentionUntil=until_then),
        e.run_ended("completed"),
    )
    await clock.advance(RETENTION)
    assert (await world.sweep())["removed_runs"] == 0
    assert await world.prune(DAY, dry_run=True) == 0, "it would not go"
    await e.write(world, run_id, e.hook_disposed("hook"))
    assert await world.prune(DAY, dry_run=True) == 1
    assert (await world.sweep())["removed_runs"] == 1
    await assert_gone(world, run_id)
