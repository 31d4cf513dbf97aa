"""Short words for what tests of the queue do over and over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from redis_world import RedisWorld
from redis_world.queue import FollowUp, Message
from redis_world.rows import StepRecord, pairs

TOPIC = "__wkf_workflow_"
NAME = "__wkf_workflow_orders"

RUN = "wrun_01HZX0000000000000000000AA"
OTHER_RUN = "wrun_01HZX0000000000000000000BB"
"""Runs that don't exist: the queue takes messages of a run before the run is there."""

Payload = dict[str, Any]


def wake(run_id: str = RUN) -> Payload:
    """A message that says no more than "look at the run"."""
    return {"runId": run_id}


def content(number: Any, run_id: str = RUN) -> Payload:
    """A replay with content, which nothing may merge away."""
    return {"runId": run_id, "number": number}


def step(step_id: str = "step_1", run_id: str = RUN) -> Payload:
    """The message of a step."""
    return {"runId": run_id, "stepId": step_id, "stepName": "charge"}


def health_check(number: int = 1, **more: Any) -> Payload:
    return {"__healthCheck": True, "correlationId": f"hc_{number}", **more}


async def send(world: RedisWorld, payload: Payload, **options: Any) -> str:
    """Send a message that must be stored, or be stood for by another one."""
    message_id = await world.queue.send(options.pop("name", NAME), payload, **options)
    assert message_id is not None
    return message_id


async def claim_one(world: RedisWorld, topic: str = TOPIC, **options: Any) -> Message:
    """Claim when exactly one message can be had."""
    (message,) = await world.queue.claim(topic, limit=1, **options)
    return message


async def claimed_ids(world: RedisWorld, topic: str = TOPIC, **options: Any) -> list[str]:
    return [message.message_id for message in await world.queue.claim(topic, **options)]


async def start_run(world: RedisWorld) -> str:
    """Create and start a run."""
    created = await world.events.create(
        None,
        {"eventType": "run_created", "eventData": {"deploymentId": "d", "workflowName": "w"}},
    )
    assert created.run is not None
    await world.events.create(created.run.run_id, {"eventType": "run_started"})
    return created.run.run_id


async def finish_run(world: RedisWorld, run_id: str) -> None:
    await world.events.create(run_id, {"eventType": "run_completed", "eventData": {}})


async def create_step(world: RedisWorld, run_id: str, step_id: str = "step_1") -> None:
    event = {
        "eventType": "step_created",
        "correlationId": step_id,
        "eventData": {"stepName": "charge", "input": b"i"},
    }
    await world.events.create(run_id, event)


async def end_step(
    world: RedisWorld, run_id: str, step_id: str = "step_1", event_type: str = "step_completed"
) -> None:
    data = {"result": b"r"} if event_type == "step_completed" else {"error": b"e"}
    await world.events.create(
        run_id, {"eventType": "step_started", "correlationId": step_id, "eventData": {}}
    )
    await world.events.create(
        run_id, {"eventType": event_type, "correlationId": step_id, "eventData": data}
    )


async def owed(world: RedisWorld, run_id: str) -> list[str]:
    """What in the run's partition is owed a message: runs, and `<run>/<step>`."""
    keys = world.connection.partitions.of(run_id)
    (found,) = await world.connection.execute(("ZRANGE", keys.owed, 0, -1))
    owed: list[str] = []
    for name in map(bytes.decode, found):
        (found,) = await world.connection.execute(("HGETALL", keys.of_run(name).run))
        fields = pairs(found)
        owed += [name] if fields[b"owed"].partition(b" ")[0] else []
        owed += [
            f"{name}/{field.removeprefix(b'step:').decode()}"
            for field, record in fields.items()
            if field.startswith(b"step:") and StepRecord.read(record).owed != b"-"
        ]
    return owed


async def outcome(call: Awaitable[Any]) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - which one is what the caller tests
        return error


LEASED_CALLS: dict[str, Callable[[RedisWorld, Message], Awaitable[bool]]] = {
    "ack": lambda world, message: world.queue.ack(message),
    "ack and continue": lambda world, message: world.queue.ack(
        message, follow_up=FollowUp(delay=3, idempotency_key="next")
    ),
    "retry": lambda world, message: world.queue.retry(message, error="late", delay=0),
    "release": lambda world, message: world.queue.release(message),
    "postpone": lambda world, message: world.queue.postpone(message, 1),
    "extend": lambda world, message: world.queue.extend(message, lease=600),
}
"""Everything that needs the lease of a message."""
