"""Writing, closing and paging streams (contract, section 8)."""

# Contract: 8.writing

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidCursorError, InvalidInputError, StreamClosedError
from redis_world.models import StreamChunksPage, StreamInfo
from support.backends import Backend
from support.queue_tools import finish_run, outcome, start_run

RUN = "wrun_hc_1"
NAMES = ["", "out", "out:writers", "a b/c", "é🙂", "x" * 500, "\x00"]

HOUR = 3600


async def all_chunks(
    world: RedisWorld, name: str = "s", *, run_id: str = RUN, limit: int = 1000
) -> list[bytes]:
    """All chunks by pages; checks on the way that the pages fit together."""
    data: list[bytes] = []
    cursor: str | None = None
    while True:
        page = await world.streams.get_chunks(run_id, name, limit=limit, cursor=cursor)
        assert [chunk.index for chunk in page.data] == list(
            range(len(data), len(data) + len(page.data))
        )
        assert page.has_more == (page.cursor is not None)
        data += [chunk.data for chunk in page.data]
        if not page.has_more:
            return data
        cursor = page.cursor


def ttls(backend: Backend) -> list[int]:
    """The seconds that the keys of streams have to live; -1 for those that stay."""
    with contextlib.closing(backend.client()) as client:
        return [client.ttl(key) for key in client.scan_iter("*:stream*", count=1000)]


# -- writing --------------------------------------------------------------------------------


async def test_chunks_are_kept_as_they_are_in_their_order(world: RedisWorld) -> None:
    chunks = [b"a", b"", bytes(range(256)), b"\r\n\x00", "é".encode(), b"x" * 100_000]
    for chunk in chunks:
        await world.streams.write(RUN, "s", chunk)
    await world.streams.write_many(RUN, "s", chunks)
    assert await all_chunks(world) == chunks * 2
    assert await world.streams.get_info(RUN, "s") == StreamInfo(tail_index=11, done=False)


async def test_any_kind_of_bytes_is_a_chunk(world: RedisWorld) -> None:
    views: list[Any] = [bytearray(b"one"), memoryview(b"two"), memoryview(b"abc")[1:]]
    await world.streams.write_many(RUN, "s", views)
    assert await all_chunks(world) == [b"one", b"two", b"bc"]


@pytest.mark.parametrize("chunk", ["text", 7, None, [b"a"], {"a": 1}])
async def test_what_is_not_bytes_is_refused_and_nothing_is_stored(
    backend: Backend, world: RedisWorld, chunk: Any
) -> None:
    before = backend.dump()
    calls = [
        world.streams.write(RUN, "s", chunk),
        world.streams.write_many(RUN, "s", [b"good", chunk]),
    ]
    assert [type(await outcome(call)) for call in calls] == [InvalidInputError] * 2
    assert backend.dump() == before


async def test_a_chunk_larger_than_the_limit_is_refused(backend: Backend) -> None:
    async with backend.world(max_payload_bytes=10) as world:
        await world.streams.write(RUN, "s", b"x" * 10)
        with pytest.raises(InvalidInputError):
            await world.streams.write_many(RUN, "s", [b"y", b"x" * 11])
        assert await all_chunks(world) == [b"x" * 10]


async def test_an_empty_write_many_does_nothing(backend: Backend, world: RedisWorld) -> None:
    before = backend.dump()
    await world.streams.write_many(RUN, "s", [])
    assert backend.dump() == before
    assert await world.streams.list(RUN) == []


async def test_many_chunks_at_once_keep_their_order(world: RedisWorld) -> None:
    chunks = [str(i).encode() for i in range(2500)]
    await world.streams.write_many(RUN, "s", chunks)
    await world.streams.write_many(RUN, "s", chunks)
    assert await all_chunks(world) == chunks * 2  # nor is a live stream ever trimmed


async def test_a_write_many_is_one_call_of_a_script(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    call = world.connection.call

    async def counted(name: str, *args: Any) -> list[Any]:
        calls.append(name)
        return await call(name, *args)

    monkeypatch.setattr(world.connection, "call", counted)
    await world.streams.write_many(RUN, "s", [b"x"] * 500)
    assert calls == ["streams/write"]


async def test_concurrent_writers_lose_and_mix_up_nothing(backend: Backend) -> None:
    namespace = backend.namespace()
    async with (
        backend.world(namespace=namespace) as one,
        backend.world(namespace=namespace) as other,
    ):

        async def write(writer: int) -> None:
            world = (one, other)[writer % 2]
            for i in range(5):
                await world.streams.write(RUN, "s", f"{writer} {i}".encode())
            await world.streams.write_many(
                RUN, "s", [f"{writer} {i}".encode() for i in range(5, 10)]
            )

        await asyncio.gather(*(write(writer) for writer in range(20)))
        chunks = await all_chunks(one, limit=64)
        assert len(chunks) == 200
        for writer in range(20):
            own = [chunk for chunk in chunks if chunk.startswith(f"{writer} ".encode())]
            assert own == [f"{writer} {i}".encode() for i in range(10)]
            # What was written at once lies together.
            start = chunks.index(own[5])
            assert chunks[start : start + 5] == own[5:]


async def test_the_writes_of_one_caller_keep_their_order(world: RedisWorld) -> None:
    chunks = [str(i).encode() for i in range(100)]
    await asyncio.gather(*(world.streams.write(RUN, "s", chunk) for chunk in chunks))
    assert await all_chunks(world) == chunks


# Contract: 8.one request once
async def test_a_request_that_is_repeated_stores_its_chunk_once(world: RedisWorld) -> None:
    """As after a lost reply: the same writer and number stand for the same write."""
    keys = world.connection.partitions.of(RUN).of_run(RUN)
    names = {
        "run": keys.run,
        "streams": keys.streams,
        "stream": keys.stream("s"),
        "writers": keys.writers("s"),
    }

    async def write(writer: str, sequence: int, *chunks: bytes, op: str = "") -> list[Any]:
        args = {
            "name": "s",
            "writer": writer,
            "sequence": str(sequence),
            "op": op or f"{writer}{sequence}",
            "chunks": chunks,
        }
        return await world.connection.call("streams/write", names, args)

    first = await write("w1", 1, b"a", b"b")
    assert await write("w1", 1, b"a", b"b") == first
    await write("w2", 1, b"c")
    second = await write("w1", 2, b"d")
    assert await write("w1", 2, b"d") == second
    await world.streams.close(RUN, "s")
    # It was stored: that it is closed by now makes no conflict of it.
    assert await write("w1", 2, b"d") == second
    assert await write("w1", 3, b"e") == [b"CLOSED"]
    # Of an earlier request, or of a copy of the writer's process.
    assert await write("w1", 1, b"a") == [b"STALE"]
    assert await write("w1", 2, b"f", op="other") == [b"STALE"]
    assert await all_chunks(world) == [b"a", b"b", b"c", b"d"]


# Contract: 8.one request once
async def test_writes_of_one_world_leave_one_writer_behind(
    backend: Backend, world: RedisWorld
) -> None:
    """What tells repeated requests apart must not grow with the stream."""
    for i in range(30):
        await world.streams.write(RUN, "s", str(i).encode())
    key = world.connection.partitions.of(RUN).of_run(RUN).writers("s")
    with contextlib.closing(backend.client()) as client:
        assert client.hlen(key) == 1


# -- closing --------------------------------------------------------------------------------


# Contract: 8.closing
async def test_a_write_after_close_is_a_typed_conflict_and_not_stored(
    backend: Backend, world: RedisWorld
) -> None:
    await world.streams.write(RUN, "s", b"a")
    await world.streams.close(RUN, "s")
    before = backend.dump()
    with pytest.raises(StreamClosedError) as caught:
        await world.streams.write(RUN, "s", b"b")
    assert caught.value.status == 409
    with pytest.raises(StreamClosedError):
        await world.streams.write_many(RUN, "s", [b"b", b"c"])
    assert backend.dump() == before
    assert await all_chunks(world) == [b"a"]
    assert await world.streams.get_info(RUN, "s") == StreamInfo(tail_index=0, done=True)


# Contract: 8.closing
async def test_closing_again_changes_nothing(backend: Backend, world: RedisWorld) -> None:
    await world.streams.write(RUN, "s", b"a")
    await world.streams.close(RUN, "s")
    before = backend.dump()
    await world.streams.close(RUN, "s")
    await asyncio.gather(*(world.streams.close(RUN, "s") for _ in range(10)))
    assert backend.dump() == before


# Contract: 8.closing, 1.rivals
async def test_rivals_close_a_stream_once(backend: Backend) -> None:
    namespace = backend.namespace()
    async with (
        backend.world(namespace=namespace) as one,
        backend.world(namespace=namespace) as other,
    ):
        await one.streams.write(RUN, "s", b"a")
        closes = [world.streams.close(RUN, "s") for world in (one, other) for _ in range(5)]
        writes = [world.streams.write(RUN, "s", b"b") for world in (one, other) for _ in range(5)]
        answers = await asyncio.gather(*closes[:1], *map(outcome, writes), *closes[1:])
        stored = [answer for answer in answers[1:11] if answer is None]
        assert all(isinstance(a, StreamClosedError | None) for a in answers)
        assert await all_chunks(one) == [b"a", *[b"b"] * len(stored)]
        assert await one.streams.get_info(RUN, "s") == StreamInfo(
            tail_index=len(stored), done=True
        )


# Contract: 8.closing
async def test_close_creates_the_stream(world: RedisWorld) -> None:
    await world.streams.close(RUN, "s")
    assert await world.streams.list(RUN) == ["s"]
    assert await world.streams.get_info(RUN, "s") == StreamInfo(tail_index=-1, done=True)
    page = await world.streams.get_chunks(RUN, "s")
    assert page == StreamChunksPage(data=[], cursor=None, has_more=False, done=True)
    with pytest.raises(StreamClosedError):
        await world.streams.write(RUN, "s", b"a")


# -- reading what is there ------------------------------------------------------------------


# Contract: 8.listing
async def test_an_unknown_stream_is_empty_and_open(world: RedisWorld) -> None:
    assert await world.streams.get_info(RUN, "s") == StreamInfo(tail_index=-1, done=False)
    page = await world.streams.get_chunks(RUN, "s")
    assert page == StreamChunksPage(data=[], cursor=None, has_more=False, done=False)
    assert await world.streams.list(RUN) == []


# Contract: 8.empty chunks
async def test_an_empty_chunk_has_an_index(world: RedisWorld) -> None:
    await world.streams.write(RUN, "s", b"")
    assert await world.streams.get_info(RUN, "s") == StreamInfo(tail_index=0, done=False)
    await world.streams.write_many(RUN, "s", [b"a", b"", b""])
    assert await world.streams.get_info(RUN, "s") == StreamInfo(tail_index=3, done=False)
    assert await all_chunks(world) == [b"", b"a", b"", b""]


# Contract: 8.pages
@pytest.mark.parametrize("closed", [False, True])
async def test_pages_cover_a_stream_without_an_empty_one(world: RedisWorld, closed: bool) -> None:
    chunks = [str(i).encode() for i in range(12)]
    await world.streams.write_many(RUN, "s", chunks)
    if closed:
        await world.streams.close(RUN, "s")
    sizes = []
    cursor: str | None = None
    while True:
        page = await world.streams.get_chunks(RUN, "s", limit=4, cursor=cursor)
        sizes.append(len(page.data))
        cursor = page.cursor
        if cursor is None:
            break
    assert sizes == [4, 4, 4]
    assert (page.has_more, page.done) == (False, closed)
    for limit in (1, 5, 11, 12, 13):
        assert await all_chunks(world, limit=limit) == chunks


# Contract: 8.pages
async def test_a_page_has_100_chunks_by_default_and_1000_at_most(world: RedisWorld) -> None:
    await world.streams.write_many(RUN, "s", [b"x"] * 1001)
    page = await world.streams.get_chunks(RUN, "s")
    assert (len(page.data), page.has_more) == (100, True)
    page = await world.streams.get_chunks(RUN, "s", limit=1000)
    assert (len(page.data), page.has_more, page.data[-1].index) == (1000, True, 999)
    limits: list[Any] = [0, -1, 1001, True, "1", 1.5, None]
    for limit in limits:
        answer = await outcome(world.streams.get_chunks(RUN, "s", limit=limit))
        assert isinstance(answer, InvalidInputError), limit


# Contract: 8.pages
async def test_a_bad_cursor_is_refused(world: RedisWorld) -> None:
    await world.streams.write_many(RUN, "s", [b"x"] * 3)
    cursors: list[Any] = ["", "0", "chunks:", "chunks:-1", "chunks:x", "eid:1", "steps:1", 1]
    for cursor in cursors:
        answer = await outcome(world.streams.get_chunks(RUN, "s", cursor=cursor))
        assert isinstance(answer, InvalidCursorError), cursor


# Contract: 8.listing
async def test_streams_are_listed_by_name(world: RedisWorld) -> None:
    for i, name in enumerate(NAMES):
        if i % 2:
            await world.streams.write(RUN, name, b"x")
        else:
            await world.streams.close(RUN, name)
    await world.streams.write(RUN, "out", b"x")
    await world.streams.write("wrun_hc_2", "other", b"x")
    assert await world.streams.list(RUN) == sorted(NAMES)


# Contract: 8.listing
async def test_names_and_runs_keep_streams_apart(world: RedisWorld) -> None:
    places = [(run, name) for run in (RUN, f"{RUN}:stream:out", "é") for name in NAMES]
    for run, name in places:
        await world.streams.write(run, name, f"{run} {name}".encode())
    for run, name in places:
        assert await all_chunks(world, name, run_id=run) == [f"{run} {name}".encode()]


# -- streams and runs -----------------------------------------------------------------------


# Contract: 8.streams and runs
async def test_writes_ignore_the_status_of_the_run(backend: Backend, world: RedisWorld) -> None:
    run_id = await start_run(world)
    await world.streams.write(run_id, "s", b"running")
    await finish_run(world, run_id)
    await world.streams.write(run_id, "s", b"over")
    await world.streams.write(run_id, "new", b"over")
    await world.streams.close(run_id, "s")
    assert await all_chunks(world, run_id=run_id) == [b"running", b"over"]
    assert await world.streams.list(run_id) == ["new", "s"]
    assert {*ttls(backend)} == {-1}


# Contract: 8.streams and runs, 1.views
async def test_streams_are_outside_of_the_event_log(world: RedisWorld) -> None:
    run_id = await start_run(world)
    before = (await world.events.list(run_id)).data
    await world.streams.write(run_id, "s", b"a")
    await world.streams.close(run_id, "s")
    assert (await world.events.list(run_id)).data == before


# Contract: 8.streams and runs
@pytest.mark.parametrize("written", ["write", "close"])
async def test_streams_of_runs_that_do_not_exist_expire_after_an_hour(
    backend: Backend, world: RedisWorld, written: str
) -> None:
    if written == "write":
        await world.streams.write(RUN, "s", b"a")
    else:
        await world.streams.close(RUN, "s")
    found = ttls(backend)
    assert len(found) >= 2
    assert all(HOUR - 100 < ttl <= HOUR for ttl in found)


# Contract: 8.streams and runs
async def test_an_hour_counts_from_the_last_write(backend: Backend, world: RedisWorld) -> None:
    await world.streams.write(RUN, "s", b"a")
    with contextlib.closing(backend.client()) as client:
        for key in client.scan_iter("*:stream*", count=1000):
            client.expire(key, 5)
    await world.streams.write(RUN, "s", b"b")
    assert all(HOUR - 100 < ttl <= HOUR for ttl in ttls(backend))


# Contract: 8.streams and runs, 8.listing
async def test_a_stream_that_expired_is_listed_no_more(
    backend: Backend, world: RedisWorld
) -> None:
    """Also when another stream of the run is written on."""
    await world.streams.write(RUN, "gone", b"a")
    keys = world.connection.partitions.of(RUN).of_run(RUN)
    with contextlib.closing(backend.client()) as client:
        client.delete(keys.stream("gone"), keys.writers("gone"))  # as their time does
    await world.streams.write(RUN, "s", b"a")
    assert await world.streams.list(RUN) == ["s"]


# Contract: 8.streams and runs
@pytest.mark.parametrize("by", ["run_created", "run_started"])
async def test_a_run_that_is_created_later_keeps_its_streams(
    backend: Backend, world: RedisWorld, by: str
) -> None:
    run_id = await _new_run_id(world)
    for name in NAMES:
        await world.streams.write(run_id, name, b"early")
    await world.streams.close(run_id, "out")
    assert -1 not in ttls(backend)
    await _create_run(world, run_id, by)
    assert {*ttls(backend)} == {-1}
    await world.streams.write(run_id, "s", b"late")
    assert {*ttls(backend)} == {-1}
    assert await all_chunks(world, "out", run_id=run_id) == [b"early"]
    assert (await world.streams.get_info(run_id, "out")).done


# Contract: 8.streams and runs
@pytest.mark.large
async def test_a_run_keeps_all_its_streams_however_many(
    backend: Backend, world: RedisWorld
) -> None:
    run_id = await _new_run_id(world)
    names = [f"s{i}" for i in range(1001)]
    await asyncio.gather(*(world.streams.write(run_id, name, b"x") for name in names))
    await _create_run(world, run_id, "run_created")
    assert {*ttls(backend)} == {-1}


async def _new_run_id(world: RedisWorld) -> str:
    """The id of a run that is gone already: one of the right form and age."""
    from redis_world.ids import IdFactory

    await world.open()
    return IdFactory().run_id(world.connection.server_time())


async def _create_run(world: RedisWorld, run_id: str, by: str) -> None:
    data: dict[str, Any] = {"deploymentId": "d", "workflowName": "w", "input": b""}
    await world.events.create(run_id, {"eventType": by, "eventData": data})
