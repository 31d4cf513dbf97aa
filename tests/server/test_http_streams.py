"""Live streams by HTTP: whole, resumable, and over when their reader leaves."""

from __future__ import annotations

import asyncio
import io
from typing import Any
from urllib.parse import urlencode

import cbor2
import pytest

from redis_world import RedisWorld
from redis_world.server import app as app_module
from support.backends import Backend
from support.http_server import Client, Served, read_head, read_parts, serving

RUN = "wrun_hc_1"
SEQUENCE = {"Accept": "application/cbor-seq"}


def target(**arguments: Any) -> str:
    return f"/v1/streams.read?{urlencode({'runId': RUN, 'name': 's', **arguments})}"


def items(body: bytes) -> list[Any]:
    """The items of a CBOR sequence."""
    stream, found = io.BytesIO(body), []
    while stream.tell() < len(body):
        found.append(cbor2.load(stream))
    return found


async def test_a_closed_stream_is_read_to_its_end(world: RedisWorld, client: Client) -> None:
    await world.streams.write_many(RUN, "s", [b"one", b"", b"\x00\xff", b"four"])
    await world.streams.close(RUN, "s")
    plain = await client.send("GET", target())
    assert (plain.status, plain.body) == (200, b"one\x00\xfffour")
    assert plain.headers["content-type"] == "application/octet-stream"
    sequence = await client.send("GET", target(), headers=SEQUENCE)
    assert items(sequence.body) == [b"one", b"", b"\x00\xff", b"four", None]
    assert sequence.headers["content-type"] == "application/cbor-seq"
    later = await client.send("GET", target(startIndex=2), headers=SEQUENCE)
    assert items(later.body) == [b"\x00\xff", b"four", None]
    last = await client.send("GET", target(startIndex=-1), headers=SEQUENCE)
    assert items(last.body) == [b"four", None]
    posted = await client.call("streams.read", {"runId": RUN, "name": "s"})
    assert posted.body == plain.body


async def test_chunks_come_as_they_are_written(world: RedisWorld, client: Client) -> None:
    reader, writer = await client.open("GET", target(), headers=SEQUENCE)
    assert (await read_head(reader))[0] == 200
    parts = read_parts(reader)
    for number in range(5):
        await world.streams.write(RUN, "s", b"%d" % number)
        async with asyncio.timeout(10):
            part = await anext(parts)
            while items(part) == [cbor2.undefined]:
                part = await anext(parts)
        assert items(part) == [b"%d" % number]
    await world.streams.close(RUN, "s")
    async with asyncio.timeout(10):
        assert items(b"".join([part async for part in parts])) == [None]
    writer.close()


async def test_a_silent_stream_is_kept_alive(
    world: RedisWorld, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "_KEEP_ALIVE_SECONDS", 0.05)
    reader, writer = await client.open("GET", target(), headers=SEQUENCE)
    assert (await read_head(reader))[0] == 200
    parts = read_parts(reader)
    async with asyncio.timeout(10):
        assert [items(await anext(parts)) for _ in range(3)] == [[cbor2.undefined]] * 3
    await world.streams.write(RUN, "s", b"x")
    async with asyncio.timeout(10):
        while items(await anext(parts)) != [b"x"]:
            pass
    writer.close()


async def test_readers_that_leave_are_noticed(world: RedisWorld, served: Served) -> None:
    """20 of 20, before and after the first chunk."""
    await world.streams.write(RUN, "s", b"x")
    writers = []
    for number in range(20):
        reader, writer = await served.client.open("GET", target(startIndex=number % 2))
        assert (await read_head(reader))[0] == 200
        writers.append(writer)
    assert served.app._in_work == 20
    for writer in writers:
        writer.close()
    async with asyncio.timeout(20):
        while served.app._in_work:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_stop_interrupts_a_stream_without_its_end(
    backend: Backend, world: RedisWorld
) -> None:
    await world.streams.write_many(RUN, "s", [b"a", b"b"])
    async with serving(backend, namespace=world.config.namespace) as served:
        reader, writer = await served.client.open("GET", target(), headers=SEQUENCE)
        await read_head(reader)
        parts = read_parts(reader)
        got = items(await anext(parts))
        if len(got) < 2:
            got += items(await anext(parts))
        await served.stop()
        rest = items(b"".join([part async for part in parts]))
        assert [*got, *rest] == [b"a", b"b"]
        writer.close()
    # Another process goes on where the reader was.
    await world.streams.close(RUN, "s")
    async with serving(backend, namespace=world.config.namespace) as served:
        reply = await served.client.send("GET", target(startIndex=2), headers=SEQUENCE)
        assert items(reply.body) == [None]


async def test_plain_bytes_are_broken_off_at_a_stop(backend: Backend, world: RedisWorld) -> None:
    await world.streams.write(RUN, "s", b"a")
    async with serving(backend, namespace=world.config.namespace) as served:
        reader, writer = await served.client.open("GET", target())
        await read_head(reader)
        parts = read_parts(reader)
        assert await anext(parts) == b"a"
        await served.stop()
        with pytest.raises(asyncio.IncompleteReadError):
            await anext(parts)
        writer.close()


async def test_a_slow_reader_does_not_fill_the_server(
    world: RedisWorld, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not take stays in Redis."""
    for _ in range(40):
        await world.streams.write(RUN, "s", b"x" * 1_000_000)
    read = 0
    original = world.streams.__class__.read

    async def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal read
        async for chunk in original(self, *args, **kwargs):
            read += 1
            yield chunk

    monkeypatch.setattr(world.streams.__class__, "read", counted)
    reader, writer = await served.client.open("GET", target())
    await read_head(reader)
    await asyncio.sleep(1)
    assert read < 20
    writer.close()


BAD_READS: list[dict[str, Any]] = [{"startIndex": "x"}, {"more": "1"}, {"startIndex": "1.5"}]


@pytest.mark.parametrize("bad", BAD_READS, ids=repr)
async def test_a_bad_read_is_refused(client: Client, bad: dict[str, Any]) -> None:
    reply = await client.send("GET", target(**bad))
    assert (reply.status, reply.value["code"]) == (400, "invalid-input")


async def test_writes_by_http_are_read_by_http(world: RedisWorld, client: Client) -> None:
    arguments = {"runId": RUN, "name": "s"}
    await client.value("streams.writeMany", {**arguments, "chunks": [b"a", b"b"]})
    await client.value("streams.close", arguments)
    reply = await client.call("streams.write", {**arguments, "chunk": b"c"})
    assert (reply.status, reply.value["code"]) == (409, "StreamClosedError")
    assert (await client.send("GET", target())).body == b"ab"
    reply = await client.call("streams.write", {**arguments, "chunk": "text"})
    assert reply.status == 400
