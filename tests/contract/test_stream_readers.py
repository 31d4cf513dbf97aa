"""Live readers of streams (contract, section 8)."""

# Contract: 8.lasting readers

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final, cast

import pytest
import redis
import redis.asyncio

import redis_world.connection
import redis_world.hints
import redis_world.streams
from redis_world import RedisWorld
from redis_world.connection.blocking import BlockingServer
from redis_world.connection.subscriber import open_subscriber
from redis_world.hints import Hear, Subscriber, Subscription
from redis_world.testing import cutting_proxy
from support.backends import Backend, channels
from support.commandstats import Counts
from support.hearing import noting
from support.until import until

RUN = "wrun_hc_1"

GENEROUS: Final = 30.0
"""Seconds after which something never comes."""
NEVER: Final = 600.0
"""Seconds that no test waits: who looks so rarely lives on hints."""

WRITER = """
import asyncio, sys
from redis_world import RedisWorld

async def main(url, namespace, run_id):
    async with RedisWorld(url, namespace=namespace) as world:
        for i in range(100):
            await world.streams.write(run_id, "s", str(i).encode())
        await world.streams.close(run_id, "s")

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("is_closed", [True, False])
async def test_who_reads_to_the_end_at_once_subscribes_to_nothing(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    asked: list[str] = []
    subscribe = world.connection.hub.subscribe

    def noted(*names: str, **options: bool) -> Any:
        asked.extend(names)
        return subscribe(*names, **options)

    monkeypatch.setattr(world.connection.hub, "subscribe", noted)
    await world.streams.write_many(RUN, "s", [b"%d" % number for number in range(200)])
    if is_closed:
        await world.streams.close(RUN, "s")
    read = 0
    async with aclosing(world.streams.read(RUN, "s")) as chunks:
        async for _ in chunks:
            read += 1
            if read == 200 and not is_closed:
                assert asked == []
                await world.streams.write(RUN, "s", b"more")
                await world.streams.close(RUN, "s")
    assert read == (200 if is_closed else 201)
    assert len(asked) == (0 if is_closed else 1)


class Reader:
    """A reader in a task of its own, that notes what it gets."""

    def __init__(self, world: RedisWorld, name: str = "s", start_index: int = 0) -> None:
        self.chunks: list[bytes] = []
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._read(world, name, start_index))

    async def _read(self, world: RedisWorld, name: str, start_index: int) -> None:
        async with aclosing(world.streams.read(RUN, name, start_index=start_index)) as chunks:
            async for chunk in chunks:
                self.chunks.append(chunk)
                self._news.set()

    async def has(self, *chunks: bytes) -> None:
        """Wait until it has got these chunks and no others."""
        async with asyncio.timeout(GENEROUS):
            while len(self.chunks) < len(chunks) and not self.task.done():
                self._news.clear()
                news = asyncio.ensure_future(self._news.wait())
                await asyncio.wait([news, self.task], return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
        if self.task.done():
            self.task.result()
        assert self.chunks == [*chunks]

    async def ended(self) -> list[bytes]:
        async with asyncio.timeout(GENEROUS):
            await self.task
        return self.chunks


@contextlib.asynccontextmanager
async def reading(
    world: RedisWorld, name: str = "s", start_index: int = 0
) -> AsyncIterator[Reader]:
    reader = Reader(world, name, start_index)
    try:
        yield reader
    finally:
        reader.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await reader.task


def command(client: redis.Redis, *parts: str) -> None:
    client.execute_command(*parts)  # type: ignore[no-untyped-call]


def stream_key(world: RedisWorld, name: str = "s") -> str:
    return world.connection.partitions.of(RUN).of_run(RUN).stream(name)


@pytest.fixture
def on_hints_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers hardly ever look by themselves."""
    monkeypatch.setattr(redis_world.streams, "_LOOK_SECONDS", NEVER)
    monkeypatch.setattr(redis_world.hints, "_SELDOM_SECONDS", NEVER)


# -- where a reader begins and ends ---------------------------------------------------------


# Contract: 8.reading, 8.negative starts
@pytest.mark.parametrize("count", [1, 5, 63, 64, 65, 128])
async def test_a_closed_stream_is_read_from_anywhere_to_its_end(
    world: RedisWorld, count: int
) -> None:
    chunks = [str(i).encode() for i in range(count)]
    await world.streams.write_many(RUN, "s", chunks)
    await world.streams.close(RUN, "s")
    starts = [0, 1, count - 1, count, count + 1, count + 2, 1000, 2**53, -1, -2, -64]
    starts += [-count, -count - 1, -(2**53)]
    read = {start: await Reader(world, "s", start).ended() for start in starts}
    assert read == {start: chunks[max(start, -count) :] for start in starts}


# Contract: 8.reading, 8.negative starts
async def test_an_empty_closed_stream_ends_at_once(world: RedisWorld) -> None:
    await world.streams.close(RUN, "s")
    for start in (0, 1, 2, 100, -1, -100):
        assert await Reader(world, "s", start).ended() == []


# Contract: 8.empty chunks
async def test_empty_chunks_are_left_out_and_counted(world: RedisWorld) -> None:
    await world.streams.write_many(RUN, "s", [b"", b"a", b"", b"", b"b", b""])
    await world.streams.close(RUN, "s")
    read = {start: await Reader(world, "s", start).ended() for start in (0, 1, 2, 4, 5, -2)}
    expected = {0: [b"a", b"b"], 1: [b"a", b"b"], 2: [b"b"], 4: [b"b"], 5: [], -2: [b"b"]}
    assert read == expected


# Contract: 8.negative starts
async def test_a_negative_start_counts_from_the_present_end(world: RedisWorld) -> None:
    await world.streams.write_many(RUN, "s", [b"a", b"b", b"c"])
    async with reading(world, "s", -2) as reader, reading(world, "s", -100) as whole:
        await reader.has(b"b", b"c")
        await world.streams.write(RUN, "s", b"d")
        await world.streams.close(RUN, "s")
        assert await reader.ended() == [b"b", b"c", b"d"]
        assert await whole.ended() == [b"a", b"b", b"c", b"d"]


# Contract: 8.reading
@pytest.mark.parametrize("start", [0, -1])
async def test_a_reader_of_an_unknown_stream_waits_for_it(world: RedisWorld, start: int) -> None:
    async with reading(world, "s", start) as reader:
        with contextlib.closing(_client(world)) as client:
            await until(lambda: channels(client) == 1)
        assert not reader.task.done()
        await world.streams.write(RUN, "s", b"a")
        await reader.has(b"a")
        await world.streams.close(RUN, "s")
        assert await reader.ended() == [b"a"]


# Contract: 8.reading
async def test_a_start_ahead_of_an_open_stream_waits_until_it_is_there(world: RedisWorld) -> None:
    await world.streams.write(RUN, "s", b"0")
    async with reading(world, "s", 2) as reader, reading(world, "s", 9) as beyond:
        await world.streams.write_many(RUN, "s", [b"1", b"2"])
        await reader.has(b"2")
        await world.streams.write(RUN, "s", b"3")
        await reader.has(b"2", b"3")
        assert not beyond.task.done()
        await world.streams.close(RUN, "s")
        assert await reader.ended() == [b"2", b"3"]
        assert await beyond.ended() == []


# Contract: 8.closing, 8.reading
async def test_a_reader_meets_the_end_behind_all_data(world: RedisWorld) -> None:
    """Read while it is written: no end comes before the last chunk."""
    chunks = [str(i).encode() for i in range(300)]
    async with reading(world) as one, reading(world, "s", 100) as other:
        for start in range(0, 300, 30):
            await world.streams.write_many(RUN, "s", chunks[start : start + 30])
            await asyncio.sleep(0)
        await world.streams.close(RUN, "s")
        assert await one.ended() == chunks
        assert await other.ended() == chunks[100:]


# -- live -----------------------------------------------------------------------------------


# Contract: 8.reading
@pytest.mark.usefixtures("on_hints_only")
async def test_a_chunk_reaches_the_readers_of_other_worlds(backend: Backend) -> None:
    namespace = backend.namespace()
    async with (
        backend.world(namespace=namespace) as writer,
        backend.world(namespace=namespace) as world,
        reading(world) as one,
        reading(world) as other,
        reading(writer) as own,
    ):
        for i in range(3):
            await writer.streams.write(RUN, "s", str(i).encode())
            for reader in (one, other, own):
                await reader.has(*(str(n).encode() for n in range(i + 1)))
        await writer.streams.close(RUN, "s")
        for reader in (one, other, own):
            await reader.ended()


# Contract: 8.reading
async def test_a_chunk_reaches_the_readers_of_another_process(real_backend: Backend) -> None:
    namespace = real_backend.namespace()
    async with real_backend.world(namespace=namespace) as world, reading(world) as reader:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, real_backend.url, namespace, RUN
        )
        try:
            assert await reader.ended() == [str(i).encode() for i in range(100)]
        finally:
            assert await process.wait() == 0


# Contract: 8.reading
@pytest.mark.usefixtures("on_hints_only")
async def test_a_thousand_readers_share_a_handful_of_connections(real_backend: Backend) -> None:
    namespace = real_backend.namespace()
    names = [f"s{i}" for i in range(1000)]
    async with (
        real_backend.world(namespace=namespace) as world,
        real_backend.world(namespace=namespace) as writer,
    ):
        with contextlib.closing(real_backend.client()) as client:
            others = len(client.client_list())
            async with contextlib.AsyncExitStack() as stack:
                readers = [await stack.enter_async_context(reading(world, n)) for n in names]
                await until(lambda: channels(client) == len(names))
                assert len(client.client_list()) - others <= 8
                await asyncio.gather(*(writer.streams.write(RUN, n, n.encode()) for n in names))
                for reader, name in zip(readers, names, strict=True):
                    await reader.has(name.encode())
                await asyncio.gather(*(writer.streams.close(RUN, name) for name in names))
                for reader in readers:
                    await reader.ended()
            await until(lambda: channels(client) == 0)


@pytest.mark.usefixtures("on_hints_only")
async def test_a_reader_that_is_cancelled_while_it_joins_takes_no_hint_along(
    world: RedisWorld,
) -> None:
    with contextlib.closing(_client(world)) as client:
        for ticks in range(12):
            name = f"s{ticks}"
            async with reading(world, name) as hasty, reading(world, name) as reader:
                for _ in range(ticks):
                    await asyncio.sleep(0)
                hasty.task.cancel()
                await until(lambda: channels(client) == 1)
                await world.streams.write(RUN, name, b"a")
                await reader.has(b"a")
            await until(lambda: channels(client) == 0)


@pytest.mark.usefixtures("on_hints_only")
async def test_readers_that_come_while_others_go_miss_no_hint(world: RedisWorld) -> None:
    written: list[bytes] = []
    async with contextlib.AsyncExitStack() as stack:
        reader = await stack.enter_async_context(reading(world))
        for i in range(20):
            chunk = str(i).encode()
            written.append(chunk)
            old = reader
            for _ in range(i % 7):
                await asyncio.sleep(0)
            old.task.cancel()
            reader = await stack.enter_async_context(reading(world))
            await reader.has(*written[:-1])
            await world.streams.write(RUN, "s", chunk)
            await reader.has(*written)


# -- leaving --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "aclose", "break", "end"])
async def test_a_reader_leaves_nothing_behind(backend: Backend, how: str) -> None:
    """No subscription while the World is open, and no task when it is closed right then."""
    tasks = asyncio.all_tasks()
    world = await backend.world().open()
    await world.streams.write(RUN, "s", b"a")
    with contextlib.closing(backend.client()) as client:
        match how:
            case "cancel":
                reader = Reader(world)
                await reader.has(b"a")
                reader.task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reader.task
            case "aclose":
                chunks = world.streams.read(RUN, "s")
                assert await anext(chunks) == b"a"
                waiting = asyncio.ensure_future(anext(chunks))
                await until(lambda: channels(client) == 1)
                await world.streams.write(RUN, "s", b"b")
                assert await waiting == b"b"
                assert channels(client) == 1
                await chunks.aclose()
            case "break":
                async with aclosing(world.streams.read(RUN, "s")) as chunks:
                    async for _ in chunks:
                        break
            case _:
                await world.streams.close(RUN, "s")
                await Reader(world).ended()
        await until(lambda: channels(client) == 0)
    async with asyncio.timeout(GENEROUS) as timeout:
        await world.aclose()
    assert not timeout.expired()
    assert asyncio.all_tasks() - tasks == set()


async def test_a_reader_that_leaves_takes_nothing_from_the_others(world: RedisWorld) -> None:
    await world.streams.write(RUN, "s", b"a")
    async with reading(world) as one, reading(world) as other:
        await one.has(b"a")
        await other.has(b"a")
        one.task.cancel()
        await asyncio.wait([one.task])
        await world.streams.write(RUN, "s", b"b")
        await world.streams.close(RUN, "s")
        assert await other.ended() == [b"a", b"b"]


# -- trouble --------------------------------------------------------------------------------


async def test_a_lost_hint_costs_time_and_no_chunk(backend: Backend, world: RedisWorld) -> None:
    await world.streams.write(RUN, "s", b"a")
    async with reading(world) as reader:
        await reader.has(b"a")
        with contextlib.closing(backend.client()) as client:
            # As a write whose hint nobody heard.
            client.xadd(stream_key(world), {"chunk": b"b"}, id="0-*")
        await reader.has(b"a", b"b")


@pytest.mark.usefixtures("on_hints_only")
async def test_a_reader_looks_again_when_its_hints_were_interrupted(real_backend: Backend) -> None:
    namespace = real_backend.namespace()
    async with (
        real_backend.world(namespace=namespace) as writer,
        real_backend.world(namespace=namespace) as world,
        reading(world) as reader,
    ):
        await writer.streams.write(RUN, "s", b"a")
        await reader.has(b"a")
        with contextlib.closing(real_backend.client()) as client:
            for i in range(3):
                await until(lambda: channels(client) == 1)
                command(client, "CLIENT", "KILL", "TYPE", "pubsub")
                await writer.streams.write(RUN, "s", str(i).encode())
                await reader.has(b"a", *(str(n).encode() for n in range(i + 1)))


async def test_a_reader_survives_the_loss_of_all_connections(real_backend: Backend) -> None:
    namespace = real_backend.namespace()
    async with real_backend.world(namespace=namespace) as world, reading(world) as reader:
        expected: list[bytes] = []
        with contextlib.closing(real_backend.client()) as client:
            for i in range(3):
                expected.append(str(i).encode())
                async with real_backend.world(namespace=namespace) as writer:
                    await writer.streams.write(RUN, "s", expected[-1])
                await reader.has(*expected)
                for kind in ("normal", "pubsub"):
                    command(client, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        async with real_backend.world(namespace=namespace) as writer:
            await writer.streams.close(RUN, "s")
        assert await reader.ended() == expected


@pytest.mark.slow
async def test_readers_that_go_while_the_connection_breaks_leave_no_socket_open(
    real_backend: Backend,
) -> None:
    """An unclosed one is a warning, and warnings are errors here."""
    async with real_backend.world() as world:
        with contextlib.closing(real_backend.client()) as client:
            for ticks in range(12):
                async with reading(world), reading(world, "other"):
                    await until(lambda: channels(client) == 2)
                    command(client, "CLIENT", "KILL", "TYPE", "pubsub")
                    for _ in range(ticks):
                        await asyncio.sleep(0)
    gc.collect()


@pytest.mark.parametrize("start", [0, 3])
async def test_a_reader_outlives_a_server_that_is_gone_for_a_while(
    real_backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    start: int,
) -> None:
    """It is no end when it looks and nobody is there; it goes on where it was.

    A reader that waits ahead of the data has more to ask than one that follows it. The log has the
    outage once, and that it is over.
    """
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(redis_world.streams, "_LOOK_SECONDS", 0.05)
    namespace = real_backend.namespace()
    async with (
        real_backend.world(namespace=namespace) as writer,
        cutting_proxy(real_backend.url) as proxy,
        RedisWorld(proxy.url, namespace=namespace, retry_timeout=0) as world,
        reading(world, start_index=start) as reader,
    ):
        chunks = [b"a", b"b", b"c"]
        await writer.streams.write_many(RUN, "s", chunks)
        await reader.has(*chunks[start:])
        with contextlib.closing(real_backend.client()) as client:
            await until(lambda: channels(client) == 1)
        proxy.cut()
        await writer.streams.write(RUN, "s", b"d")
        await until(lambda: proxy.refused >= 3 or reader.task.done())
        proxy.restore()
        await reader.has(*[*chunks, b"d"][start:])
        await writer.streams.close(RUN, "s")
        assert await reader.ended() == [*chunks, b"d"][start:]
    fields = [
        each.__dict__ for each in caplog.records if each.name == redis_world.streams.logger.name
    ]
    assert [each["event"] for each in fields] == ["stream.interrupted", "stream.resumed"]
    assert {(each["run_id"], each["stream"]) for each in fields} == {(RUN, "s")}
    assert fields[1]["seconds"] >= 0


async def test_a_reader_outlives_a_server_that_does_not_answer(
    real_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_world.streams, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(redis_world.hints, "_SELDOM_SECONDS", 0.05)
    async with real_backend.world(socket_timeout=0.2) as world:
        await world.streams.write(RUN, "s", b"a")
        async with reading(world) as reader:
            await reader.has(b"a")
            with contextlib.closing(real_backend.client()) as client:
                command(client, "CLIENT", "PAUSE", "1000", "ALL")
                # It waits for the end of the pause.
                await asyncio.to_thread(client.xadd, stream_key(world), {"chunk": b"b"}, id="0-*")
            await reader.has(b"a", b"b")


@pytest.mark.usefixtures("on_hints_only")
async def test_a_reader_outlives_connections_that_were_closed_for_idleness(
    real_backend: Backend,
) -> None:
    namespace = real_backend.namespace()
    with contextlib.closing(real_backend.client()) as client:

        def idle_connections() -> int:
            own = client.client_id()
            rows = client.client_list(_type="normal")
            return len([row for row in rows if int(row["id"]) != own])

        async with (
            real_backend.world(namespace=namespace) as world,
            real_backend.world(namespace=namespace) as writer,
            reading(world) as reader,
        ):
            await until(lambda: channels(client) == 1)
            client.config_set("timeout", 1)
            try:
                await until(lambda: idle_connections() == 0)
            finally:
                client.config_set("timeout", 0)
            await writer.streams.write(RUN, "s", b"a")
            await reader.has(b"a")
            await writer.streams.close(RUN, "s")
            assert await reader.ended() == [b"a"]


@pytest.mark.usefixtures("on_hints_only")
async def test_silence_is_no_trouble(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Many silences in a row: the line is asked, and stands."""
    monkeypatch.setattr(redis_world.hints, "_IDLE_SECONDS", 0.25)
    caplog.set_level(logging.WARNING, "redis_world")
    sent: list[str] = []

    async def opened(client: redis.asyncio.Redis, hear: Hear) -> Subscriber:
        return noting(await open_subscriber(client, hear), sent)

    monkeypatch.setattr(redis_world.connection, "open_subscriber", opened)
    with backend.calm():
        async with backend.world() as world:
            async with reading(world) as reader:
                await until(lambda: sent.count("PING") >= 3)
                await world.streams.write(RUN, "s", b"a")
                await reader.has(b"a")
            async with reading(world, "other") as reader:
                await world.streams.write(RUN, "other", b"a")
                await reader.has(b"a")
    assert caplog.records == []


async def test_streams_work_for_users_without_rights_on_channels(real_backend: Backend) -> None:
    """As ACL users are by default: no hint is sent or heard, and every chunk comes."""
    namespace = real_backend.namespace()
    with contextlib.closing(real_backend.client()) as client:
        command(client, "ACL", "SETUSER", "plain", "on", ">secret", "~*", "+@all", "resetchannels")
        try:
            url = real_backend.url.replace("redis://", "redis://plain:secret@")
            async with RedisWorld(url, namespace=namespace) as world:
                await world.streams.write(RUN, "s", b"a")
                async with reading(world) as reader:
                    await reader.has(b"a")
                    await world.streams.write_many(RUN, "s", [b"b", b"c"])
                    await reader.has(b"a", b"b", b"c")
                    await world.streams.close(RUN, "s")
                    assert await reader.ended() == [b"a", b"b", b"c"]
        finally:
            command(client, "ACL", "DELUSER", "plain")


def _client(world: RedisWorld) -> redis.Redis:
    """A plain client of a World's server, as the backend of its test has it."""
    client = world.connection.sync_caller()._client
    if isinstance(client, BlockingServer):
        return client.client
    # Of a cluster one that may look at everything.
    address = world.connection._source._place.url.rpartition("@")[2]
    return cast(redis.Redis, redis.RedisCluster.from_url(f"redis://{address}"))


# -- what readers cost that wait -------------------------------------------------------------


async def test_readers_that_wait_look_seldom(real_backend: Backend) -> None:
    """Counted on the server: as long as their subscriptions stand they wait to be told."""
    async with real_backend.world() as world, contextlib.AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(reading(world, f"s{n}")) for n in range(50)]
        with contextlib.closing(real_backend.client()) as client:
            await until(lambda: channels(client) == len(readers))
            # The look behind each subscription.
            await asyncio.sleep(0.5)
            counts = Counts(client)
            await asyncio.sleep(2.0)
            assert counts.commands()["xrange"] == 0
        for n, reader in enumerate(readers):
            await world.streams.write(RUN, f"s{n}", b"a")
            await reader.has(b"a")


async def test_the_more_wait_the_less_often_they_look(world: RedisWorld) -> None:
    await world.open()
    hub = world.connection.hub
    channel = stream_key(world)
    async with hub.subscribe(channel, hears_losses=True) as one:
        await until(lambda: one.is_confirmed)
        assert {3.7 <= hub.rest(one, 1.0) <= 6.3 for _ in range(100)} == {True}
        assert len({hub.rest(one, 1.0) for _ in range(10)}) > 1
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(10_000):
                await stack.enter_async_context(hub.subscribe(channel))
            assert {37.4 <= hub.rest(one, 1.0) <= 62.6 for _ in range(100)} == {True}
        assert hub.rest(one, 1.0) <= 6.3
    assert hub.rest(Subscription([asyncio.Event()]), 1.0) == 1.0


# Contract: 8.empty chunks
async def test_a_reader_may_have_empty_chunks_too(world: RedisWorld) -> None:
    await world.streams.write_many(RUN, "s", [b"", b"1", b"", b"2"])
    await world.streams.close(RUN, "s")
    assert [each async for each in world.streams.read(RUN, "s")] == [b"1", b"2"]
    every = world.streams.read(RUN, "s", include_empty=True)
    assert [each async for each in every] == [b"", b"1", b"", b"2"]
    later = world.streams.read(RUN, "s", start_index=2, include_empty=True)
    assert [each async for each in later] == [b"", b"2"]
