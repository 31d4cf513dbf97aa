"""Task queues on Redis: no-op jobs, sent by 64 producers and handled by one worker process.

`seconds` of a sample goes from the first send until the last job was handled; `latencies` are
those from send to handler of an idle worker, which gets some jobs one at a time after that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from peers.base import Peer, Round
from peers.environments import environment, program, sample
from peers.servers import private_redis, server_version

__all__ = ["PEERS", "QueuePeer"]


@dataclass
class QueuePeer:
    """A queue on a private Redis 7.

    Attributes:
        name: of the queue.
        program: sends and handles its jobs.
        requirements: of the program, with exact versions; those without an environment of their
            own run beside redis-world.
    """

    name: str
    program: str
    requirements: tuple[str, ...] = ()
    _server: str = ""

    @contextmanager
    def start(self) -> Iterator[Round]:
        python = Path(sys.executable)
        if self.requirements:
            python = environment(self.name, self.requirements)
        with private_redis() as server, program(python, self.program, server.url) as ask:
            self._server = server_version(server)
            yield lambda count: sample(ask({"jobs": count}))

    def version(self) -> str:
        packages = self.requirements or (f"redis-world=={version('redis-world')}",)
        return ", ".join([*(package.replace("==", " ") for package in packages), self._server])


PEERS: Final[list[Peer]] = [
    QueuePeer("redis-world", "queue_redis_world.py"),
    QueuePeer("streaq", "queue_streaq.py", ("streaq==7.2.0",)),
    QueuePeer("arq", "queue_arq.py", ("arq==0.28.0",)),
    QueuePeer(
        "taskiq", "queue_taskiq.py", ("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis==3.5.0")
    ),
]
