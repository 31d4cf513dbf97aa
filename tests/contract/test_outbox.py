"""A message that an event brings along: both are stored, or neither (contract, section 7)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import EntityConflictError, InvalidInputError, WorldError
from redis_world.queue import Enqueue, Message
from redis_world.testing import ManualClock
from support import events as e
from support.backends import Backend
from support.events_in_a_run import EVENTS

TOPIC: Final = "__wkf_workflow_"
NAME: Final = f"{TOPIC}orders"


def wake(run_id: str, **options: Any) -> Enqueue:
    return Enqueue(NAME, {"runId": run_id}, **options)


def step_message(run_id: str) -> Enqueue:
    return Enqueue(NAME, {"runId": run_id, "stepId": "step_1"}, idempotency_key="step_1")


async def only_message(world: RedisWorld) -> Message:
    (message,) = await world.queue.claim(TOPIC)
    return message


@pytest.mark.parametrize("name", EVENTS)
async def test_every_event_can_bring_a_message(world: RedisWorld, name: str) -> None:
    before, wire = EVENTS[name]
    run_id = await e.new_run(world)
    if before:
        await e.write(world, run_id, *before)
    result = await world.events.create(run_id, wire, enqueue=wake(run_id))
    message = await only_message(world)
    assert message.message_id == result.message_id
    assert message.payload == {"runId": run_id}
    assert await world.queue.ack(message)


@pytest.mark.parametrize("kind", ["run_created", "resilient start", "run_started", "no-op"])
async def test_the_events_that_begin_a_run_can_too(world: RedisWorld, kind: str) -> None:
    run_id, wire = e.new_run_id(), e.run_created()
    if kind == "resilient start":
        wire = e.resilient_start()
    elif kind != "run_created":
        run_id = await e.new_run(world, "pending" if kind == "run_started" else "running")
        wire = e.event("run_started")
    result = await world.events.create(run_id, wire, enqueue=wake(run_id))
    assert (await only_message(world)).message_id == result.message_id


async def test_without_one_there_is_none(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    result = await world.events.create(run_id, e.step_created())
    assert result.message_id is None
    assert await world.queue.claim(TOPIC) == []


async def test_the_message_travels_as_a_sent_one_does(
    clocked: tuple[RedisWorld, ManualClock],
) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    enqueue = Enqueue(
        NAME,
        {"runId": run_id, "content": b"\x00:7:\xff", "deep": [{"n": 2**53 + 1}]},
        delay=1.5,
        idempotency_key="k:1,2:\n",
        headers={"h": "1"},
        deployment_id="d",
    )
    result = await world.events.create(run_id, e.step_created(), enqueue=enqueue)
    await clock.advance(1.499)
    assert await world.queue.claim(TOPIC) == []
    await clock.advance(0.001)
    message = await only_message(world)
    assert message.message_id == result.message_id
    assert message.payload == enqueue.payload
    assert (message.queue_name, message.headers, message.deployment_id) == (NAME, {"h": "1"}, "d")
    assert (message.idempotency_key, message.attempt) == ("k:1,2:\n", 1)
    assert message.due_at == clock.now


# Contract: 5.nothing left behind
@pytest.mark.parametrize("name", [n for n in EVENTS if n not in {"attr_set", "step_started"}])
async def test_a_refused_event_sends_nothing(
    world: RedisWorld, backend: Backend, name: str
) -> None:
    before, wire = EVENTS[name]
    run_id = await e.new_run(world, "cancelled")
    if name == "run_cancelled":
        run_id = await e.new_run(world, "completed")
    dump = backend.dump()
    with pytest.raises(WorldError):
        await world.events.create(run_id, wire, enqueue=wake(run_id))
    assert backend.dump() == dump
    assert before is not None


async def test_a_duplicate_sends_nothing(world: RedisWorld, backend: Backend) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created())
    dump = backend.dump()
    with pytest.raises(EntityConflictError):
        await world.events.create(run_id, e.step_created(), enqueue=step_message(run_id))
    assert backend.dump() == dump


@pytest.mark.parametrize(
    "enqueue",
    [
        Enqueue("orders", {}),
        Enqueue(NAME, {"runId": "wrun_other"}),
        Enqueue(NAME, {"value": object()}),
        Enqueue(NAME, {}, delay=-1),
        Enqueue(NAME, {}, idempotency_key="\ud800"),
    ],
    ids=["a bad name", "another run", "what can't be stored", "a bad delay", "no text"],
)
async def test_a_bad_message_is_refused_with_its_event(
    world: RedisWorld, backend: Backend, enqueue: Enqueue
) -> None:
    run_id = await e.new_run(world)
    dump = backend.dump()
    with pytest.raises(InvalidInputError):
        await world.events.create(run_id, e.step_created(), enqueue=enqueue)
    assert backend.dump() == dump


# Contract: 7.messages of steps
async def test_a_step_has_one_message_whoever_sends_it(world: RedisWorld) -> None:
    """The runtime's own send, after the event that brought the message along."""
    run_id = await e.new_run(world)
    result = await world.events.create(run_id, e.step_created(), enqueue=step_message(run_id))
    again = step_message(run_id)
    sent = await world.queue.send(NAME, again.payload, idempotency_key=again.idempotency_key)
    assert sent == result.message_id
    assert (await world.queue.stats(TOPIC)).ready == 1


# Contract: 7.messages of steps
async def test_an_end_of_a_step_brings_no_message_of_that_step(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created())
    result = await world.events.create(run_id, e.step_completed(), enqueue=step_message(run_id))
    assert result.message_id is None
    assert await world.queue.claim(TOPIC) == []


# Contract: 7.wakes
async def test_wakes_of_many_steps_are_one(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    steps = [f"s{number}" for number in range(5)]
    await e.write(world, run_id, *map(e.step_created, steps))
    results = await asyncio.gather(
        *(
            world.events.create(run_id, e.step_completed(step), enqueue=wake(run_id))
            for step in steps
        )
    )
    assert {result.message_id for result in results} == {(await only_message(world)).message_id}


async def test_an_end_of_a_step_brings_its_message_behind_the_end_of_the_run_too(
    world: RedisWorld, backend: Backend
) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created(), e.step_started(), e.run_ended("cancelled"))
    result = await world.events.create(run_id, e.step_completed(), enqueue=wake(run_id))
    assert result.message_id == (await only_message(world)).message_id
    with contextlib.closing(backend.client()) as client:
        # Nobody waits for a replay that was not delivered.
        assert not [*client.scan_iter("*:owed")]


# Contract: 5.resume dedupe
async def test_a_repeated_resume_wakes_the_run_again(world: RedisWorld) -> None:
    """Its first sender may have brought no message along."""
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.hook_created())
    await world.events.create(run_id, e.hook_received(), resume_id="r")
    again = await world.events.create(
        run_id, e.hook_received(), resume_id="r", enqueue=wake(run_id)
    )
    assert (await only_message(world)).message_id == again.message_id
    assert (await e.log_types(world, run_id)).count("hook_received") == 1


async def test_of_rivals_one_sends(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    outcomes = await e.race(
        [world], run_id, [e.step_created()] * 20, enqueue=Enqueue(NAME, {"runId": run_id, "x": 1})
    )
    assert sum(isinstance(outcome, EntityConflictError) for outcome in outcomes) == 19
    assert (await world.queue.stats(TOPIC)).ready == 1


async def test_a_finished_runs_bookkeeping_goes_with_its_last_message(
    world: RedisWorld, backend: Backend
) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.run_ended("completed"), enqueue=wake(run_id))
    assert await world.queue.ack(await only_message(world))
    assert not [key for key in backend.dump() if key.endswith(b":queue")]
