"""A call of each method of the HTTP interface, and what has to be there before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from redis_world import RedisWorld
from support import events as e
from support.queue_tools import NAME, TOPIC, claim_one, content

__all__ = ["CASES", "TOKEN", "Case", "Prepared", "prepare"]

TOKEN: Final = "token_1"
Prepared: TypeAlias = dict[str, Any]
Case: TypeAlias = Callable[[Prepared], dict[str, Any]]


async def prepare(world: RedisWorld) -> Prepared:
    """A run with one of each, a leased message and a dead letter."""
    run_id = await e.new_run(world)
    await e.write(
        world, run_id, e.step_created("step_1"), e.wait_created("wait_1"),
        e.hook_created("hook_1", TOKEN),
    )  # fmt: skip
    await world.streams.write_many(run_id, "out", [b"a", b"", b"b"])
    await world.queue.send(NAME, {"number": 1})
    for _ in range(world.config.max_failures):
        dead = await claim_one(world)
        assert await world.queue.retry(dead, error="it failed", delay=0)
    await world.queue.send(NAME, content(2, run_id), headers={"a": "b"}, deployment_id="d")
    leased = await claim_one(world)
    return {"run": run_id, "dead": dead.message_id, "handle": leased.handle}


CASES: Final[dict[str, Case]] = {
    "events.create": lambda p: {"runId": p["run"], "event": e.step_started("step_1")},
    "events.createBatch": lambda p: {
        "runId": p["run"],
        "events": [e.step_created("step_2"), e.step_created("step_1")],
    },
    "events.get": lambda p: {"runId": p["run"], "eventId": e.event_id(1)},
    "events.list": lambda p: {"runId": p["run"], "limit": 2, "sortOrder": "desc"},
    "events.listByCorrelationId": lambda p: {"runId": p["run"], "correlationId": "step_1"},
    "runs.get": lambda p: {"runId": p["run"]},
    "runs.getMany": lambda p: {"runIds": ["wrun_none", p["run"]], "resolveData": "none"},
    "runs.list": lambda _: {"status": ["running", "pending"], "limit": 5},
    "runs.waitForTerminal": lambda p: {"runId": p["run"], "timeout": 0},
    "runs.cancelMany": lambda p: {"runIds": [p["run"], "wrun_none"], "reason": "why"},
    "steps.get": lambda p: {"runId": p["run"], "stepId": "step_1"},
    "steps.list": lambda p: {"runId": p["run"]},
    "waits.get": lambda p: {"runId": p["run"], "correlationId": "wait_1"},
    "waits.list": lambda p: {"runId": p["run"]},
    "hooks.get": lambda p: {"hookId": "hook_1", "runId": p["run"]},
    "hooks.getByToken": lambda _: {"token": TOKEN},
    "hooks.list": lambda _: {},
    "queue.send": lambda p: {"queueName": NAME, "payload": content(3, p["run"]), "delay": 0.5},
    "queue.sendMany": lambda p: {
        "messages": [
            {"queueName": NAME, "payload": content(4, p["run"])},
            {"queueName": "orders", "payload": {}},
        ]
    },
    "queue.ack": lambda p: {"handle": p["handle"], "followUp": {"delay": 5}},
    "queue.retry": lambda p: {"handle": p["handle"], "error": "late", "retryAfter": 100},
    "queue.extend": lambda p: {"handle": p["handle"], "lease": 5},
    "queue.release": lambda p: {"handle": p["handle"]},
    "queue.postpone": lambda p: {"handle": p["handle"], "delay": 7},
    "queue.stats": lambda _: {"topic": TOPIC},
    "queue.deadLetters": lambda _: {"topic": TOPIC},
    "queue.redrive": lambda p: {"messageId": p["dead"]},
    "queue.purgeDeadLetters": lambda _: {"topic": TOPIC},
    "streams.write": lambda p: {
        "runId": p["run"], "name": "out", "chunk": b"c", "writer": "ab" * 8, "sequence": 1,
    },
    "streams.writeMany": lambda p: {
        "runId": p["run"], "name": "new", "chunks": [b"", b"\x00\xff"],
        "writer": "cd" * 8, "sequence": 7,
    },
    "streams.close": lambda p: {"runId": p["run"], "name": "out"},
    "streams.list": lambda p: {"runId": p["run"]},
    "streams.find": lambda _: {"name": "out"},
    "streams.getInfo": lambda p: {"runId": p["run"], "name": "out"},
    "streams.getChunks": lambda p: {"runId": p["run"], "name": "out", "limit": 2},
}  # fmt: skip
