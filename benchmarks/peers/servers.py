"""Private Redis servers for the backends that need one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from peers.base import MissingError
from redis_world.testing import (
    Cluster,
    Server,
    ServerUnavailableError,
    redis_cluster,
    redis_server,
)
from redis_world.testing.servers import ServerKind

__all__ = ["private_cluster", "private_redis", "server_version"]

T = TypeVar("T")


@contextmanager
def private_redis(kind: ServerKind = "redis7") -> Iterator[Server]:
    """Run a server that nobody else uses for the length of a `with` block.

    Raises:
        MissingError: there is no such server here.
    """
    with _or_missing(redis_server(kind)) as server:
        yield server


@contextmanager
def private_cluster(masters: int, kind: ServerKind = "redis7") -> Iterator[Cluster]:
    """Run a cluster that nobody else uses for the length of a `with` block.

    Raises:
        MissingError: there is no such server here.
    """
    with _or_missing(redis_cluster(kind, masters=masters)) as cluster:
        yield cluster


@contextmanager
def _or_missing(servers: AbstractContextManager[T]) -> Iterator[T]:
    with ExitStack() as stack:
        try:
            started = stack.enter_context(servers)
        except ServerUnavailableError as error:
            raise MissingError(str(error)) from error
        yield started


def server_version(server: Server) -> str:
    """What a server is called in the versions of backends, such as `Redis 7.0.15`."""
    product = "Valkey" if server.kind.startswith("valkey") else "Redis"
    return f"{product} {server.version}"
