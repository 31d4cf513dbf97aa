"""One of everything that a World can do, for tests that look at all of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from redis_world import RedisWorld
from redis_world.connection import Connection
from redis_world.queue import Enqueue, FollowUp
from redis_world.sleepers import hand_on
from redis_world.sweeper import elect
from support.events import (
    attr_set,
    event,
    hook_created,
    hook_disposed,
    hook_received,
    lazy_start,
    new_run,
    new_run_id,
    resilient_start,
    step_completed,
    step_created,
    step_failed,
    step_retrying,
    step_started,
    wait_completed,
    wait_created,
    write,
)

__all__ = ["TOPIC", "exercise", "exercise_partitions"]

TOPIC = "__wkf_workflow_"
DEAD_TOPIC = "__dead_wkf_workflow_"
QUEUE_NAME = TOPIC + "w"
MANY = 101


async def exercise(world: RedisWorld) -> str:
    """Create every kind of event, message and stream, and read all of it; the running run."""
    await new_run(world, "failed")
    await new_run(world, "cancelled")
    done = await new_run(world)
    await write(world, done, hook_created("hook_1", "taken"), wait_created())
    await write(world, done, event("run_completed", output=b"out"))
    await world.events.create(new_run_id(), resilient_start())

    run_id = await new_run(world, attributes={"a": "1"})
    await write(
        world,
        run_id,
        step_created("step_1"),
        step_started("step_1"),
        step_retrying("step_1"),
        step_started("step_1"),
        step_completed("step_1"),
        lazy_start("step_2"),
        step_failed("step_2"),
        hook_created("hook_1", "token_1"),
        hook_created("hook_2", "token_2", metadata=b"m"),
        hook_created("hook_3", "token_1"),
        hook_received("hook_1"),
        hook_disposed("hook_2"),
        wait_created("wait_1"),
        wait_created("wait_2"),
        wait_completed("wait_1"),
        attr_set({"a": None, "b": "2"}, "attr_1"),
    )
    await _write_batches(world, run_id)
    await _bury(world)
    await _send(world, run_id)
    await _strand(world, run_id)
    await _stream(world, run_id)
    await _read(world, run_id)
    await world.runs.cancel_many([await new_run(world)], "no longer wanted")
    await _remove(world)
    return run_id


async def exercise_partitions(world: RedisWorld) -> None:
    """Do what only a World of several partitions does: share tokens, and look in all of them."""
    runs = [await new_run(world) for _ in range(8)]
    for run_id in runs:
        await world.events.create(run_id, hook_created("hook", "shared"))
    (owner,) = (await world.hooks.list()).data
    await world.hooks.get("hook")
    await world.hooks.get_by_token("shared")
    await write(world, owner.run_id, hook_disposed("hook"))
    await world.events.create(runs[-1], hook_created("other", "shared"))
    await write(world, runs[0], hook_created("third", "free"), hook_disposed("third"))
    for run_id in runs:
        await world.queue.send(QUEUE_NAME, {"runId": run_id})
    await world.queue.claim(TOPIC, limit=3)
    await world.sweep()


async def _write_batches(world: RedisWorld, run_id: str) -> None:
    """Every event that may be in a batch; some are refused."""
    steps = [event for name in "abc" for event in (step_created(name), step_started(name))]
    message = Enqueue(QUEUE_NAME, {"runId": run_id})
    await world.events.create_batch(run_id, [*steps, wait_created("w"), step_started("none")])
    ends = [step_completed("a"), step_failed("b"), step_retrying("c"), wait_completed("w")]
    await world.events.create_batch(run_id, [*ends, step_created("step_1")], enqueue=message)
    for end in (event("run_completed", output=b"out"), event("run_failed", error=b"err")):
        other = await new_run(world)
        await world.events.create_batch(other, [step_created("a"), end, step_started("a")])


async def _remove(world: RedisWorld) -> None:
    """End runs with more than one script deletes at a time, and remove one of them."""
    now = datetime.now(UTC)
    for attributes in ({}, {"$retention": "0"}):
        run_id = await new_run(world, attributes=attributes, allowReservedAttributes=True)
        hooks = [hook_created(f"h{n}", f"{run_id} {n}") for n in range(MANY)]
        kept = hook_created("kept", f"{run_id} kept", tokenRetentionUntil=now + timedelta(days=1))
        await write(world, run_id, kept, *hooks)
        for number in range(MANY):
            await world.streams.write(run_id, f"s{number}", b"1")
        await write(world, run_id, step_created("s"), event("run_completed", output=b"out"))
        await world.sweep()
        await write(world, run_id, hook_disposed("kept"))
    await world.queue.send(QUEUE_NAME, {"runId": run_id, "more": 3})
    await world.prune(0)
    await elect(world.connection, "worker", 10)
    await world.sweep()


async def _send(world: RedisWorld, run_id: str) -> None:
    queue = world.queue
    for payload, key in (
        ({"runId": run_id}, None),
        ({"runId": run_id, "stepId": "step_9"}, "step_9"),
        ({"runId": run_id, "more": 1}, "a key"),
        ({"runId": run_id, "more": 2}, None),
        ({"any": 1}, None),
    ):
        await queue.send(QUEUE_NAME, payload, idempotency_key=key)
    await queue.claim_batch("__sleepy_wkf_workflow_", worker="w", look=1)
    await hand_on(world.connection, TOPIC, 0, "w")
    acked, retried, returned = await queue.claim(TOPIC, limit=3)
    await queue.extend(acked)
    await queue.ack(acked, follow_up=FollowUp(delay=60))
    await queue.retry(retried, error="it failed", delay=60)
    await queue.release(returned)
    (postponed,) = await queue.claim(TOPIC, limit=1)
    await queue.postpone(postponed, 60)
    await queue.claim_batch(TOPIC, limit=1, worker="other")
    await queue.stats(TOPIC)


async def _bury(world: RedisWorld) -> None:
    """Fail a message until it is dead, send it again, bury and delete it."""
    queue = world.queue
    sent = await queue.send(DEAD_TOPIC + "w", {"any": 1})
    for round_number in range(2):
        for _ in range(world.config.max_failures):
            (message,) = await queue.claim(DEAD_TOPIC)
            await queue.retry(message, error="it failed", delay=0)
        (letter,) = (await queue.dead_letters(DEAD_TOPIC)).data
        assert letter.message_id == sent
        if round_number == 0:
            await queue.redrive(letter.message_id)
    await queue.purge_dead_letters(DEAD_TOPIC)


async def _strand(world: RedisWorld, run_id: str) -> None:
    """Leave runs and a step without their messages, for so long that a sweep sees to them."""
    await new_run(world)
    await write(world, run_id, step_created("step_10"))
    connection = world.connection
    await connection.execute(("ZADD", connection.keys.lost, 1, "n/msg_unknown"))
    for index in (connection.keys.owed, connection.keys.parked):
        (members,) = await connection.execute(("ZRANGE", index, 0, -1))
        assert members
        await connection.execute(*(("ZADD", index, 1, member) for member in members))
    (owed,) = await connection.execute(("ZRANGE", connection.keys.owed, 0, -1))
    for run in (connection.keys.of_run(each.decode()).run for each in owed):
        await _date_back(connection, run)
    await world.sweep()


async def _date_back(connection: Connection, run: str) -> None:
    """What a run is owed it has been owed for long."""
    field, record = (await connection.execute(("HMGET", run, "owed", "step:step_10")))[0]
    wake, steps = field.decode().split(" ")
    changes = ["owed", f"{wake and 1} {steps}"]
    if record is not None:
        words = record.decode().split(" ")
        words[12] = "-100000000"
        changes += ["step:step_10", " ".join(words)]
    await connection.execute(("HSET", run, *changes))


async def _stream(world: RedisWorld, run_id: str) -> None:
    await world.streams.write_many(run_id, "out", [b"1", b"2"])
    await world.streams.write(run_id, "open", b"1")
    await world.streams.close(run_id, "out")
    await world.streams.get_info(run_id, "out")
    await world.streams.get_chunks(run_id, "out")
    await world.streams.list(run_id)
    await world.streams.note_run(run_id, "out")
    assert await world.streams.find_run("out") == run_id
    assert [chunk async for chunk in world.streams.read(run_id, "out")] == [b"1", b"2"]


async def _read(world: RedisWorld, run_id: str) -> None:
    await world.runs.get(run_id)
    await world.runs.list()
    await world.runs.list(status=["running", "failed"], workflow_name="workflow//w")
    await world.runs.wait_for_terminal(run_id, timeout=0)
    await world.steps.get(run_id, "step_1")
    await world.steps.list(run_id)
    await world.hooks.get("hook_1")
    await world.hooks.get_by_token("token_1")
    await world.hooks.list()
    await world.hooks.list(run_id)
    await world.waits.get(run_id, "wait_1")
    await world.waits.list(run_id)
    await world.events.list(run_id)
    await world.events.list_by_correlation_id(run_id, "step_1")
