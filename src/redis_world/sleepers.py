"""Workers that sleep, until a message wakes one of them.

A worker that has found nothing sleeps by its claim itself, `Queue.claim_batch` with `look`.
"""

from __future__ import annotations

from redis_world.connection import Connection

__all__ = ["hand_on"]


async def hand_on(connection: Connection, topic: str, partition: int, worker: str) -> None:
    """Let a worker sleep no longer, and tell another one of what is there for it.

    Args:
        connection: to the namespace.
        topic: the topic of the messages.
        partition: where the worker was woken, or was to look, and can't.
        worker: the worker.
    """
    keys = connection.partitions[partition]
    await connection.call(
        "queue/wake",
        {part: keys.topic(topic, part) for part in ("due", "leased")},
        {"base": keys.base, "topic": topic, "worker": worker},
    )
