"""The pytest plugin: the fixtures `redis_world` and `redis_world_clock`.

It is there wherever redis-world is installed. The fixtures are plain ones, so that they work
with whatever runs a test's coroutines: a World opens at its first call and closes with the
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from typing import get_args

import pytest

from redis_world.keys import pattern_of
from redis_world.testing.clock import ManualClock
from redis_world.testing.servers import ServerKind, ServerUnavailableError, redis_server
from redis_world.world import RedisWorld

_MEMORY = "memory"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses the server."""
    parser.getgroup("redis-world").addoption(
        "--redis-world-server",
        choices=[_MEMORY, *get_args(ServerKind)],
        default=_MEMORY,
        help="what the fixture redis_world runs on: the embedded store, or a private server",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker."""
    config.addinivalue_line(
        "markers", "redis_world(**options): options of the World that the fixture makes"
    )


@pytest.fixture(scope="session")
def redis_world_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the Worlds of the session are; override it to use a server of your own."""
    kind = request.config.getoption("--redis-world-server")
    if kind == _MEMORY:
        yield f"memory://{secrets.token_hex(8)}"
        return
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(redis_server(kind))
        except ServerUnavailableError as error:
            pytest.skip(str(error))
        yield server.url


@pytest.fixture
def redis_world(request: pytest.FixtureRequest, redis_world_url: str) -> Iterator[RedisWorld]:
    """A World of the test's own, empty. Its keys go with the test.

    `@pytest.mark.redis_world(max_failures=1)` sets options of it.
    """
    marker = request.node.get_closest_marker("redis_world")
    options = dict(marker.kwargs) if marker else {}
    options.setdefault("namespace", f"test-{secrets.token_hex(8)}")
    world = RedisWorld(redis_world_url, library=ManualClock.library(), **options)
    yield world
    asyncio.run(_clear(redis_world_url, world))


@pytest.fixture
def redis_world_clock(redis_world: RedisWorld) -> ManualClock:
    """The clock of `redis_world`: the server's, until a test awaits its `set`."""
    return ManualClock(redis_world)


async def _clear(url: str, used: RedisWorld) -> None:
    """Delete a namespace."""
    namespace = used.config.namespace
    async with RedisWorld(url, namespace=namespace, partitions=used.config.partitions) as world:
        keys = {key async for key in world.connection.scan(pattern_of(namespace))}
        await world.connection.execute(*(("UNLINK", key) for key in keys))
