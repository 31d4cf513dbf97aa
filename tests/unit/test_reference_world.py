"""ReferenceWorld by itself: the situations of the contract, and what makes it a good double."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

import redis_world.testing.reference as package
from contract import test_event_table as situations
from redis_world import RedisWorld
from redis_world.errors import (
    ConfigurationError,
    EntityConflictError,
    InvalidEventError,
    InvalidInputError,
    MessageNotFoundError,
    RunNotFoundError,
    StreamClosedError,
    TooEarlyError,
    WorldError,
)
from redis_world.queue import Enqueue, FollowUp
from redis_world.testing import ReferenceWorld, memory_world
from support import events as e
from support.folding import assert_log_folds
from support.queue_tools import NAME, TOPIC, claim_one, claimed_ids, content, send, step, wake
from support.transitions import HOOK, RUN, STEP, WAIT, Outcome, Table
from support.until import until

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Clock:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reference(clock: Clock) -> ReferenceWorld:
    return ReferenceWorld(clock=clock, max_failures=2, max_lost_leases=2)


@pytest.fixture
def world(reference: ReferenceWorld) -> RedisWorld:
    """It takes the place of a RedisWorld: what is written for one works with it."""
    return cast(RedisWorld, reference)


def memory_of(reference: ReferenceWorld) -> str:
    """Everything that it has stored."""
    state = reference._state
    of_runs = state.runs, state.run_queues, state.messages, state.topics
    return repr((*of_runs, state.streams, state.stream_runs))


# -- every event in every state ----------------------------------------------------------------


def cells(table: Table) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("event", "state", "outcome"),
        [pytest.param(*cell, id=f"{cell[0]}-{cell[1]}") for cell in table.cells()],
    )


async def drive(
    reference: ReferenceWorld,
    run_id: str,
    event: str,
    outcome: Outcome,
    state_of: situations.State,
) -> None:
    """Create the event; whatever comes of it must be the outcome, and nothing else."""
    world, wire = cast(RedisWorld, reference), situations.EVENTS[event]
    before, slots = memory_of(reference), len(await e.log(world, run_id))
    if outcome.error is not None:
        with pytest.raises(WorldError) as raised:
            await reference.events.create(run_id, wire)
        assert type(raised.value) is outcome.error
        if isinstance(raised.value, EntityConflictError):
            assert raised.value.reason == outcome.reason
        assert memory_of(reference) == before
        return
    old = await state_of(world, run_id)
    await reference.events.create(run_id, wire)
    assert await state_of(world, run_id) == (outcome.state or old)
    assert len(await e.log(world, run_id)) == slots + outcome.events
    await assert_log_folds(world, run_id)


async def run_in(reference: ReferenceWorld, state: str) -> str:
    world = cast(RedisWorld, reference)
    if state == "missing":
        return e.run_id_at(NOW)
    if state in e.RUN_STATES:
        return await e.new_run(world, state)
    run_id = await e.new_run(world)
    reference._state.runs[run_id].fields["spec_version"] = int(state.removeprefix("version "))
    return run_id


@cells(RUN)
async def test_a_run(reference: ReferenceWorld, event: str, state: str, outcome: Outcome) -> None:
    run_id = await run_in(reference, state)
    await drive(reference, run_id, event, outcome, situations.run_state)


@cells(STEP)
async def test_a_step(reference: ReferenceWorld, event: str, state: str, outcome: Outcome) -> None:
    world = cast(RedisWorld, reference)
    run_id = await situations.run_with(world, situations.STEP_PATHS, state)
    await drive(reference, run_id, event, outcome, situations.step_state)


@cells(HOOK)
async def test_a_hook(reference: ReferenceWorld, event: str, state: str, outcome: Outcome) -> None:
    run_id = await situations.hook_in(cast(RedisWorld, reference), state)
    await drive(reference, run_id, event, outcome, situations.hook_state)


@cells(WAIT)
async def test_a_wait(reference: ReferenceWorld, event: str, state: str, outcome: Outcome) -> None:
    world = cast(RedisWorld, reference)
    run_id = await situations.run_with(world, situations.WAIT_PATHS, state)
    await drive(reference, run_id, event, outcome, situations.wait_state)


# -- a double ----------------------------------------------------------------------------------

PARTS = ("events", "runs", "steps", "hooks", "waits", "queue", "streams")
NOT_SHARED = {
    *("begin_replay", "extension", "failure", "from_env", "release_claims", "returning"),
}


def calls_of(part: object) -> dict[str, list[tuple[str, Any, Any]]]:
    """The public methods of a part, with names, kinds and defaults of their parameters."""
    return {
        name: [
            (parameter.name, parameter.kind, parameter.default)
            for parameter in inspect.signature(method).parameters.values()
        ]
        for name, method in inspect.getmembers(part, inspect.ismethod)
        if not name.startswith("_") and name not in NOT_SHARED
    }


@pytest.mark.parametrize("part", PARTS)
async def test_it_has_the_calls_of_a_redis_world(reference: ReferenceWorld, part: str) -> None:
    redis = memory_world()
    assert calls_of(getattr(reference, part)) == calls_of(getattr(redis, part))
    assert calls_of(reference) == calls_of(redis)


def test_it_uses_nothing_that_it_is_to_judge() -> None:
    judged = {"rows", "keys", "connection", "lua", "world", "sweeper", "hints", "memory"}
    folder = Path(inspect.getfile(package)).parent
    found = [
        node.module
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
    ]
    assert len(found) > 50
    assert {f"redis_world.{name}" for name in judged} & {*found} == set()


async def test_options_are_those_of_every_world() -> None:
    async with ReferenceWorld(namespace="n", environment="e", deployment_id="d") as world:
        assert (world.config.namespace, world.config.deployment_id) == ("n", "d")
        run_id = await e.new_run(cast(RedisWorld, world))
        made = await world.events.create(run_id, e.hook_created())
        assert made.hook is not None
        assert made.hook.environment == "e"
    with pytest.raises(ConfigurationError, match="color"):
        ReferenceWorld(color="red")


async def test_time_is_the_clocks_cut_to_milliseconds(world: RedisWorld, clock: Clock) -> None:
    clock.now = NOW.replace(microsecond=123_999)
    made = await world.events.create(None, e.run_created())
    assert made.run is not None
    assert made.run.created_at == NOW.replace(microsecond=123_000)
    assert made.run.run_id[:15] == e.run_id_at(clock.now)[:15]


async def test_time_is_the_present_by_default() -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    made = await ReferenceWorld().events.create(None, e.run_created())
    assert made.run is not None
    assert before <= made.run.created_at <= datetime.now(UTC)


async def test_what_was_stored_can_not_be_changed_by_hand(world: RedisWorld) -> None:
    payload, attributes = {"list": [1]}, {"color": "red"}
    run_id = await e.new_run(world, input=payload, attributes=attributes)
    payload["list"].append(2)
    attributes["color"] = "blue"
    (await world.runs.get(run_id)).input["list"].append(3)
    (await world.runs.get(run_id)).attributes["color"] = "green"
    run = await world.runs.get(run_id)
    assert (run.input, run.attributes) == ({"list": [1]}, {"color": "red"})
    await send(world, {"runId": run_id, "list": [1]})
    message = await claim_one(world)
    message.payload["list"].append(2)
    await world.queue.release(message)
    assert (await claim_one(world)).payload == {"runId": run_id, "list": [1]}


async def test_two_of_them_share_nothing(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    with pytest.raises(RunNotFoundError):
        await ReferenceWorld().runs.get(run_id)


async def test_a_run_id_of_another_day_is_refused(world: RedisWorld, clock: Clock) -> None:
    run_id = e.run_id_at(clock.now)
    clock.advance(86_400.001)
    with pytest.raises(InvalidEventError, match="24 hours"):
        await world.events.create(run_id, e.run_created())
    await world.events.create(run_id, e.resilient_start())


async def test_a_step_waits_for_its_retry(world: RedisWorld, clock: Clock) -> None:
    run_id = await e.new_run(world)
    retry = e.step_retrying(retryAfter=NOW + timedelta(seconds=90.001))
    await e.write(world, run_id, e.step_created(), e.step_started(), retry)
    with pytest.raises(TooEarlyError) as raised:
        await world.events.create(run_id, e.step_started())
    assert raised.value.retry_after == 91
    clock.advance(90.001)
    started = await world.events.create(run_id, e.step_started())
    assert started.step is not None
    assert (started.step.attempt, started.step.retry_after) == (2, None)


# -- queue -------------------------------------------------------------------------------------


async def test_a_wake_absorbs_until_it_is_delivered(world: RedisWorld) -> None:
    first = await send(world, wake())
    assert await send(world, wake()) == first
    assert await send(world, wake(), headers={"h": "1"}) != first
    assert await claimed_ids(world, limit=1) == [first]
    assert await send(world, wake(), deployment_id="d") != first


async def test_a_run_has_one_leased_replay(world: RedisWorld) -> None:
    sent = [await send(world, content(number)) for number in range(3)]
    message = await claim_one(world)
    assert await claimed_ids(world) == []
    assert (await world.queue.stats(TOPIC)).held == 2
    await world.queue.ack(message)
    assert await claimed_ids(world) == sent[1:2]


async def test_a_world_may_lease_replays_side_by_side() -> None:
    world = cast(RedisWorld, ReferenceWorld(serialize_runs=False))
    sent = [await send(world, content(number)) for number in range(3)]
    assert await claimed_ids(world) == sent


async def test_a_continuation_takes_over_the_key(world: RedisWorld) -> None:
    await send(world, {**content(1), "runInput": b"in"}, idempotency_key="k")
    message = await claim_one(world)
    assert await world.queue.ack(message, follow_up=FollowUp())
    again = await claim_one(world)
    assert (again.payload, again.idempotency_key, again.attempt) == (content(1), "k", 1)
    assert again.message_id != message.message_id
    assert await send(world, content(1), idempotency_key="k") == again.message_id


async def test_a_step_has_one_message_while_it_is_not_over(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    first = await send(world, step(run_id=run_id), idempotency_key="k1")
    assert await send(world, step(run_id=run_id), idempotency_key="k2") == first
    await world.queue.ack(await claim_one(world))
    await e.write(world, run_id, e.lazy_start(), e.step_completed())
    assert await world.queue.send(NAME, step(run_id=run_id)) is None


async def test_a_lost_lease_changes_nothing(world: RedisWorld, clock: Clock) -> None:
    await send(world, content(1))
    message = await claim_one(world, lease=10)
    clock.advance(10)
    again = await claim_one(world)
    assert (again.attempt, again.failures) == (2, 0)
    for call in (world.queue.ack, world.queue.retry, world.queue.release, world.queue.extend):
        assert await call(message) is False
    assert await world.queue.release(again)
    assert (await claim_one(world)).attempt == 2


@pytest.mark.parametrize("way", ["failures", "lost leases"])
async def test_a_message_dies_and_lives_again(world: RedisWorld, clock: Clock, way: str) -> None:
    message_id = await send(world, content(1))
    for _ in range(2):
        message = await claim_one(world, lease=10)
        if way == "failures":
            await world.queue.retry(message, error="no", delay=0)
        else:
            clock.advance(10)
            await world.sweep()
    (letter,) = (await world.queue.dead_letters(TOPIC)).data
    assert letter.reason == ("max_failures" if way == "failures" else "max_lost_leases")
    assert (letter.message_id, letter.attempt, letter.died_at) == (message_id, 2, clock.now)
    assert await world.queue.redrive(message_id) == message_id
    with pytest.raises(MessageNotFoundError):
        await world.queue.redrive(message_id)
    assert (await claim_one(world)).attempt == 1


async def test_messages_of_one_time_come_by_their_ids(world: RedisWorld, clock: Clock) -> None:
    late = await send(world, {"x": 1}, delay=1)
    clock.advance(1)
    sent = [await send(world, {"x": number}) for number in range(3)]
    assert [late, *sent] == sorted([late, *sent])
    assert await claimed_ids(world) == [late, *sent]


# -- no run is left behind ---------------------------------------------------------------------

Story = Callable[[RedisWorld, str], Awaitable[Any]]

NOTHING = {
    "expired_leases": 0,
    "queued_steps": 0,
    "woken_runs": 0,
    "expired_hooks": 0,
    "removed_runs": 0,
}
WOKEN = {**NOTHING, "woken_runs": 1}
QUEUED = {**NOTHING, "queued_steps": 1}


async def served_run(world: RedisWorld) -> str:
    """A running run with a message that is due much later."""
    run_id = await e.new_run(world)
    await send(world, content("timer", run_id), delay=10**6)
    assert await world.sweep() == NOTHING
    await send(world, wake(run_id))
    await world.queue.ack(await claim_one(world))
    return run_id


DEBTS = {
    "step_completed": [e.lazy_start(), e.step_completed()],
    "step_failed": [e.lazy_start(), e.step_failed()],
    "hook_received": [e.hook_created(), e.hook_received()],
}


@pytest.mark.parametrize("event", DEBTS)
async def test_an_event_without_its_wake_is_seen_to(
    world: RedisWorld, clock: Clock, event: str
) -> None:
    run_id = await served_run(world)
    await e.write(world, run_id, *DEBTS[event])
    clock.advance(14.999)
    assert await world.sweep() == NOTHING
    clock.advance(0.001)
    assert await world.sweep() == WOKEN
    assert await world.sweep() == NOTHING
    message = await claim_one(world)
    assert message.payload == {"runId": run_id, "requestedAt": clock.now}
    assert message.queue_name == NAME


@pytest.mark.parametrize("event", DEBTS)
async def test_an_event_with_its_wake_owes_nothing(
    world: RedisWorld, clock: Clock, event: str
) -> None:
    run_id = await served_run(world)
    *before, last = DEBTS[event]
    await e.write(world, run_id, *before)
    await world.events.create(run_id, last, enqueue=Enqueue(NAME, wake(run_id)))
    await world.queue.ack(await claim_one(world))
    clock.advance(3600)
    assert await world.sweep() == NOTHING


@pytest.mark.parametrize("paid_by", ["a push", "a delivery"])
async def test_a_replay_pays_the_debt(world: RedisWorld, clock: Clock, paid_by: str) -> None:
    run_id = await served_run(world)
    if paid_by == "a delivery":
        await send(world, content(1, run_id), delay=5)
    await e.write(world, run_id, *DEBTS["step_completed"])
    if paid_by == "a push":
        await send(world, content(1, run_id))
    else:
        clock.advance(5)
    await world.queue.ack(await claim_one(world))
    clock.advance(3600)
    assert await world.sweep() == NOTHING


async def test_a_run_that_sees_to_itself_is_left_alone(world: RedisWorld, clock: Clock) -> None:
    run_id = await served_run(world)
    await send(world, content(1, run_id))
    message = await claim_one(world, lease=60)
    await e.write(world, run_id, *DEBTS["step_completed"])
    clock.advance(15)
    assert await world.sweep() == NOTHING
    await world.queue.ack(message)
    clock.advance(15)
    assert await world.sweep() == WOKEN


async def test_a_step_without_its_message_is_seen_to(world: RedisWorld, clock: Clock) -> None:
    run_id = await served_run(world)
    await world.events.create(run_id, e.step_created())
    clock.advance(15)
    assert await world.sweep() == QUEUED
    message = await claim_one(world)
    assert message.idempotency_key == "step_1"
    assert message.payload == {
        "runId": run_id,
        "stepId": "step_1",
        "stepName": "s",
        "requestedAt": clock.now,
    }
    # Its message ends and it does not: it is still owed one.
    await world.queue.ack(message)
    clock.advance(15)
    assert await world.sweep() == QUEUED
    await e.write(world, run_id, e.step_started(), e.step_completed())
    await send(world, wake(run_id))
    for left in await world.queue.claim(TOPIC):
        await world.queue.ack(left)
    clock.advance(3600)
    assert await world.sweep() == NOTHING


async def test_the_message_of_a_step_pays_its_debt(world: RedisWorld, clock: Clock) -> None:
    run_id = await served_run(world)
    await world.events.create(run_id, e.step_created())
    await send(world, step(run_id=run_id))
    clock.advance(15)
    assert await world.sweep() == NOTHING


async def test_a_run_is_idle_from_the_end_of_its_last_message(
    world: RedisWorld, clock: Clock
) -> None:
    run_id = await e.new_run(world)
    await send(world, wake(run_id))
    message = await claim_one(world)
    clock.advance(30)
    await world.queue.ack(message)
    await send(world, wake(run_id))
    message = await claim_one(world)
    clock.advance(30)
    await world.queue.ack(message)
    assert await world.sweep() == NOTHING
    clock.advance(15)
    assert await world.sweep() == WOKEN


async def test_dead_letters_are_an_operators(world: RedisWorld, clock: Clock) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.step_created())
    await send(world, content(1, run_id))
    for _ in range(2):
        await world.queue.retry(await claim_one(world), delay=0)
    clock.advance(86_400)
    assert await world.sweep() == NOTHING
    assert await world.queue.purge_dead_letters(TOPIC) == 1
    clock.advance(15)
    assert await world.sweep() == {**WOKEN, "queued_steps": 1}


async def test_an_idle_run_is_woken_unless_it_waits_for_a_hook(
    world: RedisWorld, clock: Clock
) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created())
    await send(world, wake(run_id))
    await world.queue.ack(await claim_one(world))
    clock.advance(86_400)
    assert await world.sweep() == NOTHING
    await world.events.create(run_id, e.hook_disposed())
    assert await world.sweep() == NOTHING
    clock.advance(15)
    assert await world.sweep() == WOKEN


async def test_fruitless_wakes_come_ever_less_often(world: RedisWorld, clock: Clock) -> None:
    run_id = await e.new_run(world, workflowName="refunds")
    # The creation of the run has left a debt, which has nothing to do with how idle the run is.
    clock.advance(15)
    assert await world.sweep() == WOKEN
    await world.queue.ack(await claim_one(world))
    pauses: list[int] = []
    pause = 0
    while len(pauses) < 12:
        clock.advance(15)
        pause += 15
        if await world.sweep() == WOKEN:
            message = await claim_one(world)
            assert message.queue_name == TOPIC + "refunds"
            await world.queue.ack(message)
            pauses.append(pause)
            pause = 0
    assert pauses == [15, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600, 3600]
    await world.events.create(run_id, e.step_created())
    clock.advance(15)
    assert (await world.sweep())["queued_steps"] == 1


async def test_a_run_of_a_workflow_without_a_name_is_woken_too(
    world: RedisWorld, clock: Clock
) -> None:
    run_id = await e.new_run(world, workflowName="")
    clock.advance(15)
    assert await world.sweep() == WOKEN
    assert (await claim_one(world)).queue_name == TOPIC + run_id


@pytest.mark.parametrize(
    "message",
    [{"__healthCheck": True}, {"stepId": "other"}, {"delayed": True}],
    ids=["of no run", "of a step", "for later"],
)
async def test_a_message_that_is_no_replay_does_not_do(
    world: RedisWorld, clock: Clock, message: dict[str, Any]
) -> None:
    run_id = await served_run(world)
    *before, last = DEBTS["step_completed"]
    await e.write(world, run_id, *before)
    delay = 60 if "delayed" in message else 0
    enqueue = Enqueue(NAME, {"runId": run_id, **message}, delay)
    await world.events.create(run_id, last, enqueue=enqueue)
    clock.advance(15)
    assert await world.sweep() == WOKEN


async def test_nothing_is_owed_to_what_has_ended(world: RedisWorld, clock: Clock) -> None:
    run_id = await e.new_run(world)
    await e.write(
        world, run_id, e.step_created(), e.lazy_start("other"), e.step_completed("other")
    )
    await world.events.create(run_id, e.run_ended("completed"))
    clock.advance(86_400)
    assert await world.sweep() == NOTHING
    assert world._state.run_queues == {}  # type: ignore[attr-defined]


# -- streams and waiting -----------------------------------------------------------------------


async def test_a_live_reader_follows_a_stream_to_its_end(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    found: list[bytes] = []

    async def read() -> None:
        async for chunk in world.streams.read(run_id, "s"):
            found.append(chunk)  # noqa: PERF401 - others look at it meanwhile

    reader = asyncio.create_task(read())
    for i, chunk in enumerate([b"a", b"b"]):
        await asyncio.sleep(0)
        await world.streams.write_many(run_id, "s", [chunk, b""])
        await until(lambda: len(found) > i)  # noqa: B023 - over before the loop goes on
    await world.streams.close(run_id, "s")
    await reader
    assert found == [b"a", b"b"]
    with pytest.raises(StreamClosedError):
        await world.streams.write(run_id, "s", b"c")


async def test_a_name_leads_to_its_first_run_until_the_retention_ends(
    reference: ReferenceWorld, clock: Clock
) -> None:
    streams, month = reference.streams, 30 * 86_400
    assert await streams.find_run("s") is None
    await streams.note_run("one", "s")
    clock.advance(month - 1)
    await streams.note_run("other", "s")
    assert [await streams.find_run(name) for name in ("s", "t")] == ["one", None]
    await streams.note_run("one", "s")
    clock.advance(month - 1)
    assert await streams.find_run("s") == "one"
    clock.advance(1)
    assert await streams.find_run("s") is None
    await streams.note_run("other", "s")
    assert await streams.find_run("s") == "other"
    with pytest.raises(InvalidInputError):
        await streams.note_run("one", "\ud800")
    with pytest.raises(InvalidInputError):
        await streams.find_run("\ud800")


async def test_without_a_retention_a_name_leads_to_its_run_for_ever(clock: Clock) -> None:
    reference = ReferenceWorld(clock=clock, retention=None)
    await reference.streams.note_run("one", "s")
    clock.advance(365_000 * 86_400)
    assert await reference.streams.find_run("s") == "one"


async def test_a_stream_without_a_run_goes_after_an_hour(world: RedisWorld, clock: Clock) -> None:
    run_ids = [e.run_id_at(NOW), e.run_id_at(NOW)]
    for run_id in run_ids:
        await world.streams.write(run_id, "s", b"a")
    clock.advance(3599)
    await world.events.create(run_ids[0], e.run_created())
    clock.advance(1)
    await world.events.create(run_ids[1], e.run_created())
    assert [await world.streams.list(run_id) for run_id in run_ids] == [["s"], []]


async def test_a_waiter_is_told_of_the_end(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    waiter = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=60))
    await asyncio.sleep(0)
    await world.events.create(run_id, e.run_ended("completed"))
    assert (await waiter).status == "completed"


async def test_a_waiter_gets_the_run_as_it_is_at_last(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    assert (await world.runs.wait_for_terminal(run_id, timeout=0)).status == "running"
    with pytest.raises(RunNotFoundError):
        await world.runs.wait_for_terminal("wrun_none", timeout=60)
