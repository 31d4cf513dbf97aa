"""Private clusters for tests."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import redis

from redis_world.testing.ports import free_port
from redis_world.testing.servers import (
    Server,
    ServerKind,
    ServerUnavailableError,
    redis_server,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Cluster", "redis_cluster"]

_SLOTS: Final = 16_384
_START_TIMEOUT: Final = 30.0
_POLL_INTERVAL: Final = 0.02


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running Redis Cluster for one test.

    Attributes:
        masters: the masters, with equal shares of the slots.
        replicas: one replica of each master, or none.
    """

    masters: tuple[Server, ...]
    replicas: tuple[Server, ...]

    @property
    def url(self) -> str:
        """The URL of all nodes, for `RedisWorld`."""
        nodes = (*self.masters, *self.replicas)
        return "redis+cluster://" + ",".join(f"{node.host}:{node.port}" for node in nodes)


@contextmanager
def redis_cluster(
    kind: ServerKind = "redis7",
    *,
    masters: int = 3,
    with_replicas: bool = False,
    args: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Run a private cluster for the length of a `with` block.

    Args:
        kind: the kind of its servers, as in `redis_server`.
        masters: how many masters share the slots.
        with_replicas: whether each master has a replica, which takes over when the master is lost.
        args: more arguments for each server.

    Yields:
        The cluster. Its nodes agree on the owner of each slot.

    Raises:
        ServerUnavailableError: this server is not installed, or the nodes did not form a cluster.
    """
    with ExitStack() as stack:
        count = masters * (2 if with_replicas else 1)
        buses = [free_port() for _ in range(count)]
        nodes = [
            stack.enter_context(
                redis_server(
                    kind,
                    args=(
                        *("--cluster-enabled", "yes", "--cluster-port", str(bus)),
                        *("--cluster-node-timeout", "2000", *args),
                    ),
                )
            )
            for bus in buses
        ]
        clients = [stack.enter_context(redis.Redis(node.host, node.port)) for node in nodes]
        for number, client in enumerate(clients):
            _call(client, "SET-CONFIG-EPOCH", number + 1)
            if number < masters:
                first, end = (_SLOTS * each // masters for each in (number, number + 1))
                _call(client, "ADDSLOTSRANGE", first, end - 1)
            if number:
                _call(client, "MEET", nodes[0].host, nodes[0].port, buses[0])
        _wait(lambda: all(_knows(client, count) for client in clients))
        for number in range(masters, count):
            _wait(lambda number=number: _follows(clients[number], clients[number - masters]))
        yield Cluster(tuple(nodes[:masters]), tuple(nodes[masters:]))


def _call(client: redis.Redis, *words: object) -> Any:
    return client.execute_command("CLUSTER", *words)  # type: ignore[no-untyped-call]


def _knows(client: redis.Redis, count: int) -> bool:
    told = _call(client, "INFO")
    lines = (
        told.decode().split() if isinstance(told, bytes) else [f"{k}:{v}" for k, v in told.items()]
    )
    return {"cluster_state:ok", f"cluster_known_nodes:{count}"} <= {*lines}


def _follows(replica: redis.Redis, master: redis.Redis) -> bool:
    """Make a node the replica of another one, and whether it is by now."""
    info: Any = replica.info("replication")
    if info["role"] == "slave":
        return bool(info["master_link_status"] == "up")
    _call(replica, "REPLICATE", _call(master, "MYID"))
    return False


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise ServerUnavailableError(
                f"the nodes did not form a cluster within {_START_TIMEOUT:g} s"
            )
        time.sleep(_POLL_INTERVAL)
