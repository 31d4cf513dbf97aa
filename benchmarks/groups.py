"""What is compared with what."""

from __future__ import annotations

from typing import Final

from compare import Group
from peers import engines, npm_worlds, storage, task_queues

__all__ = ["GROUPS"]

GROUPS: Final = (
    Group(
        name="Worlds as stores",
        unit="runs of ten steps per second",
        peers=[*storage.PEERS, *npm_worlds.PEERS],
        step=64,
        most=2048,
        note=(
            "33 events each, 256-byte payloads, 64 callers in one process, at the World's own "
            "`events.create`. PostgreSQL writes to its disk before it answers (fsync), the "
            "Redis servers keep nothing on disk, for all clients alike. RedisWorld leaves the log "
            "out of its answer to run_started, as it is asked to; the npm Worlds have no such "
            "option."
        ),
        goals={
            "@workflow-worlds/redis": 10,
            "@workflow/world-postgres": 40,
            "@workflow/world-local": 100,
        },
    ),
    Group(
        name="Task queues",
        unit="jobs per second",
        peers=task_queues.PEERS,
        step=500,
        most=10_000,
        shows_latencies=True,
        note=(
            "Jobs that do nothing, sent by 64 producers of one process, handled by one worker "
            "process, 64 at a time, each queue on a Redis 7 of its own. Latency is that of an "
            "idle worker: from send to handler. arq polls twice a second, as it does by default."
        ),
    ),
    Group(
        name="Durable engines",
        unit="steps per second",
        peers=engines.PEERS,
        step=16,
        most=256,
        note=(
            "Workflows of ten steps, one after the other, 16 workflows at a time. The Python SDK "
            "replays a workflow from its log, in one sandbox for all; its callers are told "
            "of an end by RedisWorld's hints, not by polling. dbos and absurd run a function on; "
            "absurd gets all workflows at once. Their PostgreSQL writes to its disk before it "
            "answers (fsync)."
        ),
    ),
)
