"""Requests that a caller repeats, to another process: they happen once (contract, section 8)."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest
from ulid import ULID

from redis_world import RedisWorld
from redis_world.errors import InvalidInputError, StreamClosedError
from redis_world.ids import IdFactory, new_request_id, run_id_time
from redis_world.requests import current_request, request_scope
from support.backends import Backend
from support.events import event
from support.queue_tools import NAME, TOPIC, content, outcome, start_run

RUN = "wrun_hc_1"
WRITER = "0123456789abcdef"


def request_id() -> str:
    return str(ULID())


def some_ids() -> list[str]:
    ids = IdFactory()
    return [new_request_id(), ids.run_id(0), ids.message_id(0), new_request_id()]


def test_a_repetition_makes_the_same_ids() -> None:
    request = request_id()
    tries = []
    for attempt in (1, 2, 7):
        with request_scope(request, attempt=attempt):
            tries.append(some_ids())
    assert tries[0] == tries[1] == tries[2]
    assert len({*tries[0]}) == 4
    with request_scope(request_id()):
        assert {*some_ids()}.isdisjoint(tries[0])
    assert {*some_ids()}.isdisjoint(tries[0])


def test_ids_of_a_request_rise_and_have_its_time() -> None:
    request = ULID.from_timestamp(1_700_000_000_123)
    with request_scope(str(request)):
        ids = IdFactory()
        runs = [ids.run_id(0) for _ in range(300)]
    assert runs == sorted({*runs})
    assert {run_id_time(run_id) for run_id in runs} == {1_700_000_000_123}


def test_lower_case_is_the_same_request() -> None:
    request = request_id()
    with request_scope(request):
        upper = some_ids()
    with request_scope(request.lower()):
        assert some_ids() == upper


BAD_IDS: list[Any] = [
    "",
    "x",
    "U" * 26,
    "8" + "Z" * 25,
    "0" * 27,
    "\u0660" * 26,
    None,
    7,
    b"0" * 26,
]


@pytest.mark.parametrize("bad", BAD_IDS)
def test_what_is_no_request_id_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInputError, match="request_id must be a ULID"):
        request_scope(bad)
    assert current_request() is None


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", None, True])
def test_what_is_no_attempt_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInputError, match="attempt"):
        request_scope(request_id(), attempt=bad)
    assert current_request() is None


def test_a_scope_ends_with_an_error_too_and_scopes_nest() -> None:
    with request_scope(request_id()):
        outer = current_request()
        inner = request_scope(request_id())
        inner.__enter__()
        assert current_request() is not outer
        inner.__exit__(KeyError, KeyError(), None)
        assert current_request() is outer
    assert current_request() is None
    assert contextvars.copy_context().run(current_request) is None


async def test_a_run_is_created_once(backend: Backend, world: RedisWorld) -> None:
    """The World makes its id, and another World makes the same one."""
    request = request_id()
    created = event("run_created", deploymentId="d", workflowName="w", input=b"")
    with request_scope(request):
        first = await world.events.create(None, created)
    before = backend.dump()
    async with backend.world(namespace=world.config.namespace) as other:
        with request_scope(request, attempt=2):
            again = await other.events.create(None, created)
    assert again == first
    assert backend.dump() == before


async def test_a_message_is_sent_and_claimed_once(backend: Backend, world: RedisWorld) -> None:
    send, claim = request_id(), request_id()
    async with backend.world(namespace=world.config.namespace) as other:
        sent, claimed = [], []
        for attempt, each in enumerate((world, other), start=1):
            with request_scope(send, attempt=attempt):
                sent.append(await each.queue.send(NAME, content(1)))
        for attempt, each in enumerate((world, other), start=1):
            with request_scope(claim, attempt=attempt):
                claimed.append(await each.queue.claim_batch(TOPIC, worker="w"))
    assert sent[0] == sent[1]
    assert [m.receipt for m in claimed[0].messages] == [m.receipt for m in claimed[1].messages]
    assert len(claimed[0].messages) == 1
    assert (await world.queue.stats(TOPIC)).leased == 1


async def test_a_claim_of_many_partitions_is_repeated(backend: Backend) -> None:
    """What it has leased is found wherever it is, and it gets no more than it has room for."""
    namespace = backend.namespace()
    async with (
        backend.world(namespace=namespace, partitions=4) as world,
        backend.world(namespace=namespace, partitions=4) as other,
    ):
        runs = [await start_run(world) for _ in range(16)]
        for run_id in runs:
            await world.queue.send(NAME, content(1, run_id))
        request = request_id()
        with request_scope(request):
            first = await world.queue.claim_batch(TOPIC, worker="w", limit=6)
        with request_scope(request, attempt=2):
            again = await other.queue.claim_batch(TOPIC, worker="w", limit=6)
        assert len(first.messages) == len(again.messages) == 6
        assert again.more
        # What the repetition leased anew and has no room for is due again; what it gave back of
        # the first try is due, too.
        stats = await world.queue.stats(TOPIC)
        assert (stats.leased, stats.ready) == (6, 10)


# Contract: 8.one request once
async def test_a_named_writer_writes_once(backend: Backend, world: RedisWorld) -> None:
    request = request_id()
    async with backend.world(namespace=world.config.namespace) as other:
        for attempt, each in enumerate((world, other, world), start=1):
            with request_scope(request, attempt=attempt):
                await each.streams.write(RUN, "s", b"1", writer=WRITER, sequence=1)
    page = await world.streams.get_chunks(RUN, "s")
    assert [chunk.data for chunk in page.data] == [b"1"]


# Contract: 8.one request once
async def test_a_late_write_of_a_named_writer_is_refused(world: RedisWorld) -> None:
    """Its caller has given it up, and has written something else since."""
    await world.streams.write(RUN, "s", b"2", writer=WRITER, sequence=2)
    for sequence in (1, 2):
        with pytest.raises(InvalidInputError, match=f"sequence {sequence}: writer {WRITER}"):
            await world.streams.write(RUN, "s", b"1", writer=WRITER, sequence=sequence)
    # Writers do not know each other, nor does a writer's number count in another stream.
    await world.streams.write(RUN, "s", b"3", writer="ab" * 4, sequence=1)
    await world.streams.write(RUN, "t", b"3", writer=WRITER, sequence=1)
    await world.streams.write(RUN, "s", b"4", writer=WRITER, sequence=9)
    page = await world.streams.get_chunks(RUN, "s")
    assert [chunk.data for chunk in page.data] == [b"2", b"3", b"4"]


async def test_a_repetition_behind_the_close_is_answered(world: RedisWorld) -> None:
    request = request_id()
    with request_scope(request):
        await world.streams.write_many(RUN, "s", [b"1", b"2"], writer=WRITER, sequence=1)
    await world.streams.close(RUN, "s")
    with request_scope(request, attempt=2):
        await world.streams.write_many(RUN, "s", [b"1", b"2"], writer=WRITER, sequence=1)
    with pytest.raises(StreamClosedError):
        await world.streams.write(RUN, "s", b"3", writer=WRITER, sequence=2)
    assert (await world.streams.get_info(RUN, "s")).tail_index == 1


BAD_ORIGINS: list[dict[str, Any]] = [
    {"writer": WRITER},
    {"sequence": 1},
    {"writer": "0123", "sequence": 1},
    {"writer": WRITER.upper(), "sequence": 1},
    {"writer": "end", "sequence": 1},
    {"writer": "a" * 33, "sequence": 1},
    {"writer": WRITER, "sequence": 0},
    {"writer": WRITER, "sequence": 1.5},
    {"writer": WRITER, "sequence": True},
    {"writer": 7, "sequence": 1},
]


@pytest.mark.parametrize("origin", BAD_ORIGINS)
async def test_a_bad_writer_is_refused_and_nothing_is_stored(
    backend: Backend, world: RedisWorld, origin: dict[str, Any]
) -> None:
    await start_run(world)
    before = backend.dump()
    assert isinstance(
        await outcome(world.streams.write(RUN, "s", b"1", **origin)), InvalidInputError
    )
    assert backend.dump() == before
