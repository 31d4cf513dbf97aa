"""Servers of a test's own; a test that can't have one is skipped, and in CI it fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from redis_world.testing import Server, ServerUnavailableError, available_kinds, redis_server
from redis_world.testing.servers import ServerKind

__all__ = ["any_kind", "give_up", "needing", "private_server"]


def give_up(kind: str, why: object) -> NoReturn:
    """End a test for want of a server; the summary of the session counts these."""
    text = f"no {kind} server: {why}"
    if os.environ.get("CI"):
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
    with needing(kind), redis_server(kind, args=args) as server:  # type: ignore[arg-type]
        yield server


def any_kind() -> ServerKind:
    """Some kind of server that is installed."""
    kinds = available_kinds()
    if not kinds:
        give_up("real", "none is installed")
    return kinds[0]
