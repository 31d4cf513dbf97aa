"""Private Redis servers for the backends that need one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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


@contextmanager
def private_redis(kind: ServerKind = "redis7") -> Iterator[Server]:
    """Run a server that nobody else uses for the length of a `with` block.

    Raises:
        MissingError: there is no such server here.
    """
    with ExitStack() as stack:
        try:
            server = stack.enter_context(redis_server(kind))
        except ServerUnavailableError as error:
            raise MissingError(str(error)) from error
        yield server


@contextmanager
def private_cluster(masters: int, kind: ServerKind = "redis7") -> Iterator[Cluster]:
    """Run a cluster that nobody else uses for the length of a `with` block.

    Raises:
        MissingError: there is no such server here.
    """
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(redis_cluster(kind, masters=masters))
        except ServerUnavailableError as error:
            raise MissingError(str(error)) from error
        yield cluster


def server_version(server: Server) -> str:
    """What a server is called in the versions of backends, such as `Redis 7.0.15`."""
    product = "Valkey" if server.kind.startswith("valkey") else "Redis"
    return f"{product} {server.version}"
