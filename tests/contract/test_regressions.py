"""Faults that were found by attacking the World, each named after what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import cbor2
import pytest
import redis.asyncio

from redis_world import RedisWorld
from redis_world.connection.subscriber import open_subscriber
from redis_world.errors import ConfigurationError, InvalidEventError, InvalidInputError
from redis_world.hints import HintHub
from redis_world.memory import memory_client
from redis_world.queue import FollowUp
from redis_world.testing import ManualClock
from support import events as e
from support.backends import Backend
from support.message_fields import find_record
from support.private_servers import ONE, private_server
from support.until import until

TOPIC = "__wkf_workflow_"
NAME = f"{TOPIC}orders"


async def until_delayed(world: RedisWorld, running: asyncio.Task[None]) -> None:
    """Wait until a message is to be tried again later."""
    while (await world.queue.stats(TOPIC)).delayed != 1:
        assert not running.done()
        await asyncio.sleep(0.01)


def test_writes_of_forked_processes_are_all_stored(real_backend: Backend) -> None:
    """A child went on with its parent's writer id and numbers, and was taken for a resend."""
    world = real_backend.world()
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            # No way back into the test, whatever happens.
            try:
                asyncio.run(world.streams.write("wrun_x", "s", b"%d" % number))
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)

    async def read() -> set[bytes]:
        async with real_backend.world(namespace=real_backend.namespaces[0]) as reader:
            page = await reader.streams.get_chunks("wrun_x", "s")
            return {chunk.data for chunk in page.data}

    assert asyncio.run(read()) == {b"0", b"1", b"2"}


# Contract: 4.unavailable
async def test_a_full_server_still_extends_leases() -> None:
    """Its first write was one that a full server refuses: the message was handed out again."""
    with private_server(ONE) as server:
        async with RedisWorld(server.url) as world:
            await world.queue.send(NAME, {"runId": "wrun_x", "stepId": "s"})
            (message,) = await world.queue.claim(TOPIC, lease=60)
            await world.connection.execute(("CONFIG", "SET", "maxmemory", "1"))
            assert await world.queue.extend(message, lease=60)
            assert await world.queue.ack(message)


@pytest.mark.parametrize(
    "bad", [uuid.uuid4(), ["list"], 1.5 + 2j], ids=["uuid", "list", "complex"]
)
async def test_one_callers_bad_argument_is_its_own_error(world: RedisWorld, bad: Any) -> None:
    """redis-py refused the whole pipeline, and every caller of the same tick got the error."""
    run_id = await e.new_run(world)
    good, spoiled, resume = await asyncio.gather(
        world.events.create(run_id, e.step_created()),
        world.queue.send(NAME, {"runId": run_id}, idempotency_key=bad),
        world.events.create(run_id, e.step_created("other"), request_id=bad),
        return_exceptions=True,
    )
    assert not isinstance(good, BaseException)
    assert isinstance(spoiled, InvalidInputError)
    assert isinstance(resume, InvalidInputError)


# Contract: 7.continuation
async def test_a_bad_key_of_a_follow_up_leaves_the_lease(world: RedisWorld) -> None:
    await world.queue.send(NAME, {"runId": "wrun_x", "x": 1})
    (message,) = await world.queue.claim(TOPIC)
    bad: Any = uuid.uuid4()
    with pytest.raises(InvalidInputError):
        await world.queue.ack(message, follow_up=FollowUp(idempotency_key=bad))
    assert await world.queue.ack(message)


async def test_a_ready_client_sends_nothing_again_by_itself(real_backend: Backend) -> None:
    """redis-py repeats a command whose reply is lost, ten times by default."""
    client = redis.asyncio.Redis.from_url(real_backend.url)
    async with RedisWorld(client=client, namespace=real_backend.namespace()) as world:
        (state,) = world.connection._states.values()
        pool = state.routes.clients[0].connection_pool
        connection = await pool.get_connection()  # type: ignore[no-untyped-call]
        assert connection.retry.get_retries() == 0
        await pool.release(connection)
    await client.aclose()


# Contract: 4.bad input
async def test_what_encodes_but_never_decodes_is_refused(
    world: RedisWorld, backend: Backend
) -> None:
    value = cbor2.CBORTag(0, "x")
    run_id = await e.new_run(world)
    before = backend.dump()
    with pytest.raises(InvalidEventError):
        await world.events.create(run_id, e.step_created(input={"value": value}))
    with pytest.raises(InvalidEventError):
        await world.queue.send(NAME, {"value": value})
    assert backend.dump() == before


# Contract: 4.subclasses
async def test_a_date_of_an_odd_time_zone_is_its_moment(world: RedisWorld) -> None:
    """Its own text can't be read back: the offset has microseconds."""
    moment = datetime(2030, 1, 1, tzinfo=timezone(timedelta(seconds=1, microseconds=1)))
    await world.queue.send(NAME, {"value": moment})
    (message,) = await world.queue.claim(TOPIC)
    assert message.payload["value"] == moment


# Contract: 4.bad input
async def test_structures_that_share_parts_or_have_no_end(world: RedisWorld) -> None:
    endless: list[Any] = []
    endless += [endless, endless]
    with pytest.raises(InvalidEventError):
        await world.queue.send(NAME, {"value": endless})


# Contract: 7.claim
async def test_a_message_that_can_not_be_read_is_nobody_elses_problem(
    world: RedisWorld, backend: Backend
) -> None:
    """It ended the claim, and with it the worker, after the whole batch was leased."""
    broken = await world.queue.send(NAME, {"runId": "wrun_x", "x": 1})
    fine = await world.queue.send(NAME, {"runId": "wrun_y", "x": 2})
    assert broken is not None
    with contextlib.closing(backend.client()) as client:
        record = find_record(client, broken)
        words, end, texts = record.get("message").partition(b"\n")
        # As many bytes as before, which are no CBOR.
        record.put("message", words + end + texts[:-1] + b"\xff")
    messages = await world.queue.claim(TOPIC)
    assert [message.message_id for message in messages] == [fine]
    stats = await world.queue.stats(TOPIC)
    assert (stats.leased, stats.delayed) == (1, 1)


# Contract: 7.sending
async def test_a_message_may_carry_the_largest_payload(backend: Backend) -> None:
    """The run was stored, and its first message, which repeats the input, refused."""
    async with backend.world(max_payload_bytes=4000) as world:
        assert await world.queue.send(NAME, {"runId": "wrun_x", "runInput": b"x" * 4000})


# Contract: 6.wait_for_terminal
async def test_a_wait_ends_at_its_time_out_while_the_server_hangs(
    real_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_backend.world() as world:
        run_id = await e.new_run(world)
        original = world.runs.get
        looks = 0

        async def hangs(*args: Any, **options: Any) -> Any:
            nonlocal looks
            looks += 1
            if looks > 1:
                await asyncio.sleep(3600)
            return await original(*args, **options)

        monkeypatch.setattr(world.runs, "get", hangs)
        assert (await world.runs.wait_for_terminal(run_id, timeout=0.1)).status == "running"


# Contract: 3.event
async def test_times_and_ids_in_the_mapping_are_not_made_up(world: RedisWorld) -> None:
    """They are parameters of the call; the answer showed them although they were not stored."""
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.hook_created())
    wire = {**e.hook_received(), "occurredAt": datetime(2020, 1, 1, tzinfo=UTC), "resumeId": "z"}
    result = await world.events.create(run_id, wire)
    assert result.event is not None
    assert result.event.event_id is not None
    assert result.event == await world.events.get(run_id, result.event.event_id)
    assert (result.event.occurred_at, result.event.resume_id) == (None, None)


# Contract: 5.run_started
async def test_a_preload_comes_with_a_cursor_too(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.hook_created())
    for options in ({"since_cursor": f"eid:{e.event_id(1)}"}, {"event_count": 1}):
        result = await world.events.create(
            run_id, e.hook_received(), preload_events=True, **options
        )
        assert result.run is not None
        assert result.events == await e.log(world, run_id)
        assert result.max_events == world.config.max_events_per_run


# Contract: 3.event data
async def test_data_may_have_any_key(world: RedisWorld) -> None:
    """The answer of a stored event was a TypeError."""
    run_id = await e.new_run(world)
    wire = e.step_created(cls="a", _fields_set="b", self="c", values=1)
    result = await world.events.create(run_id, wire, resolve_data="none")
    assert result.event is not None
    stored = (await world.events.list(run_id, resolve_data="none")).data[-1]
    assert result.event.to_wire() == stored.to_wire()
    assert stored.to_wire()["eventData"] == {
        "stepName": "s",
        "cls": "a",
        "_fields_set": "b",
        "self": "c",
        "values": 1,
    }


# Contract: 3.dates
@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00"])
async def test_dates_beyond_the_calendar_are_refused(world: RedisWorld, moment: str) -> None:
    run_id = await e.new_run(world)
    with pytest.raises(InvalidEventError):
        await world.events.create(run_id, e.event("wait_created", "w", resumeAt=moment))
    with pytest.raises(InvalidEventError):
        await world.events.create(
            run_id, e.step_created(), occurred_at=datetime.fromisoformat(moment)
        )


async def test_ids_and_indexes_of_the_wrong_type_are_refused(world: RedisWorld) -> None:
    number: Any = 5
    with pytest.raises(InvalidInputError):
        await world.runs.get(number)
    fraction: Any = 1.5
    with pytest.raises(InvalidInputError):
        await anext(world.streams.read("wrun_x", "s", start_index=fraction))
    await world.streams.close("wrun_x", "s")
    assert [chunk async for chunk in world.streams.read("wrun_x", "s", start_index=2**64)] == []


async def test_a_user_without_channels_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It connected twice a second for ever, with a warning each time."""
    connects = 0

    def connect() -> redis.asyncio.Redis:
        nonlocal connects
        connects += 1
        client = memory_client("memory://denied")
        pool = client.connection_pool
        connection = pool.make_connection()  # type: ignore[no-untyped-call]

        async def denied(**_: Any) -> None:
            raise redis.exceptions.NoPermissionError("no rights on channels")

        monkeypatch.setattr(connection, "read_response", denied)
        monkeypatch.setattr(pool, "make_connection", lambda: connection)
        return client

    monkeypatch.setattr("redis_world.hints._DENIED_SECONDS", 0.01)
    hub = HintHub(lambda hear: open_subscriber(connect(), hear))
    started = time.monotonic()
    async with hub.subscribe("a"):
        await until(lambda: connects >= 3)
        async with hub.subscribe("b") as subscription:
            # No second is lost on a confirmation that never comes.
            assert not await subscription.wait(0.01)
    await hub.aclose()
    assert time.monotonic() >= started
    assert len([r for r in caplog.records if "no permission to subscribe" in r.message]) == 1


async def test_the_hub_forgets_what_was_confirmed(backend: Backend) -> None:
    async with backend.world() as world:
        for number in range(20):
            channel = world.connection.keys.queue_channel(f"c{number}")
            async with world.connection.hub.subscribe(channel):
                pass
        hub = world.connection.hub
        await until(lambda: not hub._confirmed)
        assert not +hub._awaited


# Contract: 7.failures
async def test_retry_after_may_be_a_timedelta(clocked: tuple[RedisWorld, ManualClock]) -> None:
    from redis_world.worker import Worker

    class BusyError(Exception):
        retry_after = timedelta(minutes=10)

    world, clock = clocked

    async def busy(*_: Any, **__: Any) -> None:
        raise BusyError

    await world.queue.send(NAME, {"runId": "wrun_x", "x": 1})
    worker = Worker(world, {TOPIC: busy})
    running = asyncio.create_task(worker.run())

    await until_delayed(world, running)
    worker.stop()
    await running
    await clock.advance(599)
    assert await world.queue.claim(TOPIC) == []
    await clock.advance(2)
    (message,) = await world.queue.claim(TOPIC)
    assert message.failures == 1


async def test_a_step_that_ends_the_process_has_failed(world: RedisWorld) -> None:
    """`sys.exit()` in a handler ended the worker, and left the message to its lease."""
    from redis_world.worker import Worker

    async def leaves(*_: Any, **__: Any) -> None:
        raise SystemExit(2)

    await world.queue.send(NAME, {"runId": "wrun_x", "stepId": "s"})
    worker = Worker(world, {TOPIC: leaves})
    running = asyncio.create_task(worker.run())

    await until_delayed(world, running)
    worker.stop()
    await running


# Contract: 7.dead letters
async def test_a_dead_letter_that_nobody_can_read_is_listed(
    backend: Backend,
) -> None:
    """One of them hid all others of its page, and those that came after."""
    async with backend.world(max_failures=2) as world:
        sent = [await world.queue.send(NAME, {"runId": "wrun_x", "x": n}) for n in range(2)]
        assert sent[0] is not None
        while (await world.queue.stats(TOPIC)).dead < 2:
            for message in await world.queue.claim(TOPIC):
                await world.queue.retry(message, error="no", delay=0)
        with contextlib.closing(backend.client()) as client:
            record = find_record(client, sent[0])
            head, line_feed, texts = record.get("message").partition(b"\n")
            size = int(record.head()["body"])
            record.put("message", head + line_feed + texts[:-size] + b"\xff" * size)
        letters = (await world.queue.dead_letters(TOPIC)).data
        assert {letter.message_id: letter.payload for letter in letters} == {
            sent[0]: None,
            sent[1]: {"runId": "wrun_x", "x": 1},
        }


async def test_the_hub_forgets_waiters_that_gave_up_at_once(world: RedisWorld) -> None:
    """Each run that was waited for with no time left an event behind, for ever."""
    ids = [await e.new_run(world) for _ in range(20)]
    for run_id in ids:
        await world.runs.wait_for_terminal(run_id, timeout=0)
    hub = world.connection.hub
    await until(lambda: not hub._confirmed)


async def test_a_world_that_does_not_open_leaves_no_connection(real_backend: Backend) -> None:
    namespace = real_backend.namespace()
    with contextlib.closing(real_backend.client()) as client:
        client.hset(f"{{{namespace}}}:v1:meta", mapping={"schema": "99", "partitions": "1"})
        before = len(client.client_list())
        for _ in range(3):
            with pytest.raises(ConfigurationError):
                await real_backend.world(namespace=namespace).open()
        await until(lambda: len(client.client_list()) <= before)


@pytest.mark.parametrize("client", [redis.Redis(), object()], ids=["a blocking one", "none"])
def test_clients_that_are_none(client: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"redis\.asyncio\.Redis"):
        RedisWorld(client=client)


@pytest.mark.parametrize("path", ["3x", "zero"])
def test_a_database_is_a_number(path: str) -> None:
    """Redis-py took any other one for 0."""
    with pytest.raises(ConfigurationError, match=path):
        RedisWorld(f"redis://localhost:6379/{path}")
