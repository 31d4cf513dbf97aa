"""The sweeper: every live run has somebody who wakes it (contract, section 7)."""

# Contract: 7.no run is left behind

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.queue import Enqueue, FollowUp, Message
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.queue_tools import content, owed, step, wake

TOPIC: Final = "__wkf_workflow_"
NAME: Final = f"{TOPIC}orders"
INTERVAL: Final = 15
HOUR: Final = 3600
Clocked = tuple[RedisWorld, ManualClock]
COMPLETED: Final = e.event("run_completed", output=b"")
NOTHING: Final = {
    "expired_leases": 0,
    "queued_steps": 0,
    "woken_runs": 0,
    "expired_hooks": 0,
    "removed_runs": 0,
}


async def sweep(clocked: Clocked, seconds: float = INTERVAL) -> dict[str, int]:
    """Let time pass, and sweep."""
    world, clock = clocked
    await clock.advance(seconds)
    return await world.sweep()


async def claim(world: RedisWorld, topic: str = TOPIC) -> list[Message]:
    return await world.queue.claim(topic, limit=100)


async def claim_all(world: RedisWorld) -> list[Message]:
    messages: list[Message] = []
    while claimed := await claim(world):
        messages += claimed
    return messages


async def ack_all(world: RedisWorld) -> int:
    messages = await claim(world)
    for message in messages:
        assert await world.queue.ack(message)
    return len(messages)


async def resting_run(world: RedisWorld) -> str:
    """A running run whose messages are all done, and that knows its queue."""
    run_id = await e.new_run(world)
    await world.queue.send(NAME, wake(run_id))
    assert await ack_all(world) == 1
    return run_id


async def run_on_a_hook(world: RedisWorld) -> str:
    run_id = await resting_run(world)
    await e.write(world, run_id, e.hook_created("hook_1", "token"))
    return run_id


# -- debts: events without their message ---------------------------------------------------


async def _created(world: RedisWorld) -> str:
    return await e.new_run(world, "pending")


async def _step_ended(world: RedisWorld, end: Any) -> str:
    run_id = await run_on_a_hook(world)
    await e.write(world, run_id, e.lazy_start("step_1"), end)
    return run_id


async def _completed(world: RedisWorld) -> str:
    return await _step_ended(world, e.step_completed("step_1"))


async def _failed(world: RedisWorld) -> str:
    return await _step_ended(world, e.step_failed("step_1"))


async def _received(world: RedisWorld) -> str:
    run_id = await run_on_a_hook(world)
    await e.write(world, run_id, e.hook_received("hook_1"))
    return run_id


DEBTS: Final = [_created, _completed, _failed, _received]


@pytest.mark.parametrize("event", DEBTS)
async def test_an_event_without_its_message_is_made_good(
    clocked: Clocked, event: Callable[[RedisWorld], Awaitable[str]], caplog: Any
) -> None:
    world, clock = clocked
    run_id = await event(world)
    assert await world.sweep() == NOTHING, "its writer may be about to send it"
    await clock.advance(INTERVAL - 0.001)
    assert await world.sweep() == NOTHING
    await clock.advance(0.001)
    with caplog.at_level(logging.WARNING):
        assert await world.sweep() == {**NOTHING, "woken_runs": 1}
    assert run_id in caplog.text
    (message,) = await claim(world)
    assert message.run_id == run_id
    assert message.payload == {"runId": run_id, "requestedAt": message.payload["requestedAt"]}
    name = "workflow//w" if event is _created else "orders"
    assert message.queue_name == TOPIC + name, "that of its last message, or of its workflow"
    assert await sweep(clocked) == NOTHING, "it is paid, and leased"


async def test_a_workflow_without_a_name(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await e.new_run(world, "pending", workflowName="")
    assert await sweep(clocked) == {**NOTHING, "woken_runs": 1}
    (message,) = await claim(world)
    assert message.run_id == run_id


@pytest.mark.parametrize(
    ("namespace", "topic"),
    [("orders", "__orders_wkf_workflow_"), ("No!", TOPIC), (7, TOPIC), ("", TOPIC)],
)
async def test_a_client_of_a_namespace(clocked: Clocked, namespace: Any, topic: str) -> None:
    """It died before its first message: the run itself tells where its workers are."""
    world, _ = clocked
    context = {"queueNamespace": namespace}
    run_id = await e.new_run(world, "pending", executionContext=context)
    assert await sweep(clocked) == {**NOTHING, "woken_runs": 1}
    (message,) = await claim(world, topic)
    assert (message.run_id, message.queue_name) == (run_id, topic + "workflow//w")


@pytest.mark.parametrize("event", DEBTS)
@pytest.mark.parametrize("message", [wake, lambda run_id: content(1, run_id)])
async def test_a_message_right_behind_it_pays(
    clocked: Clocked, event: Any, message: Callable[[str], dict[str, Any]]
) -> None:
    world, _ = clocked
    run_id = await event(world)
    await world.queue.send(NAME, message(run_id))
    for _ in range(3):
        assert await sweep(clocked) == NOTHING, "it is due, however long it waits"
    assert await ack_all(world) == 1


async def test_an_event_that_finds_a_wake_owes_nothing(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await world.queue.send(NAME, wake(run_id))
    await e.write(world, run_id, e.hook_received("hook_1"))
    for _ in range(3):
        assert await sweep(clocked) == NOTHING
    assert await ack_all(world) == 1
    assert await sweep(clocked, 10 * INTERVAL) == NOTHING


async def test_an_event_with_its_message_owes_nothing(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    enqueue = Enqueue(NAME, wake(run_id))
    await world.events.create(run_id, e.hook_received("hook_1"), enqueue=enqueue)
    assert await sweep(clocked) == NOTHING
    assert await ack_all(world) == 1
    assert await sweep(clocked) == NOTHING


async def test_an_event_behind_a_replay_that_began_before_it(clocked: Clocked) -> None:
    """The replay may have read the log already: it is woken again once that one is over."""
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await world.queue.send(NAME, wake(run_id))
    (leased,) = await world.queue.claim(TOPIC, lease=HOUR)
    await e.write(world, run_id, e.hook_received("hook_1"))
    for _ in range(3):
        assert await sweep(clocked) == NOTHING, "it is leased"
    assert await world.queue.ack(leased)
    assert await sweep(clocked) == {**NOTHING, "woken_runs": 1}


async def test_a_replay_that_is_held_pays_later(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await world.queue.send(NAME, wake(run_id))
    (leased,) = await world.queue.claim(TOPIC, lease=HOUR)
    await world.queue.send(NAME, content(1, run_id))
    assert await claim(world) == []
    await e.write(world, run_id, e.hook_received("hook_1"))
    assert await sweep(clocked) == NOTHING
    assert await world.queue.ack(leased)
    assert await ack_all(world) == 1
    assert await sweep(clocked) == NOTHING


async def _expired(world: RedisWorld, clock: ManualClock, leased: Message) -> None:
    del world, leased
    await clock.advance(HOUR)


async def _given_back(world: RedisWorld, _: ManualClock, leased: Message) -> None:
    assert await world.queue.release(leased)


async def _retried(world: RedisWorld, clock: ManualClock, leased: Message) -> None:
    assert await world.queue.retry(leased, delay=INTERVAL)
    await clock.advance(INTERVAL)


@pytest.mark.parametrize("payload", [wake, lambda run_id: content(1, run_id)])
@pytest.mark.parametrize("end", [_expired, _given_back, _retried])
async def test_a_replay_that_is_due_again_pays(
    clocked: Clocked,
    payload: Callable[[str], dict[str, Any]],
    end: Callable[[RedisWorld, ManualClock, Message], Awaitable[None]],
) -> None:
    world, clock = clocked
    run_id = await run_on_a_hook(world)
    await world.queue.send(NAME, payload(run_id))
    (leased,) = await world.queue.claim(TOPIC, lease=HOUR)
    await e.write(world, run_id, e.hook_received("hook_1"))
    await end(world, clock, leased)
    for _ in range(3):
        found = await sweep(clocked)
        assert found["woken_runs"] == 0, "it is due, however long it waits"
    assert await ack_all(world) == 1
    assert await sweep(clocked) == NOTHING


async def test_a_delayed_message_whose_time_has_come_pays(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await world.queue.send(NAME, wake(run_id), delay=INTERVAL)
    await e.write(world, run_id, e.hook_received("hook_1"))
    for _ in range(3):
        assert await sweep(clocked) == NOTHING, "it is due, however long it waits"
    assert await ack_all(world) == 1
    assert await sweep(clocked) == NOTHING


async def test_a_message_among_many_that_are_of_steps(clocked: Clocked) -> None:
    """The last replay of a run is found, however many steps of it are due, or none is."""
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await asyncio.gather(*(world.queue.send(NAME, step(f"s{n}", run_id)) for n in range(300)))
    await world.queue.send(NAME, wake(run_id), delay=INTERVAL)
    await e.write(world, run_id, e.hook_received("hook_1"))
    assert await sweep(clocked) == NOTHING
    (replay,) = [each for each in await claim_all(world) if not each.is_step]
    await world.queue.retry(replay, delay=10 * INTERVAL)
    await e.write(world, run_id, e.hook_received("hook_1"))
    assert await sweep(clocked) == {**NOTHING, "woken_runs": 1}


async def test_without_an_order_of_replays(backend: Backend) -> None:
    """A replay that a worker has may have read the log before; it is looked at behind it."""
    library = ManualClock.library()
    async with backend.world(serialize_runs=False, library=library) as world:
        clock = await ManualClock(world).set()
        run_id = await run_on_a_hook(world)
        await world.queue.send(NAME, wake(run_id))
        (leased,) = await world.queue.claim(TOPIC, lease=HOUR)
        await e.write(world, run_id, e.hook_received("hook_1"))
        for _ in range(3):
            assert await sweep((world, clock)) == NOTHING, "it is leased"
        assert await world.queue.ack(leased)
        assert await sweep((world, clock)) == {**NOTHING, "woken_runs": 1}


async def test_a_message_far_ahead_is_no_message(clocked: Clocked) -> None:
    """A run with a timer of 30 days must not sleep through what was sent to its hook."""
    world, clock = clocked
    run_id = await run_on_a_hook(world)
    await world.queue.send(NAME, wake(run_id), delay=timedelta(days=30))
    assert await sweep(clocked) == NOTHING
    await e.write(world, run_id, e.hook_received("hook_1"))
    assert await sweep(clocked) == {**NOTHING, "woken_runs": 1}
    assert await ack_all(world) == 1
    await clock.advance(timedelta(days=30))
    assert await ack_all(world) == 1


async def test_the_debt_of_a_run_that_is_over_is_void(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await e.write(world, run_id, e.hook_received("hook_1"), COMPLETED)
    assert await sweep(clocked) == NOTHING
    # And none comes of the outcome of a step that ran on.
    other = await resting_run(world)
    await e.write(world, other, e.lazy_start("s"), COMPLETED, e.step_completed("s"))
    assert await sweep(clocked) == NOTHING
    assert await claim(world) == []


# -- steps ---------------------------------------------------------------------------------


async def test_a_step_without_its_message_is_queued(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await e.write(world, run_id, e.step_created("step_1", stepName="charge"))
    assert await sweep(clocked, INTERVAL - 1) == NOTHING
    assert await sweep(clocked, 1) == {**NOTHING, "queued_steps": 1}
    (message,) = await claim(world)
    assert message.payload["stepId"] == "step_1"
    assert message.payload["stepName"] == "charge"
    assert message.payload["runId"] == run_id
    assert message.queue_name == NAME
    assert message.idempotency_key == "step_1"
    assert await sweep(clocked) == NOTHING


async def test_a_step_beside_another_one_that_is_outstanding(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await resting_run(world)
    await e.write(world, run_id, e.step_created("a"), e.step_created("b"))
    await world.queue.send(NAME, step("a", run_id))
    assert await sweep(clocked) == {**NOTHING, "queued_steps": 1}
    assert {message.payload["stepId"] for message in await claim(world)} == {"a", "b"}


async def test_a_step_whose_message_is_there(clocked: Clocked) -> None:
    world, _ = clocked
    for order in ("before", "along", "behind"):
        run_id = await run_on_a_hook(world)
        if order == "before":
            await world.queue.send(NAME, step("s", run_id))
        enqueue = Enqueue(NAME, step("s", run_id)) if order == "along" else None
        await world.events.create(run_id, e.step_created("s"), enqueue=enqueue)
        if order == "behind":
            await world.queue.send(NAME, step("s", run_id))
        assert await sweep(clocked) == NOTHING, order
        assert len(await claim(world)) == 1, order
        await e.write(world, run_id, COMPLETED)


async def test_a_step_that_is_left_open_by_its_message(clocked: Clocked) -> None:
    """Whoever had it acked it without an outcome: the step is as stuck as one without."""
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await world.events.create(
        run_id, e.step_created("s"), enqueue=Enqueue(NAME, step("s", run_id))
    )
    await e.write(world, run_id, e.step_started("s"))
    assert await ack_all(world) == 1
    assert await sweep(clocked) == {**NOTHING, "queued_steps": 1}


async def test_a_step_that_goes_on_by_a_continuation(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await world.events.create(
        run_id, e.step_created("s"), enqueue=Enqueue(NAME, step("s", run_id))
    )
    (message,) = await claim(world)
    assert await world.queue.ack(message, follow_up=FollowUp(delay=HOUR))
    assert await sweep(clocked, 10 * INTERVAL) == NOTHING


@pytest.mark.parametrize("end", ["step", "run"])
async def test_the_debt_of_a_step_that_is_over_is_void(clocked: Clocked, end: str) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await e.write(world, run_id, e.step_created("s"))
    if end == "step":
        await e.write(world, run_id, e.step_started("s"))
        await world.events.create(
            run_id, e.step_completed("s"), enqueue=Enqueue(NAME, wake(run_id))
        )
        assert await ack_all(world) == 1
    else:
        await e.write(world, run_id, COMPLETED)
    assert await sweep(clocked) == NOTHING
    assert await claim(world) == []


@pytest.mark.parametrize("end", [e.step_completed, e.step_failed])
async def test_a_step_takes_its_debt_with_it(clocked: Clocked, end: Any) -> None:
    """Not only the sweep after next: a busy namespace would keep thousands of them."""
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await e.write(world, run_id, e.step_created("other"), e.step_created("s"))

    async def steps_in_debt() -> list[str]:
        return sorted(debt for debt in await owed(world, run_id) if "/" in debt)

    assert await steps_in_debt() == [f"{run_id}/other", f"{run_id}/s"]
    await e.write(world, run_id, e.step_started("s"), end("s"))
    assert await steps_in_debt() == [f"{run_id}/other"]


async def test_each_step_is_owed_its_message_from_its_own_time_on(clocked: Clocked) -> None:
    """Also where the run was owed something before."""
    world, clock = clocked
    run_id = await run_on_a_hook(world)
    await e.write(world, run_id, e.step_created("first"))
    await clock.advance(INTERVAL / 2)
    await e.write(world, run_id, e.step_created("second"))
    await world.queue.send(NAME, step("first", run_id))
    assert await sweep(clocked, INTERVAL / 2) == NOTHING
    await check_invariants(world)
    assert await sweep(clocked, INTERVAL / 2) == {**NOTHING, "queued_steps": 1}
    assert await owed(world, run_id) == []


async def test_a_step_behind_many_is_owed_its_message_from_its_own_time_on(
    clocked: Clocked,
) -> None:
    """More than are looked at at once, of which nothing is owed."""
    world, clock = clocked
    run_id = await run_on_a_hook(world)
    await e.write(world, run_id, e.step_created("first"))
    for begin in range(0, 576, 64):
        names = [f"s{number}" for number in range(begin, begin + 64)]
        starts = [each for name in names for each in (e.step_created(name), e.step_started(name))]
        await world.events.create_batch(run_id, starts)
    await clock.advance(INTERVAL * 2 / 3)
    await e.write(world, run_id, e.step_created("last"))
    await world.queue.send(NAME, step("first", run_id))
    assert await sweep(clocked, INTERVAL / 3) == NOTHING
    await check_invariants(world)
    assert await sweep(clocked, INTERVAL * 2 / 3) == {**NOTHING, "queued_steps": 1}
    assert await owed(world, run_id) == []
    await check_invariants(world)


async def test_what_a_finished_run_was_owed_is_forgotten(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await e.write(world, run_id, e.run_ended("completed"))
    await world.connection.execute(("ZADD", world.connection.keys.owed, 1, run_id))
    assert await sweep(clocked) == NOTHING
    await check_invariants(world)


async def test_a_step_that_ended_before_its_message_was_acked(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await world.events.create(
        run_id, e.step_created("s"), enqueue=Enqueue(NAME, step("s", run_id))
    )
    (message,) = await claim(world)
    await e.write(world, run_id, e.step_started("s"))
    await world.events.create(run_id, e.step_failed("s"), enqueue=Enqueue(NAME, wake(run_id)))
    assert await world.queue.ack(message)
    assert await ack_all(world) == 1
    assert await sweep(clocked, HOUR) == NOTHING


# -- parked: live runs without any message -------------------------------------------------


async def test_a_run_without_any_message_is_woken(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await resting_run(world)
    assert await sweep(clocked, INTERVAL - 1) == NOTHING
    assert await sweep(clocked, 1) == {**NOTHING, "woken_runs": 1}
    (message,) = await claim(world)
    assert (message.run_id, message.queue_name) == (run_id, NAME)


async def test_a_run_that_waits_for_a_hook_is_left_alone(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    for _ in range(5):
        assert await sweep(clocked, HOUR) == NOTHING
    # Without its hook it has nothing to wait for, and nobody waits for the next look.
    await e.write(world, run_id, e.hook_disposed("hook_1"))
    assert await sweep(clocked) == {**NOTHING, "woken_runs": 1}


@pytest.mark.large
async def test_many_resting_runs_do_not_hide_one_behind_them(clocked: Clocked) -> None:
    world, _ = clocked
    for number in range(120):
        resting = await e.new_run(world)
        await world.queue.send(NAME, wake(resting))
        await e.write(world, resting, e.hook_created("hook_1", f"token{number}"))
    assert await ack_all(world) == 100
    assert await ack_all(world) == 20
    stuck = await resting_run(world)
    assert await sweep(clocked) == {**NOTHING, "woken_runs": 1}
    (message,) = await claim(world)
    assert message.run_id == stuck


async def test_a_run_that_is_woken_in_vain_is_woken_ever_less(clocked: Clocked) -> None:
    world, _ = clocked
    await resting_run(world)
    for pause in (INTERVAL, 30, 60, 120, 240, 480, 960, 1920, HOUR, HOUR):
        # Sweeps in between do not put it off, and the last moment before is too early.
        for part in (0.1, 0.4, 0.499):
            assert await sweep(clocked, part * pause) == NOTHING, pause
        assert await sweep(clocked, 0.001 * pause) == {**NOTHING, "woken_runs": 1}, pause
        assert await ack_all(world) == 1


async def test_a_wake_that_brought_something_begins_anew(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await resting_run(world)
    for number in range(4):
        assert await sweep(clocked) == {**NOTHING, "woken_runs": 1}, number
        await e.write(world, run_id, e.wait_created(f"wait_{number}"))
        assert await ack_all(world) == 1


async def test_a_run_with_a_message_is_not_woken(clocked: Clocked) -> None:
    world, _ = clocked
    cases: list[tuple[Callable[[str], dict[str, Any]], int]] = [
        (wake, 0),
        (wake, 2 * HOUR),
        (lambda run_id: content(1, run_id), 0),
        (lambda run_id: step("unknown", run_id), 0),
    ]
    for message, delay in cases:
        run_id = await resting_run(world)
        await world.queue.send(NAME, message(run_id), delay=delay)
        for _ in range(3):
            assert await sweep(clocked) == NOTHING
        leased = await claim(world)
        assert await sweep(clocked) == NOTHING
        for each in leased:
            assert await world.queue.ack(each)
        await e.write(world, run_id, COMPLETED)


async def test_a_finished_run_is_not_woken(clocked: Clocked) -> None:
    world, _ = clocked
    for end in (COMPLETED, e.event("run_failed", error=b"e"), e.event("run_cancelled")):
        run_id = await resting_run(world)
        await e.write(world, run_id, end)
    assert await sweep(clocked, HOUR) == NOTHING


async def test_a_run_of_which_only_a_message_is_there(clocked: Clocked) -> None:
    """Messages may come before their run, which then is like any other."""
    world, _ = clocked
    run_id = e.new_run_id()
    await world.queue.send(NAME, wake(run_id))
    assert await ack_all(world) == 1
    assert await sweep(clocked) == NOTHING
    await world.queue.send(NAME, wake(run_id))
    await world.events.create(run_id, e.resilient_start())
    assert await ack_all(world) == 1
    assert await sweep(clocked) == {**NOTHING, "woken_runs": 1}
    assert await ack_all(world) == 1


# -- dead letters are an operator's --------------------------------------------------------


@pytest.fixture
def mortal(backend: Backend) -> RedisWorld:
    return backend.world(library=ManualClock.library(), max_failures=2)


async def bury(world: RedisWorld) -> str:
    """Let the one message that is due die."""
    while True:
        (message,) = await claim(world)
        await world.queue.retry(message, error="no good", delay=0)
        if (await world.queue.stats(TOPIC)).dead:
            return message.message_id


@pytest.mark.parametrize("kind", ["wake", "step"])
@pytest.mark.parametrize("then", ["purge", "redrive"])
async def test_a_run_with_a_dead_letter_is_left_alone(
    mortal: RedisWorld, kind: str, then: str
) -> None:
    async with mortal as world:
        clocked = world, await ManualClock(world).set()
        run_id = await e.new_run(world)
        # A message far ahead: it must not hide what the letter leaves undone.
        await world.queue.send(NAME, content(1, run_id), delay=timedelta(days=30))
        if kind == "step":
            await e.write(world, run_id, e.step_created("s"))
            await world.queue.send(NAME, step("s", run_id))
            await world.queue.send(NAME, wake(run_id))
            (message,) = [each for each in await claim(world) if not each.is_step]
            assert await world.queue.ack(message)
            await clocked[1].advance(HOUR)
        else:
            await world.queue.send(NAME, wake(run_id))
        letter = await bury(world)
        assert (await world.queue.stats(TOPIC)).delayed == 1
        for _ in range(3):
            assert await sweep(clocked, HOUR) == NOTHING
        if then == "purge":
            assert await world.queue.purge_dead_letters(TOPIC) == 1
            found = "queued_steps" if kind == "step" else "woken_runs"
            assert await sweep(clocked) == {**NOTHING, found: 1}
        else:
            assert await world.queue.redrive(letter) == letter
            assert await sweep(clocked) == NOTHING
        assert len(await claim(world)) == 1


async def test_a_parked_run_with_a_dead_letter_is_left_alone(mortal: RedisWorld) -> None:
    async with mortal as world:
        clocked = world, await ManualClock(world).set()
        run_id = await e.new_run(world)
        await world.queue.send(NAME, wake(run_id))
        await bury(world)
        for _ in range(3):
            assert await sweep(clocked, HOUR) == NOTHING
        assert await world.queue.purge_dead_letters(TOPIC) == 1
        assert await sweep(clocked) == {**NOTHING, "woken_runs": 1}


async def test_all_dead_letters_can_be_sent_again(mortal: RedisWorld) -> None:
    async with mortal as world:
        ids = [await world.queue.send(NAME, {"n": n}) for n in range(5)]
        for _ in range(2):
            for message in await claim(world):
                await world.queue.retry(message, error="no", delay=0)
        assert (await world.queue.stats(TOPIC)).dead == 5
        assert await world.queue.redrive_all(TOPIC) == 5
        assert await world.queue.redrive_all(TOPIC) == 0
        assert [message.message_id for message in await claim(world)] == ids


# -- several sweepers ----------------------------------------------------------------------


async def test_sweepers_do_not_get_in_each_others_way(clocked: Clocked) -> None:
    world, clock = clocked
    runs = [await resting_run(world) for _ in range(20)]
    for run_id in runs[:10]:
        await e.write(world, run_id, e.step_created("s"))
    for run_id in runs[10:15]:
        await e.write(world, run_id, e.lazy_start("s"), e.step_completed("s"))
    await clock.advance(INTERVAL)
    swept = await asyncio.gather(*(world.sweep() for _ in range(8)))
    assert sum(each["queued_steps"] for each in swept) == 10
    # A run whose step is queued has a message again.
    assert sum(each["woken_runs"] for each in swept) == 10
    assert len(await claim(world)) == 20


# -- messages that an event brings along, and that do not do -------------------------------


async def test_a_step_that_brings_another_message(clocked: Clocked) -> None:
    """A wake, or its own message under a key that another one holds, starts no step."""
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await world.events.create(run_id, e.step_created("a"), enqueue=Enqueue(NAME, wake(run_id)))
    await world.queue.send(NAME, content(1, run_id), idempotency_key="k")
    enqueue = Enqueue(NAME, step("b", run_id), idempotency_key="k")
    await world.events.create(run_id, e.step_created("b"), enqueue=enqueue)
    assert await sweep(clocked) == {**NOTHING, "queued_steps": 2}


async def test_an_event_that_brings_a_message_for_later(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    for enqueue in (
        Enqueue(NAME, wake(run_id), delay=30 * 24 * HOUR),
        Enqueue(NAME, step("other", run_id)),
    ):
        await world.events.create(run_id, e.hook_received("hook_1"), enqueue=enqueue)
        assert await sweep(clocked) == {**NOTHING, "woken_runs": 1}
        assert await ack_all(world) >= 1


async def test_what_a_finished_run_remembers_has_an_end(
    clocked: Clocked, backend: Backend
) -> None:
    """Also where its last request came after its end."""
    world, _ = clocked
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.lazy_start("s"), COMPLETED, e.step_retrying("s"))
    with contextlib.closing(backend.client()) as client:
        assert 0 < client.ttl(world.connection.partitions.of(run_id).of_run(run_id).ops) <= HOUR
    await check_invariants(world)


async def test_a_stream_that_went_before_its_run_came(clocked: Clocked, backend: Backend) -> None:
    world, _ = clocked
    run_id = e.new_run_id()
    await world.streams.write(run_id, "kept", b"1")
    await world.streams.write(run_id, "gone", b"1")
    keys = world.connection.partitions.of(run_id).of_run(run_id)
    with contextlib.closing(backend.client()) as client:
        # As after an hour.
        client.delete(keys.stream("gone"), keys.writers("gone"))
    await world.events.create(run_id, e.run_created())
    assert await world.streams.list(run_id) == ["kept"]
    await check_invariants(world)


async def test_a_step_whose_key_another_message_holds(clocked: Clocked) -> None:
    """It is queued once the key is free."""
    world, _ = clocked
    run_id = await run_on_a_hook(world)
    await world.queue.send(NAME, content(1, run_id), idempotency_key="s", delay=HOUR)
    await e.write(world, run_id, e.step_created("s"))
    for _ in range(3):
        assert await sweep(clocked) == NOTHING
    await clocked[1].advance(HOUR)
    assert await ack_all(world) == 1
    assert await sweep(clocked) == {**NOTHING, "queued_steps": 1}
