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
            "64 callers in one process write runs of 33 events with 256-byte payloads. Each calls "
            "the World's own `events.create`. PostgreSQL writes to its disk before it answers "
            "(fsync). The Redis servers keep nothing on disk, for all clients. RedisWorld skips "
            "the log in its answer to run_started, an option that the npm Worlds do not have."
        ),
        goals={
            "@workflow-worlds/redis": 4,
            "@workflow/world-postgres": 15,
            "@workflow/world-local": 14,
        },
    ),
    Group(
        name="Task queues",
        unit="jobs per second",
        item="job",
        peers=task_queues.PEERS,
        step=500,
        most=10_000,
        shows_latencies=True,
        note=(
            "64 producers in one process send jobs that do nothing. One worker process handles "
            "64 jobs at a time. Each queue has its own Redis 7. Latency is the time from send to "
            "handler, with an idle worker. arq polls twice per second, its default."
        ),
    ),
    Group(
        name="Durable engines",
        unit="steps per second",
        item="step",
        peers=engines.PEERS,
        step=16,
        most=256,
        note=(
            "Workflows of ten sequential steps, 16 workflows at a time. The Python SDK replays "
            "each workflow from its log, in a shared sandbox. RedisWorld notifies its callers of "
            "the end; they do not poll. dbos and absurd do not replay. absurd gets all workflows "
            "at once. The PostgreSQL of both writes to its disk before it answers (fsync)."
        ),
    ),
)
