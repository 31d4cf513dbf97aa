"""Sending: names, payloads, delays, idempotency keys (contract, section 7)."""

# Contract: 7.sending

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidInputError
from redis_world.testing import ManualClock
from support.backends import Backend
from support.queue_tools import (
    NAME,
    OTHER_RUN,
    RUN,
    TOPIC,
    claim_one,
    claimed_ids,
    content,
    create_step,
    end_step,
    health_check,
    outcome,
    send,
    start_run,
    step,
    wake,
)

Clocked = tuple[RedisWorld, ManualClock]

OTHER_TOPIC = "__billing2_wkf_workflow_"
OTHER_NAME = OTHER_TOPIC + "orders"

BAD_NAMES: list[Any] = [
    "",
    "orders",
    "__wkf_workflow_",
    "_wkf_workflow_orders",
    "x__wkf_workflow_orders",
    "__Billing_wkf_workflow_orders",
    "__2billing_wkf_workflow_orders",
    "__bill_ing_wkf_workflow_orders",
    "__wkf_workflow_\ud800",
    None,
    7,
]
BAD_DELAYS: list[Any] = [
    -1,
    -0.001,
    timedelta(seconds=-1),
    math.nan,
    math.inf,
    -math.inf,
    "1",
    None,
    True,
]


async def test_what_cannot_be_sent_is_refused_and_stores_nothing(
    backend: Backend, world: RedisWorld
) -> None:
    before = backend.dump()
    bad_payloads: list[Any] = [None, "text", [1], 7, {"value": object()}, {"text": "\ud800"}]
    answers = [await outcome(world.queue.send(name, wake())) for name in BAD_NAMES]
    answers += [await outcome(world.queue.send(NAME, payload)) for payload in bad_payloads]
    answers += [await outcome(world.queue.send(NAME, wake(), delay=delay)) for delay in BAD_DELAYS]
    assert [type(a) for a in answers if not isinstance(a, InvalidInputError)] == []
    assert backend.dump() == before


async def test_a_message_larger_than_the_limit_is_refused(backend: Backend) -> None:
    """It may carry the largest payload, and 64 KiB around it."""
    async with backend.world(max_payload_bytes=1000) as world:
        await send(world, content(b"x" * (1000 + 64 * 1024 - 100)))
        before = backend.dump()
        with pytest.raises(InvalidInputError):
            await world.queue.send(NAME, content(b"x" * (1000 + 64 * 1024)))
        assert backend.dump() == before


# Contract: 2.message ids
async def test_message_ids_are_msg_and_a_ulid_and_rise(world: RedisWorld) -> None:
    sent = [await send(world, content(i)) for i in range(3)]
    assert all(re.fullmatch(r"msg_[0-7][0-9A-HJKMNP-TV-Z]{25}", i) for i in sent)
    assert sent == sorted(set(sent))


async def test_a_payload_travels_as_given(world: RedisWorld) -> None:
    payload = {
        "runId": RUN,
        "bytes": bytes(range(256)),
        "empty": b"",
        "none": None,
        "text": "\x00é🙂",
        "exact": 2**53 + 1,
        "huge": -(2**70),
        "float": 0.1,
        "inf": math.inf,
        "flags": [True, False],
        "nested": {"list": [1, [2, {"deep": b"\x00"}]], "1": {}},
        "utc": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        "zoned": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    }
    await send(world, payload)
    received = (await claim_one(world)).payload
    assert received == payload
    assert list(received) == list(payload)
    assert [type(received[key]) for key in received] == [type(payload[key]) for key in payload]


async def test_headers_and_deployment_id_come_back(clocked: Clocked) -> None:
    world, clock = clocked
    headers = {"traceparent": "00-é", "x-empty": ""}
    await send(world, content(1), headers=headers, deployment_id="dpl_é")
    await clock.advance(0.001)
    await send(world, content(2, OTHER_RUN))
    first, second = await world.queue.claim(TOPIC)
    assert (first.headers, first.deployment_id) == (headers, "dpl_é")
    assert (second.headers, second.deployment_id) == (None, None)


# Contract: 7.sending, 7.delay
async def test_a_message_tells_its_name_its_times_and_its_key(clocked: Clocked) -> None:
    world, clock = clocked
    sent_at = clock.now
    sent = await send(world, step(), delay=2.5, idempotency_key="k")
    await clock.advance(60)
    message = await claim_one(world)
    assert message.message_id == sent
    assert (message.queue_name, message.topic) == (NAME, TOPIC)
    assert (message.attempt, message.failures, message.idempotency_key) == (1, 0, "k")
    assert (message.run_id, message.is_step) == (RUN, True)
    assert message.enqueued_at == sent_at
    assert message.due_at == sent_at + timedelta(seconds=2.5)


async def test_a_topic_is_all_of_a_name_up_to_the_workflow(world: RedisWorld) -> None:
    names = {
        "__wkf_workflow_a": TOPIC,
        "__wkf_workflow_./some path\nwith:everything*{}": TOPIC,
        "__wkf_workflow_health_check": TOPIC,
        "__billing2_wkf_workflow_a": OTHER_TOPIC,
        "__b_wkf_workflow_wkf_workflow_a": "__b_wkf_workflow_",
    }
    for number, name in enumerate(names):
        await send(world, content(number, f"run_{number}"), name=name)
    claimed: dict[str, str] = {}
    for topic in set(names.values()):
        claimed.update({m.queue_name: topic for m in await world.queue.claim(topic)})
    assert claimed == names
    assert await world.queue.topics() == sorted(set(names.values()))


# -- delays ---------------------------------------------------------------------------------


# Contract: 7.delay
@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [
        (0.001, 1),
        (0.0011, 2),  # never early: up, not to the nearest
        (0.1, 100),
        (1.2345, 1235),
        (7, 7000),
        (timedelta(microseconds=2500), 3),
        (timedelta(days=365), 365 * 86_400_000),
        (timedelta(days=36_500), 36_500 * 86_400_000),
    ],
)
async def test_a_delayed_message_is_due_to_the_millisecond(
    clocked: Clocked, delay: float | timedelta, milliseconds: int
) -> None:
    world, clock = clocked
    sent = await send(world, content(1), delay=delay)
    await clock.advance(timedelta(milliseconds=milliseconds - 1))
    assert await claimed_ids(world) == []
    await clock.advance(0.001)
    assert await claimed_ids(world) == [sent]


# Contract: 7.delay
async def test_a_delay_of_zero_is_due_at_once(clocked: Clocked) -> None:
    world, _ = clocked
    sent = [
        await send(world, content(number, f"run_{number}"), delay=delay)
        for number, delay in enumerate((0, 0.0, timedelta(0)))
    ]
    assert sorted(await claimed_ids(world)) == sent


# -- idempotency keys -----------------------------------------------------------------------


# Contract: 7.idempotency keys
async def test_a_key_is_taken_while_its_message_is_outstanding(clocked: Clocked) -> None:
    """Queued, leased, failed, lost, released: whatever happens to it, until it ends."""
    world, clock = clocked

    async def again() -> str:
        return await send(world, content("again"), idempotency_key="k")

    first = await send(world, content("first"), delay=5, idempotency_key="k")
    seen = [await again()]
    await clock.advance(5)
    seen.append(await again())
    message = await claim_one(world, lease=10)
    seen.append(await again())
    assert await world.queue.retry(message, delay=3)
    seen.append(await again())
    await clock.advance(3)
    await claim_one(world, lease=10)
    await clock.advance(10)
    seen.append(await again())
    message = await claim_one(world)
    assert await world.queue.release(message)
    seen.append(await again())
    assert seen == [first] * 6

    message = await claim_one(world)
    assert (message.message_id, message.payload["number"]) == (first, "first")
    assert await world.queue.ack(message)
    second = await again()
    assert second != first
    assert await claimed_ids(world) == [second]


# Contract: 7.idempotency keys
async def test_a_key_is_taken_while_its_message_is_held(world: RedisWorld) -> None:
    await send(world, content(1))
    await claim_one(world)
    held = await send(world, content(2), idempotency_key="k")
    assert await claimed_ids(world) == []
    assert (await world.queue.stats(TOPIC)).held == 1
    assert await send(world, content(3), idempotency_key="k") == held


# Contract: 7.idempotency keys
async def test_a_key_is_free_after_its_message_died(backend: Backend) -> None:
    async with backend.world(max_failures=2) as world:
        first = await send(world, content(1), idempotency_key="k")
        for _ in range(2):
            assert await world.queue.retry(await claim_one(world), delay=0)
        assert (await world.queue.stats(TOPIC)).dead == 1
        second = await send(world, content(2), idempotency_key="k")
        assert second != first
        assert await claimed_ids(world) == [second]


# Contract: 7.idempotency keys
async def test_keys_are_per_topic_and_run(world: RedisWorld) -> None:
    sent = {
        await send(world, payload, name=name, idempotency_key=key)
        for name in (NAME, OTHER_NAME)
        for payload in (content(1), content(1, OTHER_RUN), {"other": 1})
        for key in ("k", "k2", "K", "k/2", f"{RUN}/k", "\x00é")
    }
    assert len(sent) == 2 * 3 * 6
    # A key is the topic's, not the workflow's.
    again = await send(world, content(1), name=NAME + "2", idempotency_key="k")
    assert again in sent


# Contract: 7.idempotency keys
async def test_run_and_key_never_run_into_each_other(world: RedisWorld) -> None:
    first = await send(world, content(1, "a/b"), idempotency_key="c")
    second = await send(world, content(1, "a"), idempotency_key="b/c")
    assert first != second


# -- steps ----------------------------------------------------------------------------------


# Contract: 7.messages of steps
async def test_a_step_has_one_outstanding_message_whatever_its_key(clocked: Clocked) -> None:
    world, clock = clocked
    first = await send(world, step(), idempotency_key="k", delay=1)
    again = [
        await send(world, step(), idempotency_key="other"),
        await send(world, step()),
        await send(world, step(), delay=9),
        await send(world, step(), name=OTHER_NAME),
        await send(world, {**step(), "more": 1}, headers={"h": "1"}, deployment_id="d"),
    ]
    await clock.advance(1)
    message = await claim_one(world, lease=1)
    again.append(await send(world, step()))
    await clock.advance(1)  # the lease ends
    again.append(await send(world, step()))
    assert again == [first] * 7
    message = await claim_one(world)
    assert await world.queue.retry(message, delay=5)
    assert await send(world, step()) == first
    await clock.advance(5)
    assert await world.queue.ack(await claim_one(world))
    second = await send(world, step())
    assert second != first
    assert await claimed_ids(world) == [second]


# Contract: 7.messages of steps
async def test_other_steps_and_other_runs_are_other_messages(world: RedisWorld) -> None:
    payloads = [step(), step("step_2"), step("step_1", OTHER_RUN), wake(), content(1)]
    assert len({await send(world, payload) for payload in payloads}) == len(payloads)


# Contract: 7.messages of steps
async def test_a_step_is_free_after_its_message_died(backend: Backend) -> None:
    async with backend.world(max_failures=2) as world:
        first = await send(world, step())
        for _ in range(2):
            assert await world.queue.retry(await claim_one(world), delay=0)
        assert (await world.queue.stats(TOPIC)).dead == 1
        assert await send(world, step()) != first


# Contract: 7.messages of steps
@pytest.mark.parametrize("event_type", ["step_completed", "step_failed"])
async def test_a_message_for_a_terminal_step_is_not_stored(
    backend: Backend, world: RedisWorld, event_type: str
) -> None:
    run_id = await start_run(world)
    await create_step(world, run_id)
    await end_step(world, run_id, event_type=event_type)
    before = backend.dump()
    assert await world.queue.send(NAME, step(run_id=run_id)) is None
    assert await world.queue.send(NAME, step(run_id=run_id), idempotency_key="k") is None
    assert await world.queue.send(NAME, step(run_id=run_id), delay=10) is None
    assert backend.dump() == before
    assert await world.queue.send(NAME, step("step_2", run_id)) is not None


# Contract: 7.messages of steps
async def test_a_step_that_is_not_terminal_can_be_queued_again(world: RedisWorld) -> None:
    """Acked without an outcome it would hang for ever otherwise."""
    run_id = await start_run(world)
    await create_step(world, run_id)
    await send(world, step(run_id=run_id), idempotency_key="k")
    await world.queue.ack(await claim_one(world))
    await world.events.create(run_id, {"eventType": "step_started", "correlationId": "step_1"})
    second = await send(world, step(run_id=run_id), idempotency_key="k")
    assert await claimed_ids(world) == [second]


# -- health checks --------------------------------------------------------------------------


# Contract: 7.health checks
async def test_a_health_check_is_never_the_message_of_a_run(
    backend: Backend, world: RedisWorld
) -> None:
    """It names a run, or a step of it, and neither waits for that run nor counts for it."""
    await send(world, content(1))
    await claim_one(world)
    name = TOPIC + "health_check"
    payloads = [health_check(1), health_check(2, runId=RUN), health_check(3, **step())]
    sent = {await send(world, payload, name=name) for payload in payloads}
    sent.add(await send(world, health_check(4, runId=RUN), name=name))
    assert len(sent) == 4
    claimed = await world.queue.claim(TOPIC)
    assert {message.message_id for message in claimed} == sent
    assert {(message.run_id, message.is_step) for message in claimed} == {(None, False)}
    for message in claimed:
        assert await world.queue.ack(message)
    (bookkeeping,) = [value for key, value in backend.dump().items() if key.endswith(b":queue")]
    assert bookkeeping[1][b"n"] == b"1"


# Contract: 7.claim
async def test_messages_without_a_run_do_not_wait_for_each_other(world: RedisWorld) -> None:
    sent = {await send(world, payload) for payload in ({"a": 1}, {"a": 1}, {"runId": 7}, {})}
    assert set(await claimed_ids(world)) == sent
    assert len(sent) == 4
