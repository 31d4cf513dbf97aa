"""The pool that commands travel through: whose replies are whose, and what becomes of a wire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
import pytest_asyncio
import redis.exceptions

from redis_world.connection.wires import WirePool
from support.backends import Backend
from support.resp import OK, Reply, fake_server
from support.serving import serving
from support.until import until

ONE: Final = b":1\r\n"


def pool_of(url: str, **options: Any) -> WirePool:
    pool = WirePool.from_url(url, protocol=2, **{"max_connections": 2, "timeout": None, **options})
    assert isinstance(pool, WirePool)
    return pool


@pytest_asyncio.fixture
async def pool(real_backend: Backend) -> AsyncIterator[WirePool]:
    pool = pool_of(real_backend.url)
    real_backend.namespaces.append("wires")
    yield pool
    await pool.aclose()


KEY: Final = "{wires}:k"


async def test_replies_come_in_order_and_errors_among_them(pool: WirePool) -> None:
    replies = await pool.ask(
        [("SET", KEY, b"\x00\xff"), ("INCR", KEY), ("GET", KEY), ("LRANGE", KEY, 0, 1.5)]
    )
    assert (replies[0], replies[2]) == (b"OK", b"\x00\xff")
    assert isinstance(replies[1], redis.exceptions.ResponseError)
    assert isinstance(replies[3], redis.exceptions.ResponseError)
    assert await pool.ask([]) == []
    assert await pool.ask([("GET", KEY)]) == [b"\x00\xff"]


async def test_each_caller_gets_its_own(pool: WirePool) -> None:
    asked = [pool.ask([("ECHO", str(n)), ("ECHO", f"{n}!")]) for n in range(200)]
    assert await asyncio.gather(*asked) == [
        [str(n).encode(), f"{n}!".encode()] for n in range(200)
    ]


async def test_large_questions_and_answers(pool: WirePool) -> None:
    blob = bytes(range(256)) * 4 * 2**12
    assert await pool.ask([("SET", KEY, blob)]) == [b"OK"]
    assert await pool.ask([("GET", KEY)] * 3) == [blob] * 3


async def test_there_are_no_more_than_it_may_have(real_backend: Backend) -> None:
    pool = pool_of(real_backend.url, max_connections=3, client_name="wires")
    with contextlib.closing(real_backend.client()) as looker:
        await asyncio.gather(*(pool.ask([("PING",)]) for _ in range(50)))
        assert len([each for each in looker.client_list() if each["name"] == "wires"]) == 3
        await pool.disconnect(inuse_connections=False)
        await until(lambda: all(each["name"] != "wires" for each in looker.client_list()))
        assert await pool.ask([("PING",)]) == [b"PONG"], "it connects again"
        await pool.aclose()
        await until(lambda: all(each["name"] != "wires" for each in looker.client_list()))


async def test_one_that_the_server_ends_is_not_used_again(
    real_backend: Backend, pool: WirePool
) -> None:
    await pool.ask([("PING",)])
    (wire,) = pool._idle
    with contextlib.closing(real_backend.client()) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: not wire.is_usable)
    assert await pool.ask([("PING",)]) == [b"PONG"]


async def test_a_caller_that_leaves_takes_its_wire_along() -> None:
    held = True

    def answer(command: list[bytes]) -> Reply:
        return None if held and command[0] == b"WAIT" else b"+%s\r\n" % command[-1]

    async with fake_server(answer) as server:
        pool = pool_of(server.url, max_connections=1)
        leaver = asyncio.create_task(pool.ask([("WAIT",)]))
        await until(lambda: b"WAIT" in server.names)
        # They wait for the only one: the first gives up, the second has it then.
        first, second = (asyncio.create_task(pool.ask([("ECHO", name)])) for name in "ab")
        await asyncio.sleep(0)
        first.cancel()
        leaver.cancel()
        assert await second == [b"b"]
        for task in (first, leaver):
            with pytest.raises(asyncio.CancelledError):
                await task
        held = False
        assert await pool.ask([("ECHO", "c")]) == [b"c"]
        await pool.aclose()


async def test_a_waiter_that_leaves_as_its_turn_comes_passes_it_on() -> None:
    async with fake_server(lambda command: ONE if command[0] == b"GET" else OK) as server:
        pool = pool_of(server.url, max_connections=1)
        await pool.ask([("GET", "a")])
        wire = await pool._take()
        first, second = (asyncio.create_task(pool.ask([("GET", "a")])) for _ in range(2))
        await asyncio.sleep(0)
        pool._give_back(wire)
        first.cancel()
        assert await second == [1]
        with pytest.raises(asyncio.CancelledError):
            await first
        await pool.aclose()


@pytest.mark.parametrize("reply", [b"hello\r\n", ONE + ONE, b"$-5\r\n"])
async def test_what_nobody_has_asked_for_ends_the_wire(reply: bytes) -> None:
    """What came next would be taken for another answer."""
    async with fake_server(lambda command: reply if command[0] == b"GET" else OK) as server:
        pool = pool_of(server.url)
        with contextlib.suppress(redis.exceptions.ConnectionError):
            await pool.ask([("GET", "a")])
        await until(lambda: not any(wire.is_usable for wire in pool._idle))
        assert await pool.ask([("PING",)]) == [b"OK"]
        await pool.aclose()


async def test_a_server_that_hangs_up() -> None:
    async with fake_server(lambda command: None if command[0] == b"GET" else OK) as server:
        pool = pool_of(server.url)
        asking = asyncio.create_task(pool.ask([("GET", "a")]))
        await until(lambda: b"GET" in server.names)
        (wire,) = pool._wires
        wire._transport.abort()
        with pytest.raises(redis.exceptions.ConnectionError, match="closed"):
            await asking
        await pool.aclose()


async def test_a_silent_server_is_given_up() -> None:
    async with fake_server(lambda command: None if command[0] == b"GET" else OK) as server:
        pool = pool_of(server.url, socket_timeout=0.05)
        with pytest.raises(redis.exceptions.TimeoutError, match=r"0\.05 s"):
            await pool.ask([("PING",), ("GET", "a")])
        assert await pool.ask([("PING",)]) == [b"OK"]
        await pool.aclose()


async def test_who_waits_when_the_pool_is_closed() -> None:
    async with fake_server(lambda command: None if command[0] == b"GET" else OK) as server:
        pool = pool_of(server.url)
        asking = asyncio.create_task(pool.ask([("GET", "a")]))
        await until(lambda: b"GET" in server.names)
        await pool.aclose()
        with pytest.raises(redis.exceptions.ConnectionError, match="closed"):
            await asking


async def test_nobody_is_there() -> None:
    pool = pool_of("redis://127.0.0.1:1", max_connections=1)
    for _ in range(3):
        with pytest.raises(redis.exceptions.ConnectionError):
            await pool.ask([("PING",)])
    # No place is lost by it.
    assert pool._making == 0
    await pool.aclose()


async def test_an_argument_that_can_not_be_sent(pool: WirePool) -> None:
    with pytest.raises(UnicodeEncodeError):
        await pool.ask([("ECHO", "\ud800")])
    assert await pool.ask([("PING",)]) == [b"PONG"]


async def test_a_server_that_ends_the_connection_behind_its_handshake() -> None:
    """redis-py's own protocol hears of that end, and nobody would hear of it again."""

    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Answers ahead: the end is there when the handshake is over.
        writer.write(OK * 2)
        writer.write_eof()
        with contextlib.suppress(OSError):
            while await reader.read(1000):
                pass
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        over.set()

    async with asyncio.timeout(20), serving(serve) as port:
        pool = pool_of(f"redis://127.0.0.1:{port}")
        with pytest.raises(redis.exceptions.ConnectionError):
            await pool.ask([("PING",)])
        await pool.aclose()
        await over.wait()


async def test_the_end_of_a_wire_is_told_once(pool: WirePool) -> None:
    """Transports of TLS can't be aborted twice, nor written to behind it."""
    await pool.ask([("PING",)])
    (wire,) = pool._wires
    transport = wire._transport
    aborts = 0

    def counted() -> None:
        nonlocal aborts
        aborts += 1
        transport.abort()

    wire._transport = cast("Any", SimpleNamespace(abort=counted, is_closing=transport.is_closing))
    for _ in range(2):
        wire.close(at_once=True)
        assert not wire.is_usable
    assert aborts == 1
    await wire.closed
