"""Workers that sleep, until a message wakes one of them.

A worker that has found nothing sleeps by its claim itself, `Queue.claim_batch` with `look`.
"""

from __future__ import annotations

from redis_world.connection import Connection

__all__ = ["wake_another", "wake_no_more"]


async def wake_another(connection: Connection, topic: str, partition: int, worker: str) -> None:
    """Hand on what has woken a worker that has no room: wake another one, if there is need.

    Args:
        connection: to the namespace.
        topic: the topic of the messages.
        partition: where the worker was woken.
        worker: the worker.
    """
    keys = connection.partitions[partition]
    await connection.call(
        "queue/wake",
        {part: keys.topic(topic, part) for part in ("due", "declined")},
        {"base": keys.base, "topic": topic, "worker": worker},
    )


async def wake_no_more(connection: Connection, topic: str, worker: str) -> None:
    """Let no message wake a worker that stops."""
    sleepers = [keys.topic(topic, "sleepers") for keys in connection.partitions]
    await connection.execute(*(("ZREM", key, worker) for key in sleepers))
