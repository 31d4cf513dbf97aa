"""Servers behind TLS that fall silent: the end of a World leaves no connection behind.

The end of a connection with TLS is agreed upon by both sides. Whoever only closes it waits for an
answer of the other one, for ever where a machine is gone: the socket would stay behind the event
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import pytest
import redis.asyncio

from redis_world import RedisWorld
from redis_world.checkup import check_up
from redis_world.connection import diagnosis
from redis_world.connection.handshakes import open_stream
from redis_world.errors import WorldError
from redis_world.testing import Server, redis_server
from support.events import new_run
from support.marks import slow
from support.private_servers import any_kind, needing
from support.tls import Authority, Frost, tls_proxy

HOST: Final = "127.0.0.1"
SCHEMES: Final = ("rediss", slow("rediss+cluster"), slow("rediss+sentinel"))
IMPATIENT: Final[dict[str, Any]] = {
    "retry_timeout": 0, "connect_timeout": 0.1, "socket_timeout": 0.1,
}  # fmt: skip
ANSWERS: Final = (slow(-1), slow(0), slow(1), slow(2), 3)
"""Before a connection freezes; -1: within the handshake."""


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    """A server that refuses whoever names no password."""
    with needing("real"), redis_server(any_kind(), args=("--requirepass", "right")) as server:
        yield server


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_LOOK_SECONDS", 0.1)


def leftovers(act: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
    """What is still open behind the event loop that something was done in."""
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(act())
        gc.collect()
    return [str(each.message) for each in found if each.category is ResourceWarning]


def url_of(scheme: str, port: int, authority: Authority, login: str) -> str:
    path = "/orders" if scheme.endswith("sentinel") else ""
    return f"{scheme}://{login}{HOST}:{port}{path}?ssl_ca_certs={authority.ca_file}"


@pytest.mark.parametrize("login", [":right@", slow(":wrong@"), slow("")])
@pytest.mark.parametrize("answers", ANSWERS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_opening_that_freezes(
    scheme: str, answers: int, login: str, locked: Server, authority: Authority
) -> None:
    async def act() -> None:
        world = RedisWorld(url, **IMPATIENT)
        with contextlib.suppress(WorldError):
            await world.open()
        await world.aclose()
        await check_up(url, config=world.config)

    with tls_proxy(locked.port, authority.server(), Frost(answers)) as port:
        url = url_of(scheme, port, authority, login)
        assert leftovers(act) == []


@pytest.mark.parametrize("opening", ["a stream", "a connection"])
def test_a_handshake_that_ends_as_it_is_given_up(
    opening: str, locked: Server, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol is told of the connection in the turn in which its caller is cancelled."""
    made = asyncio.StreamReaderProtocol.connection_made
    opened: list[asyncio.BaseTransport] = []

    async def act() -> None:
        async def connect() -> None:
            if opening == "a stream":
                context = ssl.create_default_context(cafile=authority.ca_file)
                await open_stream(HOST, port, ssl=context)
            else:
                world = RedisWorld(url_of("rediss", port, authority, ":right@"), retry_timeout=0)
                await world.open()

        def cancel(own: asyncio.StreamReaderProtocol, transport: asyncio.BaseTransport) -> None:
            made(own, transport)
            opened.append(transport)
            task.cancel()

        task = asyncio.create_task(connect())
        monkeypatch.setattr(asyncio.StreamReaderProtocol, "connection_made", cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    with tls_proxy(locked.port, authority.server(), Frost(0)) as port:
        assert leftovers(act) == []
    assert opened


@pytest.mark.parametrize("value", [1 << 40, "x"])
def test_an_option_that_can_not_be_leaves_nothing_open(
    value: Any, locked: Server, authority: Authority
) -> None:
    async def act() -> None:
        client = redis.asyncio.Redis(
            host=HOST, port=port, password="right", ssl=True, ssl_ca_certs=str(authority.ca_file),
            socket_keepalive=True, socket_keepalive_options={socket.TCP_KEEPCNT: value},
        )  # fmt: skip
        world = RedisWorld(client=client, retry_timeout=0)
        with pytest.raises(WorldError):
            await world.open()
        await world.aclose()
        await client.aclose()

    with tls_proxy(locked.port, authority.server(), Frost()) as port:
        assert leftovers(act) == []


@pytest.mark.slow
@pytest.mark.parametrize("calls", [0, 1])
def test_a_world_that_freezes(calls: int, locked: Server, authority: Authority) -> None:
    frost = Frost()

    async def act() -> None:
        async with RedisWorld(url, retry_timeout=0, socket_timeout=2) as world:
            await new_run(world)
            await asyncio.gather(*(world.runs.list() for _ in range(5)))
            frost.come()
            for _ in range(calls):
                with pytest.raises(WorldError):
                    await world.runs.list()

    with tls_proxy(locked.port, authority.server(), frost) as port:
        url = url_of("rediss", port, authority, ":right@")
        assert leftovers(act) == []
