"""The run that writes a stream, found by the stream's name alone (contract, section 8)."""

# Contract: 8.names

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidInputError
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend

Clocked = tuple[RedisWorld, ManualClock]

RUN: Final = "wrun_one"
OTHER: Final = "wrun_other"
NAMES: Final = ("", "out", "out:writers", "a b/c", "é🙂", "x" * 500, "\x00", "{a}", "%41", "A")
RETENTION: Final = timedelta(days=30)
"""The default."""
HOUR: Final = timedelta(hours=1)
SLACK: Final = timedelta(minutes=10)
"""More than a test takes."""


def time_to_live(backend: Backend, world: RedisWorld, name: str) -> timedelta | None:
    """How long the note of a name stays; None for ever."""
    key = world.connection.partitions.of(name).stream_run(name)
    with contextlib.closing(backend.client()) as client:
        assert client.exists(key)
        left = client.pttl(key)
    return None if left == -1 else timedelta(milliseconds=left)


def is_about(left: timedelta | None, expected: timedelta) -> bool:
    return left is not None and expected - SLACK < left <= expected


# -- whose name it is ------------------------------------------------------------------------


async def test_a_name_leads_to_the_run_that_writes_it(world: RedisWorld) -> None:
    """Whatever the text; and each name has its own note."""
    runs = {name: f"wrun_{number}" for number, name in enumerate(NAMES)}
    for name, run_id in runs.items():
        await world.streams.note_run(run_id, name)
    assert {name: await world.streams.find_run(name) for name in NAMES} == runs
    await check_invariants(world)


@pytest.mark.parametrize("run_id", ["", "é: %/", "x" * 500])
async def test_any_text_is_a_run(world: RedisWorld, run_id: str) -> None:
    await world.streams.note_run(run_id, "out")
    assert await world.streams.find_run("out") == run_id


async def test_a_name_that_nobody_has_noted_leads_nowhere(world: RedisWorld) -> None:
    await world.streams.note_run(RUN, "out")
    assert await world.streams.find_run("out2") is None
    assert await world.streams.find_run("") is None


async def test_the_first_note_of_a_name_stays(world: RedisWorld) -> None:
    for run_id in (RUN, OTHER, RUN, OTHER):
        await world.streams.note_run(run_id, "out")
        assert await world.streams.find_run("out") == RUN


async def test_only_what_is_noted_is_found(backend: Backend, world: RedisWorld) -> None:
    """A plain write costs no more than it did."""
    await world.streams.write(RUN, "out", b"1")
    await world.streams.close(RUN, "out")
    assert await world.streams.find_run("out") is None
    before = backend.dump()
    await world.streams.note_run(RUN, "out")
    assert len(backend.dump()) == len(before) + 1
    assert await world.streams.get_info(RUN, "other") == await world.streams.get_info(OTHER, "out")


async def test_a_note_makes_no_stream(world: RedisWorld) -> None:
    await world.streams.note_run(RUN, "out")
    assert await world.streams.list(RUN) == []
    assert (await world.streams.get_info(RUN, "out")).tail_index == -1


async def test_the_name_decides_where_a_note_lies(backend: Backend) -> None:
    """Of several partitions a reader looks into one, without knowing the run."""
    async with backend.world(partitions=4) as world:
        numbers = set()
        for name in (f"stream {number}" for number in range(20)):
            await world.streams.note_run(RUN, name)
            assert await world.streams.find_run(name) == RUN
            assert time_to_live(backend, world, name) is not None
            numbers.add(world.connection.partitions.of(name).number)
        assert numbers == {0, 1, 2, 3}
        await check_invariants(world)


async def test_a_name_that_is_too_long_is_refused(backend: Backend) -> None:
    async with backend.world(max_payload_bytes=1) as world:
        limit = world.config.max_name_bytes
        await world.streams.note_run("r" * limit, "n" * limit)
        assert await world.streams.find_run("n" * limit) == "r" * limit
        before = backend.dump()
        for run_id, name in ((RUN, "n" * (limit + 1)), ("r" * (limit + 1), "out")):
            with pytest.raises(InvalidInputError, match="bytes"):
                await world.streams.note_run(run_id, name)
        with pytest.raises(InvalidInputError, match="bytes"):
            await world.streams.find_run("n" * (limit + 1))
        assert backend.dump() == before


# -- until when ------------------------------------------------------------------------------


async def test_a_note_goes_after_the_retention(backend: Backend, clocked: Clocked) -> None:
    world, clock = clocked
    now = datetime.now(UTC)
    await clock.set(now - RETENTION + HOUR)
    await world.streams.note_run(RUN, "kept")
    assert await world.streams.find_run("kept") == RUN
    assert is_about(time_to_live(backend, world, "kept"), HOUR)
    await clock.set(now - RETENTION - HOUR)
    await world.streams.note_run(RUN, "gone")
    assert await world.streams.find_run("gone") is None
    await clock.set(now)
    for name in ("kept", "gone"):
        await world.streams.note_run(OTHER, name)
    assert await world.streams.find_run("kept") == RUN
    assert await world.streams.find_run("gone") == OTHER
    await check_invariants(world)


async def test_its_time_counts_from_the_last_note_of_its_run(
    backend: Backend, clocked: Clocked
) -> None:
    world, clock = clocked
    now = datetime.now(UTC)
    await clock.set(now - RETENTION + HOUR)
    await world.streams.note_run(RUN, "out")
    await clock.set(now)
    await world.streams.note_run(OTHER, "out")
    assert is_about(time_to_live(backend, world, "out"), HOUR)
    await world.streams.note_run(RUN, "out")
    assert is_about(time_to_live(backend, world, "out"), RETENTION)


async def test_the_retention_is_the_option_of_the_world(backend: Backend) -> None:
    async with backend.world(retention=2 * HOUR) as world:
        await world.streams.note_run(RUN, "out")
        assert is_about(time_to_live(backend, world, "out"), 2 * HOUR)


async def test_the_longest_retention_is_no_error(backend: Backend) -> None:
    longest = timedelta(days=365_000)
    async with backend.world(retention=longest) as world:
        await world.streams.note_run(RUN, "out")
        assert is_about(time_to_live(backend, world, "out"), longest)


async def test_without_a_retention_a_note_stays(backend: Backend) -> None:
    """Also one that another World has noted, and that would go."""
    namespace = backend.namespace()
    async with (
        backend.world(namespace=namespace, retention=None) as world,
        backend.world(namespace=namespace) as other,
    ):
        await world.streams.note_run(RUN, "out")
        assert time_to_live(backend, world, "out") is None
        await other.streams.note_run(RUN, "out")
        assert is_about(time_to_live(backend, world, "out"), RETENTION)
        await world.streams.note_run(RUN, "out")
        assert time_to_live(backend, world, "out") is None
        assert await other.streams.find_run("out") == RUN
        await check_invariants(world)
        await check_invariants(other)


@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_note_outlives_its_run(world: RedisWorld, *, is_removed: bool) -> None:
    """Its streams read as gone then."""
    attributes = {} if is_removed else {"$retention": "0"}
    run_id = await e.new_run(world, attributes=attributes, allowReservedAttributes=True)
    await world.streams.write(run_id, "out", b"1")
    await world.streams.note_run(run_id, "out")
    await e.write(world, run_id, e.run_ended("completed"))
    if is_removed:
        assert await world.prune(0) == 1
    assert await world.streams.find_run("out") == run_id
    assert (await world.streams.get_chunks(run_id, "out")).data == []
    await check_invariants(world)
