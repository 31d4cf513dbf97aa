"""Queues of steps, which an older generation of clients has (contract, section 7).

Their messages name the run as `workflowRunId`. Everything else is as with other messages of steps.
"""

# Contract: 7.sending, 7.messages of steps

from __future__ import annotations

from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidInputError
from redis_world.queue import Enqueue, FollowUp, Message
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.queue_tools import NAME, TOPIC, claim_one, owed, send, step, wake

Clocked = tuple[RedisWorld, ManualClock]
STEP_TOPIC: Final = "__wkf_step_"
STEP_NAME: Final = "__wkf_step_charge"
INTERVAL: Final = 15
CREATED: Final = e.step_created(stepName="charge")


def old_step(run_id: str, step_id: str = "step_1") -> dict[str, Any]:
    """The message of a step as those clients send it."""
    return {
        "workflowName": "w",
        "workflowRunId": run_id,
        "workflowStartedAt": 1764748800000,
        "stepId": step_id,
    }


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        (STEP_NAME, STEP_TOPIC),
        ("__shop_wkf_step_charge", "__shop_wkf_step_"),
        ("__wkf_step_ step//./src/steps//charge é", STEP_TOPIC),
        ("__wkf_step_health_check", STEP_TOPIC),
    ],
)
async def test_their_names(world: RedisWorld, name: str, topic: str) -> None:
    payload = {"__healthCheck": True, "correlationId": "c"}
    await send(world, payload, name=name)
    message = await claim_one(world, topic)
    assert (message.queue_name, message.topic, message.run_id) == (name, topic, None)
    assert (await world.queue.stats(topic)).leased == 1
    assert await world.queue.ack(message)


@pytest.mark.parametrize(
    "name", ["__wkf_step_", "__wkf_steps_x", "__Shop_wkf_step_x", "wkf_step_x"]
)
async def test_names_that_are_none(world: RedisWorld, name: str) -> None:
    with pytest.raises(InvalidInputError, match="queue_name must be"):
        await world.queue.send(name, {})


async def test_the_message_of_a_step_is_one_whichever_its_queue(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, CREATED)
    first = await send(world, old_step(run_id), name=STEP_NAME)
    assert f"{run_id}/step_1" not in await owed(world, run_id)
    assert await send(world, old_step(run_id), name=STEP_NAME, idempotency_key="k") == first
    assert await send(world, step(run_id=run_id)) == first
    message = await claim_one(world, STEP_TOPIC)
    assert (message.message_id, message.run_id, message.is_step) == (first, run_id, True)
    assert message.payload == old_step(run_id)


async def test_none_is_stored_for_a_terminal_step(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, CREATED, e.step_started(), e.step_completed())
    assert await world.queue.send(STEP_NAME, old_step(run_id)) is None


async def test_an_event_brings_one_along(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    result = await world.events.create(
        run_id, CREATED, enqueue=Enqueue(STEP_NAME, old_step(run_id))
    )
    message = await claim_one(world, STEP_TOPIC)
    assert message.message_id == result.message_id
    await e.write(world, run_id, e.step_started())
    ended = await world.events.create(
        run_id, e.step_completed(), ack=message, enqueue=Enqueue(NAME, wake(run_id))
    )
    assert ended.acked is True
    assert (await claim_one(world)).message_id == ended.message_id


async def test_another_process_ends_its_delivery(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, CREATED)
    await send(world, old_step(run_id), name=STEP_NAME)
    message = Message.from_handle((await claim_one(world, STEP_TOPIC)).handle)
    assert (message.run_id, message.is_step) == (run_id, True)
    assert await world.queue.retry(message, error="late", delay=0)
    message = Message.from_handle((await claim_one(world, STEP_TOPIC)).handle)
    assert await world.queue.ack(message, follow_up=FollowUp())
    (again,) = await world.queue.claim(STEP_TOPIC)
    assert again.payload == old_step(run_id)


@pytest.mark.parametrize("lost", ["lost lease", "retry"])
async def test_without_user_data_it_still_names_its_run(clocked: Clocked, lost: str) -> None:
    world, clock = clocked
    created = await world.events.create(
        None, e.run_created(attributes={"$retention": "0"}, allowReservedAttributes=True)
    )
    assert created.run is not None
    run_id = created.run.run_id
    await e.write(world, run_id, e.event("run_started"), CREATED)
    await send(world, old_step(run_id), name=STEP_NAME)
    message = await claim_one(world, STEP_TOPIC)
    await e.write(world, run_id, e.run_ended("completed"))
    if lost == "retry":
        await world.queue.retry(message, error="late", delay=0)
    else:
        await clock.advance(61)
    again = await claim_one(world, STEP_TOPIC)
    assert again.payload == {"workflowRunId": run_id, "stepId": "step_1", "stepName": "charge"}
    await check_invariants(world)


# Contract: 7.no run is left behind
async def test_the_queue_of_the_run_stays_that_of_its_replays(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    await send(world, wake(run_id), name="__wkf_workflow_mine")
    assert await world.queue.ack(await claim_one(world))
    await e.write(world, run_id, CREATED)
    await send(world, old_step(run_id), name=STEP_NAME)
    message = await claim_one(world, STEP_TOPIC)
    await e.write(world, run_id, e.step_started(), e.step_completed())
    assert await world.queue.ack(message)
    await clock.advance(INTERVAL)
    await world.sweep()
    assert (await claim_one(world)).queue_name == "__wkf_workflow_mine"


# Contract: 7.no run is left behind
@pytest.mark.parametrize("name", ["__wkf_workflow_w", "__shop_wkf_workflow_w", None])
@pytest.mark.parametrize("spec_version", [2, 3, 4, 7])
async def test_the_sweeper_sends_a_step_where_the_clients_of_its_run_expect_it(
    clocked: Clocked, name: str | None, spec_version: int
) -> None:
    world, clock = clocked
    created = await world.events.create(
        None, {**e.run_created(deploymentId="d1"), "specVersion": spec_version}
    )
    assert created.run is not None
    run_id = created.run.run_id
    started = await world.events.create(run_id, e.event("run_started"))
    assert started.run is not None
    assert started.run.started_at is not None
    if name is not None:
        await send(world, wake(run_id), name=name)
        assert await world.queue.ack(await claim_one(world, name.removesuffix("w")))
    await e.write(world, run_id, CREATED)
    await clock.advance(INTERVAL)
    assert (await world.sweep())["queued_steps"] == 1
    prefix = "__shop_" if name == "__shop_wkf_workflow_w" else "__"
    workflow_name = started.run.workflow_name
    topic = f"{prefix}wkf_step_" if spec_version <= 3 else f"{prefix}wkf_workflow_"
    message = await claim_one(world, topic)
    requested_at = message.payload.pop("requestedAt")
    assert requested_at is not None
    if spec_version <= 3:
        assert message.queue_name == f"{topic}charge"
        assert message.payload == {
            "workflowName": workflow_name,
            "workflowRunId": run_id,
            "workflowStartedAt": int(started.run.started_at.timestamp() * 1000),
            "stepId": "step_1",
        }
    else:
        assert message.queue_name == (name or f"{topic}{workflow_name}")
        assert message.payload == {"runId": run_id, "stepId": "step_1", "stepName": "charge"}
    assert message.deployment_id == "d1"
    await check_invariants(world)


# Contract: 7.no run is left behind
async def test_the_sweeper_wakes_a_run_for_its_deployment(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await e.new_run(world, deploymentId="d1")
    await send(world, wake(run_id), deployment_id="d1")
    assert await world.queue.ack(await claim_one(world))
    await clock.advance(INTERVAL)
    assert (await world.sweep())["woken_runs"] == 1
    # A wake of its clients is the same one.
    stats = await world.queue.stats(TOPIC)
    await send(world, wake(run_id), deployment_id="d1")
    assert (await world.queue.stats(TOPIC)).ready == stats.ready == 1
    assert (await claim_one(world)).deployment_id == "d1"
