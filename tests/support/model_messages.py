"""Random messages, and what may be done to them."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from redis_world.queue import Enqueue, FollowUp, Message
from support.model_events import Scene, some
from support.model_twins import AnyWorld

TOPICS: Final = ("__wkf_workflow_", "__other_wkf_workflow_")
NO_MESSAGE: Final = "msg_00000000000000000000000000"

_QUEUE_NAMES: Final = (TOPICS[0] + "orders", TOPICS[0] + "refunds", TOPICS[1] + "orders")
_KEYS: Final = ("k1", "k2", "s1")
"""The last one is a step's too, as those are that a sweep uses."""
_DELAYS: Final = (0, 0.001, 1, 20, 300)
_LEASES: Final = (1, 20, 60, 600)


def message(chance: Random, scene: Scene, run_id: str) -> Enqueue:
    """A message of this run."""
    payload: dict[str, Any] = {"runId": run_id}
    match chance.choices(["wake", "step", "content", "health"], [4, 4, 2, 1])[0]:
        case "content":
            payload |= {"number": chance.randint(1, 3), "runInput": b"in"}
        case "step":
            payload |= {"stepId": chance.choice(scene.names("s"))}
        case "health":
            payload |= {"__healthCheck": True, "correlationId": "c"}
        case _:
            pass
    options = some(
        chance,
        delay=_DELAYS,
        idempotency_key=_KEYS,
        headers=[{"h": "1"}],
        deployment_id=["dpl_1"],
    )
    return Enqueue(chance.choices(_QUEUE_NAMES, [6, 1, 2])[0], payload, **options)


def topic(chance: Random) -> str:
    return chance.choices(TOPICS, [3, 1])[0]


def lease(chance: Random) -> float:
    return chance.choice(_LEASES)


@dataclass(frozen=True)
class End:
    """What is done to a leased message."""

    kind: str
    seconds: float = 0
    key: str | None = None

    def __call__(self, world: AnyWorld, message: Message) -> Awaitable[bool]:
        queue = world.queue
        match self.kind:
            case "ack":
                return queue.ack(message)
            case "continue":
                return queue.ack(message, follow_up=FollowUp(self.seconds, self.key))
            case "retry":
                return queue.retry(message, error="no", delay=self.seconds)
            case "release":
                return queue.release(message)
            case "postpone":
                return queue.postpone(message, self.seconds)
            case _:
                return queue.extend(message, lease=self.seconds)


def end(chance: Random) -> End:
    kinds = ["ack", "continue", "retry", "release", "postpone", "extend"]
    kind = chance.choices(kinds, [3, 2, 2, 1, 1, 1])[0]
    if kind == "extend":
        return End(kind, lease(chance))
    return End(kind, chance.choice((0, *_DELAYS)), chance.choice([None, None, *_KEYS]))
