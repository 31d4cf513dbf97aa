"""Servers of a test's own; a test that can't have one is skipped, and in CI it fails.

In the quick part of the tests (`pytest --quick`) every server comes from a wheel, so that it needs
nothing that is installed apart; there it fails, too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final, NoReturn, cast

import pytest

from redis_world.testing import (
    Cluster,
    Server,
    ServerUnavailableError,
    available_kinds,
    redis_cluster,
    redis_server,
)
from redis_world.testing.servers import ServerKind

__all__ = [
    "FROM_A_WHEEL",
    "ONE",
    "any_kind",
    "give_up",
    "here",
    "needing",
    "private_cluster",
    "private_server",
    "use_wheels_only",
]

FROM_A_WHEEL: Final[tuple[ServerKind, ...]] = ("valkey9", "redis8")
"""The kinds that come with packages of the extra `servers`. The first stands in for others."""
ONE: Final = "one"
"""A real server for tests that one is enough for: Redis 7, or in the quick part a wheel's."""

_are_wheels_enough = False


def use_wheels_only() -> None:
    """From now on start no server but those that come from wheels."""
    global _are_wheels_enough  # noqa: PLW0603 - as long as the process lives
    _are_wheels_enough = True


def here(kind: str) -> ServerKind:
    """The kind of server that a test gets which asks for `kind`."""
    if _are_wheels_enough and kind not in FROM_A_WHEEL:
        return FROM_A_WHEEL[0]
    return "redis7" if kind == ONE else cast(ServerKind, kind)


def give_up(kind: str, why: object) -> NoReturn:
    """End a test for want of a server; the summary of the session counts these."""
    text = f"no {kind} server: {why}"
    if os.environ.get("CI") or _are_wheels_enough:
        pytest.fail(text)
    pytest.skip(text)


@contextlib.contextmanager
def needing(kind: str) -> Iterator[None]:
    """A block that starts a server, and gives up where there is none."""
    try:
        yield
    except ServerUnavailableError as error:
        give_up(kind, error)


@contextlib.contextmanager
def private_server(kind: str, *args: str) -> Iterator[Server]:
    """A server for the length of a block, for what a test changes of the server itself."""
    with needing(kind), redis_server(here(kind), args=args) as server:
        yield server


@contextlib.contextmanager
def private_cluster(kind: str = ONE, **options: Any) -> Iterator[Cluster]:
    """The same of a cluster."""
    with needing(kind), redis_cluster(here(kind), **options) as cluster:
        yield cluster


def any_kind() -> ServerKind:
    """Some kind of server that is installed."""
    kinds = [kind for kind in available_kinds() if here(kind) == kind]
    if not kinds:
        give_up("real", "none is installed")
    return here(ONE) if here(ONE) in kinds else kinds[0]
