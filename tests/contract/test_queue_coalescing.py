"""Wakes that say the same are one, and nothing else ever is (contract, section 7)."""

# Contract: 7.wakes

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from redis_world import RedisWorld
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
    send,
    wake,
)

Clocked = tuple[RedisWorld, ManualClock]

WAKES: list[dict[str, Any]] = [
    wake(),
    {**wake(), "requestedAt": datetime(2026, 1, 1, tzinfo=UTC)},
    {**wake(), "traceCarrier": {"traceparent": "00-a"}},
    {**wake(), "hookResumeTiming": {"receivedAt": 1}},
    {**wake(), "requestedAt": 2, "traceCarrier": {}, "hookResumeTiming": None},
]


async def test_wakes_that_are_due_become_one(backend: Backend, world: RedisWorld) -> None:
    first = await send(world, wake())
    before = backend.dump()
    assert [await send(world, payload) for payload in WAKES] == [first] * len(WAKES)
    assert backend.dump() == before
    assert await claimed_ids(world) == [first]


@pytest.mark.parametrize("kept", WAKES)
async def test_every_plain_wake_absorbs(world: RedisWorld, kept: dict[str, Any]) -> None:
    first = await send(world, kept)
    assert await send(world, wake()) == first
    assert (await claim_one(world)).payload == kept


async def test_wakes_of_several_runs_stay_apart(world: RedisWorld) -> None:
    assert await send(world, wake()) != await send(world, wake(OTHER_RUN))


@pytest.mark.parametrize(
    ("payload", "options"),
    [
        ({**wake(), "number": 1}, {}),
        ({**wake(), "runInput": {"input": b""}}, {}),
        ({**wake(), "hookInput": {"token": "t"}}, {}),
        ({**wake(), "serverErrorRetryCount": 1}, {}),
        ({**wake(), "replayDivergenceRetryCount": 0}, {}),
        ({**wake(), "stepId": "step_1"}, {}),
        ({**wake(), "stepId": ""}, {}),
        ({**wake(), "__healthCheck": True}, {}),
        (wake(), {"idempotency_key": "k"}),
        (wake(), {"delay": 0.001}),
        (wake(), {"name": NAME + "2"}),
        (wake(), {"headers": {"h": "1"}}),
        (wake(), {"deployment_id": "dpl_1"}),
    ],
)
async def test_what_says_more_is_its_own_message(
    world: RedisWorld, payload: dict[str, Any], options: dict[str, Any]
) -> None:
    """Neither is it merged into a wake, nor a wake into it."""
    plain = await send(world, wake())
    other = await send(world, payload, **options)
    assert other != plain
    assert await send(world, wake(), deployment_id="dpl_2") not in {plain, other}
    stats = await world.queue.stats(TOPIC)
    assert stats.ready + stats.delayed == 3


@pytest.mark.parametrize(
    ("payload", "options"),
    [
        ({**wake(), "number": 1}, {}),
        (wake(), {"idempotency_key": "k"}),
        (wake(), {"delay": 1}),
        ({**wake(), "stepId": "step_1"}, {}),
    ],
)
async def test_no_wake_is_merged_into_what_says_more(
    clocked: Clocked, payload: dict[str, Any], options: dict[str, Any]
) -> None:
    """A wake in a delayed message would be late; one in a step's message never a replay."""
    world, clock = clocked
    other = await send(world, payload, **options)
    if "delay" in options:
        await clock.advance(1)  # due by now, and still not a plain wake
    assert await send(world, wake()) != other


async def test_wakes_of_equal_headers_and_deployments_become_one(world: RedisWorld) -> None:
    options: dict[str, Any] = {"headers": {"a": "1", "b": "2"}, "deployment_id": "dpl_1"}
    first = await send(world, wake(), **options)
    assert await send(world, wake(), **options) == first


async def test_topics_do_not_absorb_each_others_wakes(world: RedisWorld) -> None:
    other_topic = "__other_wkf_workflow_"
    first = await send(world, wake())
    second = await send(world, wake(), name=other_topic + "orders")
    assert first != second
    assert await claimed_ids(world, other_topic) == [second]


async def test_a_wake_absorbs_no_more_once_it_is_claimed(world: RedisWorld) -> None:
    """What the new one tells about, the replay that runs may not see."""
    first = await send(world, wake())
    message = await claim_one(world)
    second = await send(world, wake())
    assert second != first
    assert await send(world, wake()) == second
    assert await world.queue.ack(message)
    assert await claimed_ids(world) == [second]


async def test_a_held_wake_was_not_delivered_and_absorbs(world: RedisWorld) -> None:
    await send(world, wake())
    leased = await claim_one(world)
    second = await send(world, wake())
    assert await claimed_ids(world) == []
    assert (await world.queue.stats(TOPIC)).held == 1
    assert await send(world, wake()) == second
    await world.queue.ack(leased)
    assert await claimed_ids(world) == [second]


@pytest.mark.parametrize("end", ["backoff", "retry", "release", "expiry"])
async def test_a_wake_that_was_delivered_never_absorbs(clocked: Clocked, end: str) -> None:
    """In back-off it would make the new one late, and its attempts would count for the new."""
    world, clock = clocked
    first = await send(world, wake())
    message = await claim_one(world, lease=1)
    match end:
        case "backoff":
            await world.queue.retry(message, delay=100)
        case "retry":
            await world.queue.retry(message, delay=0)
        case "release":
            await world.queue.release(message)
        case "expiry":
            await clock.advance(1)
            await world.sweep()
    second = await send(world, wake())
    assert second != first
    claimed = await world.queue.claim(TOPIC)
    assert len(claimed) == 1
    await world.queue.ack(claimed[0])
    rest = await claimed_ids(world)
    expected = {second} if end == "backoff" else {first, second}
    assert {claimed[0].message_id, *rest} == expected


async def test_a_wake_whose_message_ended_absorbs_no_more(world: RedisWorld) -> None:
    first = await send(world, wake())
    await world.queue.ack(await claim_one(world))
    second = await send(world, wake())
    assert second != first
    assert await claimed_ids(world) == [second]


async def test_nothing_with_content_is_merged_away(world: RedisWorld) -> None:
    """Equal content twice is two messages, also beside a wake."""
    sent = [await send(world, payload) for payload in (content(1), content(1), wake(), content(2))]
    assert len(set(sent)) == 4
    received = []
    while claimed := await world.queue.claim(TOPIC, limit=1):
        received.append(claimed[0].payload)
        await world.queue.ack(claimed[0])
    key = [payload.get("number") for payload in received]
    assert sorted(map(str, key)) == ["1", "1", "2", "None"]
    assert {payload["runId"] for payload in received} == {RUN}
