"""The proxy that tests cut: what it passes, what it loses, and that nothing else is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

import hiredis
import pytest
import pytest_asyncio
import redis

from redis_world import RedisWorld
from redis_world.testing import CuttingProxy, cutting_proxy
from support.backends import Backend
from support.events import ALL_BYTES, new_run
from support.resp import fake_server
from support.until import until

PONG: Final = b"+PONG\r\n"


class Wire:
    """A client that sends what it is told and gives back what comes, byte for byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def send(self, *commands: str) -> None:
        """Send commands, their words apart by blanks, in one packet."""
        self.write(b"".join(pack(*command.split()) for command in commands))

    async def line(self) -> bytes:
        async with asyncio.timeout(30):
            return await self._reader.readline()

    async def ask(self, command: str) -> bytes:
        """The reply to a command, of one line."""
        self.send(command)
        return await self.line()

    async def up_to(self, mark: bytes) -> bytes:
        async with asyncio.timeout(30):
            return await self._reader.readuntil(mark)

    async def rest(self) -> bytes:
        """All that still comes before the connection breaks."""
        found = b""
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                while data := await self._reader.read(65536):
                    found += data
        return found

    def has_come(self) -> bool:
        """Whether there is something to read, be it the end."""
        return bool(self._reader._buffer) or self._reader.at_eof()  # type: ignore[attr-defined]

    def close(self) -> None:
        self._writer.transport.abort()


def pack(*words: str | bytes) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return packed


@contextlib.asynccontextmanager
async def wire(port: int) -> AsyncIterator[Wire]:
    found = Wire(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))
    try:
        yield found
    finally:
        found.close()


@pytest_asyncio.fixture
async def proxy(real_backend: Backend) -> AsyncIterator[CuttingProxy]:
    async with cutting_proxy(real_backend.url) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def client(proxy: CuttingProxy) -> AsyncIterator[Wire]:
    async with wire(proxy.port) as client:
        yield client


@pytest.fixture
def direct(real_backend: Backend) -> Iterator[redis.Redis]:
    """A client that goes by no proxy."""
    with contextlib.closing(real_backend.client()) as client:
        client.ping()
        yield client


@pytest.fixture
def key(real_backend: Backend) -> str:
    return f"{{{real_backend.namespace()}}}n"


def named(name: str) -> Callable[[list[bytes]], bool]:
    return lambda command: command[0] == name.encode()


def number(direct: redis.Redis, key: str) -> int:
    return int(direct.get(key) or 0)


async def settle(direct: redis.Redis) -> None:
    """Give what must not come all the time that it would need."""
    for _ in range(50):
        await asyncio.sleep(0)
        direct.ping()


# -- what passes ---------------------------------------------------------------------------


async def test_everything_passes_as_it_is(
    real_backend: Backend, proxy: CuttingProxy, key: str
) -> None:
    """In one packet and byte by byte, in the newer protocol, with all that looks like a border."""
    script = "redis.setresp(3) return {1, false, true, {map={a={double=1.5}}}, {set={b=true}}}"
    conversation = [
        pack("SET", key, ALL_BYTES * 3 + b"\r\n$1\r\nx\r\n:1\r\n"),
        pack("GET", key),
        pack("GET", "none"),
        pack("SET", key, ""),
        pack("GET", key),
        pack("SET", key, b"\r\n" * 100_000),
        pack("GET", key),
        pack("NO", "SUCH", "COMMAND"),
        pack("EVAL", script, "0"),
        pack("EVAL", "return {{}, {{'a'}, 'b'}, {err = 'c'}, false}", "0"),
        pack("MULTI"),
        pack("SET", key, "5"),
        pack("EXEC"),
        pack("ECHO", "the end"),
    ]

    async def talk(port: int, data: bytes, size: int) -> bytes:
        async with wire(port) as client:
            client.write(pack("HELLO", "3") + pack("ECHO", "hello"))
            await client.up_to(b"hello\r\n")
            for start in range(0, len(data), size):
                client.write(data[start : start + size])
                await asyncio.sleep(0)
            return await client.up_to(b"the end\r\n")

    port = urlsplit(real_backend.url).port or 0
    whole = b"".join(conversation)
    assert await talk(proxy.port, whole, 1 << 20) == await talk(port, whole, 1 << 20)
    short = b"".join(part for part in conversation if len(part) < 2000)
    assert await talk(proxy.port, short, 1) == await talk(port, short, 1 << 20)


async def test_a_world_works_through_it(real_backend: Backend, proxy: CuttingProxy) -> None:
    async with RedisWorld(proxy.url, namespace=real_backend.namespace()) as world:
        run_id = await new_run(world)
        waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=60))
        await world.streams.write(run_id, "s", ALL_BYTES)
        assert (await world.streams.get_chunks(run_id, "s")).data[0].data == ALL_BYTES
        await world.events.create(run_id, {"eventType": "run_completed", "eventData": {}})
        assert (await waiting).status == "completed"
    assert (proxy.dropped, proxy.refused) == (0, 0)


async def test_the_url_has_all_of_the_servers() -> None:
    async with cutting_proxy("redis://me:p%40ss@localhost:1/3?client_name=x") as proxy:
        assert proxy.url == f"redis://me:p%40ss@127.0.0.1:{proxy.port}/3?client_name=x"
    async with cutting_proxy("redis://localhost") as proxy:
        assert proxy.url == f"redis://127.0.0.1:{proxy.port}"


@pytest.mark.parametrize("url", ["rediss://localhost:1", "unix:///s", "memory://", "localhost:1"])
async def test_urls_that_it_can_not_serve(url: str) -> None:
    with pytest.raises(ValueError, match="redis://"):
        async with cutting_proxy(url):
            pass
    async with cutting_proxy("redis://localhost:1") as proxy:
        with pytest.raises(ValueError, match="redis://"):
            proxy.retarget(url)


async def test_a_client_that_leaves_takes_its_connection_along(
    proxy: CuttingProxy, direct: redis.Redis
) -> None:
    async with wire(proxy.port) as client:
        assert await client.ask("PING") == PONG
        assert len(direct.client_list()) == 2
    await until(lambda: len(direct.client_list()) == 1)


async def test_a_server_that_leaves_takes_the_client_along(
    client: Wire, direct: redis.Redis
) -> None:
    assert await client.ask("PING") == PONG
    direct.client_kill_filter(_type="normal", skipme=True)
    assert await client.rest() == b""


async def test_a_server_that_is_not_there() -> None:
    async with fake_server(lambda _: PONG) as server:
        url = server.url
    async with cutting_proxy(url) as proxy, wire(proxy.port) as client:
        assert await client.rest() == b""
    assert proxy.refused == 0


async def test_what_is_no_command_breaks_the_connection(client: Wire) -> None:
    client.write(b"\x00 what is that?\r\n")
    assert await client.rest() == b""


# -- the network ---------------------------------------------------------------------------


async def test_a_cut(client: Wire, proxy: CuttingProxy, direct: redis.Redis) -> None:
    assert await client.ask("PING") == PONG
    proxy.cut()
    assert await client.rest() == b""
    await until(lambda: len(direct.client_list()) == 1)
    for refused in (1, 2):
        async with wire(proxy.port) as late:
            assert await late.rest() == b""
        assert proxy.refused == refused
    proxy.restore()
    async with wire(proxy.port) as new:
        assert await new.ask("PING") == PONG
    assert (proxy.accepted, proxy.refused) == (2, 2)


async def test_connections_that_break_once(client: Wire, proxy: CuttingProxy) -> None:
    async with wire(proxy.port) as other:
        assert [await client.ask("PING"), await other.ask("PING")] == [PONG, PONG]
        proxy.break_connections()
        assert [await client.rest(), await other.rest()] == [b"", b""]
        async with wire(proxy.port) as new:
            assert await new.ask("PING") == PONG
    assert proxy.refused == 0


async def test_silence(client: Wire, proxy: CuttingProxy, direct: redis.Redis, key: str) -> None:
    """Nobody is told, and what was sent meanwhile comes in the end."""
    assert await client.ask("PING") == PONG
    proxy.silence()
    client.send(f"INCR {key}", f"INCR {key}")
    async with wire(proxy.port) as new:
        new.send(f"INCR {key}")
        await settle(direct)
        assert number(direct, key) == 0
        assert not client.has_come()
        assert not new.has_come()
        assert len(direct.client_list()) == 2, "of the new one the server does not know"
        proxy.resume()
        lines = {await client.line(), await client.line(), await new.line()}
        assert lines == {b":1\r\n", b":2\r\n", b":3\r\n"}


async def test_silence_between_a_command_and_its_reply(
    client: Wire, proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    client.send(f"BLPOP {key} 30")
    await until(lambda: int(direct.info("clients")["blocked_clients"]) == 1)
    proxy.silence()
    direct.rpush(key, "x")
    await until(lambda: int(direct.info("clients")["blocked_clients"]) == 0)
    await settle(direct)
    assert not client.has_come()
    proxy.resume()
    assert await client.line() == b"*2\r\n"


async def test_a_silent_connection_can_break(
    client: Wire, proxy: CuttingProxy, direct: redis.Redis
) -> None:
    assert await client.ask("PING") == PONG
    proxy.silence()
    async with wire(proxy.port) as new:
        new.send("PING")
        proxy.break_connections()
        assert await client.rest() == b""
        await until(lambda: len(direct.client_list()) == 1)
        proxy.resume()
    async with wire(proxy.port) as new:
        assert await new.ask("PING") == PONG


async def test_a_client_that_leaves_in_silence_is_missed_by_nobody(
    client: Wire, proxy: CuttingProxy, direct: redis.Redis
) -> None:
    assert await client.ask("PING") == PONG
    proxy.silence()
    client.close()
    await settle(direct)
    assert len(direct.client_list()) == 2
    proxy.resume()
    await until(lambda: len(direct.client_list()) == 1)


async def test_another_target(client: Wire, proxy: CuttingProxy) -> None:
    assert await client.ask("PING") == PONG
    async with fake_server(lambda _: b"+another\r\n") as server:
        proxy.retarget(server.url)
        assert await client.rest() == b""
        async with wire(proxy.port) as new:
            assert await new.ask("PING") == b"+another\r\n"


# -- lost replies --------------------------------------------------------------------------


async def test_a_lost_reply(
    client: Wire, proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    proxy.drop_replies(named("INCR"))
    assert await client.ask("PING") == PONG
    client.send(f"INCR {key}")
    assert await client.rest() == b""
    assert proxy.dropped == 1
    assert number(direct, key) == 1, "it was done"
    async with wire(proxy.port) as again:
        assert await again.ask(f"INCR {key}") == b":2\r\n"
    assert proxy.dropped == 1


async def test_replies_in_front_of_a_lost_one_pass_and_none_behind_it(
    proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    for place in range(1, 6):
        async with wire(proxy.port) as client:
            direct.delete(key)
            proxy.drop_replies(lambda command: command[-1] == b"1")
            commands = [f"INCRBY {key} 10"] * 6
            commands[place] = f"INCRBY {key} 1"
            client.send(*commands)
            expected = b"".join(b":%d\r\n" % (10 * n) for n in range(1, place + 1))
            assert await client.rest() == expected
            assert number(direct, key) >= 10 * place + 1
    assert proxy.dropped == 5


async def test_replies_are_lost_as_often_as_asked_for(
    proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    """Each with its connection: two commands of one packet are one loss."""
    proxy.drop_replies(named("INCR"), times=2)
    for lost in (1, 2):
        async with wire(proxy.port) as client:
            client.send(f"INCR {key}", f"INCR {key}")
            assert await client.rest() == b""
            assert proxy.dropped == lost
    before = number(direct, key)
    async with wire(proxy.port) as client:
        assert await client.ask(f"INCR {key}") == b":%d\r\n" % (before + 1)
    assert proxy.dropped == 2


async def test_other_connections_know_of_no_loss(
    client: Wire, proxy: CuttingProxy, key: str
) -> None:
    async with wire(proxy.port) as other:
        assert await other.ask("PING") == PONG
        proxy.drop_replies(named("INCR"))
        client.send(f"INCR {key}")
        assert await client.rest() == b""
        assert await other.ask(f"INCR {key}") == b":2\r\n"


async def test_a_reply_is_lost_when_it_comes(
    client: Wire, proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    """Not earlier: until then nobody knows that the command was done."""
    proxy.drop_replies(named("BLPOP"))
    client.send(f"BLPOP {key} 30")
    await until(lambda: int(direct.info("clients")["blocked_clients"]) == 1)
    assert (proxy.dropped, client.has_come()) == (0, False)
    direct.rpush(key, "x")
    assert await client.rest() == b""
    assert proxy.dropped == 1
    assert direct.llen(key) == 0


async def test_what_happens_with_a_loss_is_there_before_a_client_knows(
    client: Wire, proxy: CuttingProxy, key: str
) -> None:
    proxy.drop_replies(named("INCR"), then=proxy.cut)
    client.send("PING", f"INCR {key}", "PING")
    assert await client.rest() == PONG
    async with wire(proxy.port) as late:
        assert await late.rest() == b""
    assert (proxy.dropped, proxy.refused) == (1, 1)


async def test_each_command_is_asked_about_once_and_in_order(
    client: Wire, proxy: CuttingProxy
) -> None:
    seen: list[list[bytes]] = []

    def third(command: list[bytes]) -> bool:
        seen.append(command)
        return len(seen) == 3

    proxy.drop_replies(third)
    client.send("ECHO 1", "ECHO 2", "ECHO 3", "ECHO 4")
    assert await client.rest() == b"$1\r\n1\r\n$1\r\n2\r\n"
    assert seen == [[b"ECHO", b"%d" % n] for n in (1, 2, 3, 4)]
    async with wire(proxy.port) as other:
        assert await other.ask("PING") == PONG
    assert len(seen) == 4, "there is nothing more to lose"


async def test_the_reply_to_a_transaction(
    client: Wire, proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    proxy.drop_replies(named("EXEC"))
    client.send("MULTI", f"INCR {key}", f"INCR {key}", "EXEC")
    assert await client.rest() == b"+OK\r\n+QUEUED\r\n+QUEUED\r\n"
    assert number(direct, key) == 2


async def test_one_loss_is_of_one_reply(
    proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    """Of two commands that wait at the same time, the one that is answered first."""
    proxy.drop_replies(named("BLPOP"))
    async with wire(proxy.port) as first, wire(proxy.port) as second:
        first.send(f"BLPOP {key} 30")
        second.send(f"BLPOP {key}2 30")
        await until(lambda: int(direct.info("clients")["blocked_clients"]) == 2)
        direct.rpush(f"{key}2", "x")
        assert await second.rest() == b""
        direct.rpush(key, "x")
        assert await first.line() == b"*2\r\n"
    assert proxy.dropped == 1


async def test_a_large_reply_in_front_of_a_lost_one_arrives_whole(
    client: Wire, proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    value = b"x" * (16 << 20)
    direct.set(key, value)
    proxy.drop_replies(named("PING"))
    client.send(f"GET {key}", "PING")
    assert await client.rest() == b"$%d\r\n%s\r\n" % (len(value), value)


async def test_what_is_pushed_is_no_reply(
    client: Wire, proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    client.send("HELLO 3", "CLIENT TRACKING on", "ECHO tracking")
    await client.up_to(b"tracking\r\n")
    client.send(f"GET {key}")
    assert await client.line() == b"_\r\n"
    proxy.drop_replies(named("BLPOP"))
    client.send(f"BLPOP {key}2 30")
    await until(lambda: int(direct.info("clients")["blocked_clients"]) == 1)
    direct.incr(key)
    assert (await client.up_to(key.encode() + b"\r\n")).startswith(b">2\r\n")
    assert proxy.dropped == 0
    direct.rpush(f"{key}2", "x")
    assert await client.rest() == b""
    assert proxy.dropped == 1


async def test_a_subscriber_is_passed_unread(
    client: Wire, proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    proxy.drop_replies(named("PING"))
    client.send(f"SUBSCRIBE {key}", "PING")
    await client.up_to(b"pong\r\n")
    client.send("PING")
    await client.up_to(b"pong\r\n")
    for text in ("one", "two"):
        assert direct.publish(key, text) == 1
        await client.up_to(text.encode() + b"\r\n")
    assert proxy.dropped == 0


async def test_a_subscription_in_the_middle_of_other_commands(
    client: Wire, proxy: CuttingProxy, key: str
) -> None:
    ping = pack("PING", "x")
    client.write(pack("SUBSCRIBE", key) + ping[:-3])
    await client.up_to(b":1\r\n")
    client.write(ping[-3:])
    assert await client.up_to(b"$1\r\nx\r\n") == b"*2\r\n$4\r\npong\r\n$1\r\nx\r\n"


async def test_a_subscription_in_the_middle_of_a_reply() -> None:
    replies = iter([b"+PO", b"NG\r\n"])
    async with (
        fake_server(lambda _: next(replies)) as server,
        cutting_proxy(server.url) as proxy,
        wire(proxy.port) as client,
    ):
        client.send("PING")
        await until(lambda: len(server.commands) == 1)
        for _ in range(50):
            await asyncio.sleep(0)
        client.send("SUBSCRIBE n")
        assert await client.line() == PONG


# -- lost requests -------------------------------------------------------------------------


async def test_a_lost_request(
    client: Wire, proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    proxy.drop_requests(named("INCR"))
    client.send(f"INCR {key}")
    assert await client.rest() == b""
    assert proxy.dropped == 1
    assert number(direct, key) == 0
    async with wire(proxy.port) as again:
        assert await again.ask(f"INCR {key}") == b":1\r\n"


async def test_commands_in_front_of_a_lost_one_are_answered_and_none_behind_it_arrives(
    proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    for place in range(6):
        async with wire(proxy.port) as client:
            direct.delete(key)
            proxy.drop_requests(lambda command: command[-1] == b"1")
            commands = [f"INCRBY {key} 10"] * 6
            commands[place] = f"INCRBY {key} 1"
            client.send(*commands)
            expected = b"".join(b":%d\r\n" % (10 * n) for n in range(1, place + 1))
            assert await client.rest() == expected
            assert number(direct, key) == 10 * place
    assert proxy.dropped == 6


async def test_requests_are_lost_as_often_as_asked_for(
    proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    called: list[int] = []
    proxy.drop_requests(named("INCR"), times=2, then=lambda: called.append(proxy.dropped))
    for lost in (1, 2):
        async with wire(proxy.port) as client:
            client.send("PING", f"INCR {key}", f"INCR {key}")
            assert await client.rest() == PONG
            assert called[-1] == proxy.dropped == lost
    async with wire(proxy.port) as client:
        assert await client.ask(f"INCR {key}") == b":1\r\n"


async def test_a_lost_request_waits_for_the_replies_in_front_of_it(
    client: Wire, proxy: CuttingProxy, direct: redis.Redis, key: str
) -> None:
    proxy.drop_requests(named("INCR"))
    client.send(f"BLPOP {key} 30", f"INCR {key}x")
    await until(lambda: int(direct.info("clients")["blocked_clients"]) == 1)
    assert (proxy.dropped, client.has_come()) == (0, False)
    direct.rpush(key, "x")
    assert (await client.rest()).startswith(b"*2\r\n")
    assert proxy.dropped == 1
    assert number(direct, f"{key}x") == 0


async def test_losses_of_both_kinds(proxy: CuttingProxy, direct: redis.Redis, key: str) -> None:
    proxy.drop_replies(named("INCR"))
    proxy.drop_requests(named("INCR"))
    for expected in (0, 1):
        async with wire(proxy.port) as client:
            client.send(f"INCR {key}")
            assert await client.rest() == b""
            assert number(direct, key) == expected
    assert proxy.dropped == 2


# -- the end -------------------------------------------------------------------------------


async def test_the_end_breaks_everything(real_backend: Backend, direct: redis.Redis) -> None:
    tasks = asyncio.all_tasks()
    async with contextlib.AsyncExitStack() as stack:
        async with cutting_proxy(real_backend.url) as proxy:
            first, second = [await stack.enter_async_context(wire(proxy.port)) for _ in range(2)]
            assert await first.ask("PING") == PONG
            second.send("BLPOP none 30")
            await until(lambda: int(direct.info("clients")["blocked_clients"]) == 1)
            proxy.silence()
        assert [await first.rest(), await second.rest()] == [b"", b""]
        await until(lambda: len(direct.client_list()) == 1)
        assert asyncio.all_tasks() == tasks
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", proxy.port)


async def test_a_mistake_of_the_test_is_told_at_the_end(real_backend: Backend) -> None:
    async def use() -> None:
        async with cutting_proxy(real_backend.url) as proxy, wire(proxy.port) as client:
            proxy.drop_replies(lambda command: command[7] == b"there is none")
            client.send("PING")
            assert await client.rest() == b""

    with pytest.raises(IndexError):
        await use()
