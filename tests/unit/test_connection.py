"""Connections: pipelines, recovery, loops, what stays open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import pytest
import pytest_asyncio
import redis
import redis.asyncio

from redis_world import RedisWorld
from redis_world.connection import SyncCaller, sender
from redis_world.connection.wires import WirePool
from redis_world.errors import (
    EntityConflictError,
    RunNotFoundError,
    ScriptError,
    WorldClosedError,
    WorldError,
    WorldUnavailableError,
)
from redis_world.lua import default_library
from redis_world.testing import Server, cutting_proxy
from support.backends import Backend, channels
from support.events import (
    event,
    log_types,
    new_run,
    new_run_id,
    run_created,
    step_created,
    write,
)
from support.monitor import monitor
from support.private_servers import ONE, private_server
from support.resp import Reply, fake_server, healthy
from support.until import until

TOPIC: Final = "__wkf_workflow_"


@pytest.fixture
def private() -> Iterator[Server]:
    """A server of the test's own, for what it changes of the server itself."""
    with private_server(ONE) as server:
        yield server


@pytest.fixture
def looker(real_backend: Backend) -> Iterator[redis.Redis]:
    """A client that looks at the server; its own connection is there from the beginning."""
    with contextlib.closing(real_backend.client()) as client:
        client.ping()
        yield client


def client_ids(client: redis.Redis) -> set[str]:
    return {each["id"] for each in client.client_list()}


# -- one tick, one pipeline ----------------------------------------------------------------


@pytest_asyncio.fixture
async def counted(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RedisWorld, list[int]]]:
    """A World, and how many commands each of its round trips has."""
    sizes: list[int] = []
    original = sender.round_trip

    async def round_trip(
        client: redis.asyncio.Redis, commands: Sequence[sender.Command], *packed: Any
    ) -> list[sender.Reply]:
        sizes.append(len(commands))
        return await original(client, commands, *packed)

    monkeypatch.setattr(sender, "round_trip", round_trip)
    client = ready_client(backend)
    async with RedisWorld(client=client, namespace=backend.namespace()) as world:
        sizes.clear()
        yield world, sizes
    await client.aclose()


def ready_client(backend: Backend, **options: Any) -> redis.asyncio.Redis:
    if backend.is_memory:
        from redis_world.memory import memory_client

        return memory_client(backend.url)
    return redis.asyncio.Redis.from_url(backend.url, **options)


async def test_calls_of_one_tick_share_a_pipeline(
    counted: tuple[RedisWorld, list[int]],
) -> None:
    world, sizes = counted
    run_id = await new_run(world)
    sizes.clear()
    runs = await asyncio.gather(*(world.runs.get(run_id) for _ in range(64)))
    assert {run.run_id for run in runs} == {run_id}
    assert sizes == [64]
    sizes.clear()
    mixed: list[Any] = [world.events.create(run_id, step_created(f"s{n}")) for n in range(10)]
    mixed += [world.steps.list(run_id), world.queue.stats(TOPIC), world.streams.list(run_id)]
    await asyncio.gather(*mixed)
    assert sizes == [13]


@pytest.mark.large
async def test_many_calls_need_few_round_trips(counted: tuple[RedisWorld, list[int]]) -> None:
    """A pipeline has an end: a tick of thousands of calls is no single huge reply."""
    world, sizes = counted
    created = await asyncio.gather(
        *(world.events.create(None, run_created()) for _ in range(1200))
    )
    ids = [result.run.run_id for result in created if result.run is not None]
    assert len(set(ids)) == 1200
    assert sum(sizes) == 1200
    assert len(sizes) <= 12
    runs = await world.runs.get_many(ids)
    assert [run.run_id for run in runs if run is not None] == ids


async def test_every_caller_gets_its_own_answer(world: RedisWorld) -> None:
    ids = [await new_run(world, workflowName=str(n)) for n in range(20)]
    missing = new_run_id()
    calls: list[Any] = []
    for n, run_id in enumerate(ids):
        calls += [world.runs.get(run_id), world.runs.get(missing)]
        calls += [world.events.create(run_id, step_created(str(n)))]
        calls += [world.events.create(run_id, step_created(str(n)))]
    answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    for n in range(20):
        run, absent, made, twice = answers[4 * n : 4 * n + 4]
        assert run.workflow_name == str(n)
        assert isinstance(absent, RunNotFoundError)
        assert made.step.step_id == str(n)
        assert isinstance(twice, EntityConflictError)


async def test_a_failing_command_is_its_callers_alone(backend: Backend, world: RedisWorld) -> None:
    """What the server itself refuses, here a key of another type, spoils no other's reply."""
    good, bad = await new_run(world), await new_run(world)
    keys = world.connection.partitions.of(bad).of_run(bad)
    with contextlib.closing(backend.client()) as client:
        client.delete(keys.attributes)
        client.set(keys.attributes, "no hash")
    answers = await asyncio.gather(
        world.runs.get(good), world.runs.get(bad), world.runs.get(good), return_exceptions=True
    )
    assert isinstance(answers[1], ScriptError)
    for answer in (answers[0], answers[2]):
        assert not isinstance(answer, BaseException)
        assert answer.run_id == good


async def test_connecting_reads_no_file(
    real_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py looks up its own version on disk, in the event loop, unless it is told."""
    async with real_backend.world() as world:
        await world.runs.list()
    looks: list[str] = []

    def version(name: str) -> str:
        looks.append(name)
        return "0"

    monkeypatch.setattr("importlib.metadata.version", version)
    async with real_backend.world() as world:
        await asyncio.gather(*(world.runs.list() for _ in range(30)))
    assert looks == []


async def test_the_first_calls_open_once(real_backend: Backend) -> None:
    with monitor(real_backend.url) as seen:
        world = real_backend.world()
        await asyncio.gather(*(world.runs.list() for _ in range(50)))
        counts = Counter(seen.commands())
        assert counts["TIME"] == 1
        # Which of them are there, and those that are not.
        assert 1 <= counts["SCRIPT"] <= 1 + len(list(default_library()))
        assert counts["EVALSHA"] == 50
        assert counts["EVAL"] == 1, "the namespace was pinned"
        await world.aclose()


# -- scripts that the server lost ----------------------------------------------------------


def flush_scripts(backend: Backend) -> None:
    with contextlib.closing(backend.client()) as client:
        client.script_flush()


async def test_scripts_that_the_server_lost_are_loaded_again(
    backend: Backend, world: RedisWorld
) -> None:
    run_id = await new_run(world, "pending")
    flush_scripts(backend)
    started = await world.events.create(run_id, event("run_started"))
    assert [each.event_type for each in started.events or ()] == ["run_created", "run_started"]
    flush_scripts(backend)
    calls: list[Any] = [world.events.create(run_id, step_created(f"s{n}")) for n in range(20)]
    calls += [world.runs.get(run_id), world.queue.send(f"{TOPIC}w", {"runId": run_id})]
    calls += [world.streams.write(run_id, "out", b"1")]
    await asyncio.gather(*calls)
    assert Counter(await log_types(world, run_id)) == {
        "run_created": 1,
        "run_started": 1,
        "step_created": 20,
    }
    assert (await world.streams.get_info(run_id, "out")).tail_index == 0
    assert (await world.queue.stats(TOPIC)).ready == 1


async def test_a_lost_script_is_loaded_once(real_backend: Backend) -> None:
    async with real_backend.world() as world:
        run_id = await new_run(world)
        flush_scripts(real_backend)
        with monitor(real_backend.url) as seen:
            await world.runs.get(run_id)
            # The first EVAL pins the namespace again: the server may have lost that, too.
            assert seen.commands() == ["EVALSHA", "EVAL", "EVAL"]
            await world.runs.get(run_id)
            assert seen.commands() == ["EVALSHA"]


async def test_a_blocking_caller_loads_scripts_too(backend: Backend, world: RedisWorld) -> None:
    await new_run(world)
    caller = world.connection.sync_caller()
    flush_scripts(backend)
    keys = {"wait_states": world.connection.partitions.of("wrun_1").of_run("wrun_1").wait_states}
    replies = caller.call_many("waits/get", [(keys, {"correlation_id": "w"})] * 3)
    assert replies == [[b"WAIT_NOT_FOUND"]] * 3
    caller.close()


# -- callers that give up ------------------------------------------------------------------


async def test_callers_that_give_up_disturb_nobody(world: RedisWorld) -> None:
    """At every point of a call's way."""
    ids = [await new_run(world, workflowName=str(n)) for n in range(8)]
    for turns in range(12):
        tasks = [asyncio.create_task(world.runs.get(run_id)) for run_id in ids]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for n, answer in enumerate(answers[1::2]):
            assert not isinstance(answer, BaseException), turns
            assert answer.workflow_name == str(2 * n + 1)
        assert (await world.runs.get(ids[0])).workflow_name == "0"


async def test_a_caller_that_gives_up_leaves_the_connection_clean(
    real_backend: Backend, looker: redis.Redis
) -> None:
    """Its reply comes later, and must not be taken for the next caller's."""
    async with real_backend.world(max_connections=1) as world:
        run_id = await new_run(world)
        (own,) = client_ids(looker) - {str(looker.client_id())}
        looker.client_pause(60_000, all=False)
        try:
            task = asyncio.create_task(world.events.create(run_id, step_created("given up")))
            await until(lambda: "b" in flags_of(looker, own))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            looker.client_unpause()
        for n in range(5):
            result = await world.events.create(run_id, step_created(f"s{n}"))
            assert result.step is not None
            assert result.step.step_id == f"s{n}"
        assert (await world.runs.get(run_id)).run_id == run_id
        # It was sent, so it may be done; but no more than once.
        steps = [step.step_id for step in (await world.steps.list(run_id)).data]
        assert steps.count("given up") <= 1
        assert client_ids(looker) == {own, str(looker.client_id())}


def flags_of(client: redis.Redis, client_id: str) -> str:
    found = [each["flags"] for each in client.client_list() if each["id"] == client_id]
    return found[0] if found else ""


# -- event loops ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_one_world_in_several_loops(backend: Backend) -> None:
    world = backend.world()

    async def first() -> str:
        run_id = await new_run(world)
        await world.runs.wait_for_terminal(run_id, timeout=0.01)
        return run_id

    async def second(run_id: str) -> None:
        assert (await world.runs.get(run_id)).run_id == run_id
        await world.streams.write(run_id, "out", b"1")
        await world.streams.close(run_id, "out")
        assert [chunk async for chunk in world.streams.read(run_id, "out")] == [b"1"]

    async def third(run_id: str) -> None:
        await second_run(run_id)
        await world.aclose()

    async def second_run(run_id: str) -> None:
        await write(world, run_id, event("run_completed", output=b""))
        assert (await world.runs.wait_for_terminal(run_id, timeout=60)).status == "completed"

    run_id = asyncio.run(first())
    asyncio.run(second(run_id))
    asyncio.run(third(run_id))
    gc.collect()


def test_a_loop_that_ends_behind_a_reader_leaves_no_subscription(backend: Backend) -> None:
    """Its end cancels all tasks, right when the reader's subscription is being given up."""
    world = backend.world()

    async def read() -> None:
        await world.streams.write("wrun_x", "out", b"1")
        await world.streams.close("wrun_x", "out")
        assert [chunk async for chunk in world.streams.read("wrun_x", "out")] == [b"1"]

    asyncio.run(read())
    with contextlib.closing(backend.client()) as client:
        asyncio.run(until(lambda: not channels(client, f"*{world.config.namespace}*")))


def test_loops_that_are_gone_leave_no_connection(
    real_backend: Backend, looker: redis.Redis
) -> None:
    world = real_backend.world()

    async def use() -> None:
        run_id = await new_run(world)
        await asyncio.gather(*(world.runs.get(run_id) for _ in range(10)))
        await world.runs.wait_for_terminal(run_id, timeout=0.01)

    async def close() -> None:
        await world.runs.list()
        await world.aclose()
        await until(lambda: client_ids(looker) == {str(looker.client_id())})

    for _ in range(3):
        asyncio.run(use())
    asyncio.run(close())


def test_a_loop_that_closes_its_world_leaves_it_usable(backend: Backend) -> None:
    world = backend.world()

    async def use() -> int:
        async with world:
            await new_run(world)
            return len((await world.runs.list()).data)

    assert [asyncio.run(use()) for _ in range(3)] == [1, 2, 3]


# -- the end -------------------------------------------------------------------------------


async def test_aclose_leaves_nothing_and_may_be_repeated(
    real_backend: Backend, looker: redis.Redis
) -> None:
    world = real_backend.world()
    await world.aclose()
    for _ in range(2):
        async with world:
            run_id = await new_run(world)
            # A subscriber and a live reader have connections of their own.
            await world.runs.wait_for_terminal(run_id, timeout=0.01)
            waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=0.05))
            await waiting
            assert len(client_ids(looker)) > 1
            await world.aclose()
            await world.aclose()
            await until(lambda: client_ids(looker) == {str(looker.client_id())})


async def test_the_end_right_behind_a_call(backend: Backend) -> None:
    """Its task is done, and the loop has had no turn yet to say so: that is not waited for."""
    for _ in range(3):
        world = backend.world()
        await asyncio.gather(*(new_run(world) for _ in range(20)))
        async with asyncio.timeout(20):
            await world.aclose()


async def test_calls_that_are_under_way_at_the_end(
    real_backend: Backend, looker: redis.Redis
) -> None:
    """They are answered or fail, and leave no connection behind."""
    for turns in range(6):
        world = real_backend.world()
        run_id = await new_run(world)
        tasks = [asyncio.create_task(world.runs.get(run_id)) for _ in range(4)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await world.aclose()
        for answer in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, WorldError), turns
            else:
                assert answer.run_id == run_id
        # A call that came to its turn after the end may have opened the World again.
        await world.aclose()
        await until(lambda: client_ids(looker) == {str(looker.client_id())})


async def test_a_world_that_is_closed_while_it_opens(
    real_backend: Backend, looker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is there only behind the end is closed, too."""
    connecting, go = asyncio.Event(), asyncio.Event()
    make = WirePool.make_connection

    def make_slowly(pool: WirePool) -> Any:
        connection: Any = make(pool)
        connect = connection.connect

        async def connect_slowly() -> None:
            await connect()
            connecting.set()
            await go.wait()

        connection.connect = connect_slowly
        return connection

    monkeypatch.setattr(WirePool, "make_connection", make_slowly)
    world = real_backend.world()
    call = asyncio.create_task(world.runs.get(new_run_id()))
    await connecting.wait()
    await world.aclose()
    go.set()
    with pytest.raises(WorldClosedError):
        await call
    await until(lambda: client_ids(looker) == {str(looker.client_id())})


async def test_scripts_that_are_missed_at_the_end(
    real_backend: Backend, looker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call pins its namespace again, and does not open the World for that."""
    sent, go = asyncio.Event(), asyncio.Event()
    world = real_backend.world()
    run_id = await new_run(world)
    send = sender.round_trip

    async def send_slowly(*args: Any) -> list[Any]:
        replies = await send(*args)
        sent.set()
        await go.wait()
        return replies

    looker.script_flush()
    monkeypatch.setattr(sender, "round_trip", send_slowly)
    call = asyncio.create_task(world.runs.get(run_id))
    await sent.wait()
    end = asyncio.create_task(world.aclose())
    await asyncio.sleep(0)
    go.set()
    assert (await call).run_id == run_id
    await end
    await until(lambda: client_ids(looker) == {str(looker.client_id())})
    assert not world.connection._states


async def test_a_subscription_that_is_given_up_does_not_hold_up_the_end(backend: Backend) -> None:
    """At every point of a waiter's way the World closes, and in no more than a moment."""
    for turns in range(40):
        world = backend.world()
        run_id = await new_run(world)
        waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=100))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(20):
            await world.aclose()


async def test_a_ready_client_is_its_owners(backend: Backend) -> None:
    client = ready_client(backend, max_connections=1)
    async with RedisWorld(client=client, namespace=backend.namespace()) as world:
        run_id = await new_run(world)
        own = await client.client_id()
        assert (await world.runs.get(run_id)).run_id == run_id
    assert await client.ping()
    assert await client.client_id() == own, "on the connection that it had"
    await client.aclose()


async def test_a_ready_client_of_another_database() -> None:
    """Subscribers and blocking callers go where the client goes."""
    with private_server(ONE, "--requirepass", "secret") as server:
        client = redis.asyncio.Redis(host=server.host, port=server.port, password="secret", db=3)
        async with RedisWorld(client=client) as world:
            run_id = await new_run(world)
            caller = world.connection.sync_caller()
            keys = world.connection.partitions.of(run_id).of_run(run_id)
            given = {"run": keys.run, "attributes": keys.attributes, "events": keys.events}
            ((status, *_),) = await asyncio.to_thread(
                caller.call_many, "runs/get", [(given, {"resolve_data": "all"})]
            )
            assert status == b"OK"
            caller.close()
            waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=60))
            await write(world, run_id, event("run_completed", output=b""))
            assert (await waiting).status == "completed"
        await client.aclose()


# -- servers that fail ---------------------------------------------------------------------


async def test_connections_that_the_server_cuts(
    real_backend: Backend, looker: redis.Redis
) -> None:
    async with real_backend.world() as world:
        run_id = await new_run(world)
        for _ in range(3):
            looker.client_kill_filter(_type="normal", skipme=True)
            assert (await world.runs.get(run_id)).run_id == run_id
            await write(world, run_id, event("run_started"))


async def test_a_call_whose_connection_is_cut_is_sent_again(
    real_backend: Backend, looker: redis.Redis
) -> None:
    """Nobody knows whether it was done: the script does, when it is asked again."""
    async with real_backend.world() as world:
        run_id = await new_run(world)
        (own,) = client_ids(looker) - {str(looker.client_id())}
        looker.client_pause(60_000, all=False)
        try:
            task = asyncio.create_task(world.events.create(run_id, step_created()))
            await until(lambda: "b" in flags_of(looker, own))
            looker.client_kill_filter(_id=own)
        finally:
            looker.client_unpause()
        step = (await task).step
        assert step is not None
        assert step.attempt == 0
        assert (await log_types(world, run_id)).count("step_created") == 1


async def test_a_loop_that_is_blocked_is_no_silence(
    real_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay computes for longer than a try may take; the reply lies there meanwhile."""
    monkeypatch.setattr(sender, "_FIRST_TIMEOUT", 0.1)
    async with real_backend.world() as world:
        run_id = await new_run(world)
        with monitor(real_backend.url) as seen:
            for seconds in (0.09, 0.11, 0.13, 0.16, 0.5):
                call = asyncio.create_task(world.runs.get(run_id))
                # Until it is on its way.
                for _ in range(6):
                    await asyncio.sleep(0)
                time.sleep(seconds)  # noqa: ASYNC251 - that is the point
                await call
            assert seen.commands() == ["EVALSHA"] * 5


async def test_a_try_whose_client_swallows_its_end(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends all the same, and is sent again."""
    monkeypatch.setattr(sender, "_FIRST_TIMEOUT", 0.05)
    send = sender.round_trip
    swallowed: list[BaseException] = []

    async def deaf_once(*args: Any) -> list[Any]:
        if not swallowed:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError as error:
                swallowed.append(error)
            await asyncio.sleep(60)
        return await send(*args)

    async with backend.world() as world:
        await world.open()
        monkeypatch.setattr(sender, "round_trip", deaf_once)
        async with asyncio.timeout(20):
            await new_run(world)
        assert swallowed
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_each_try_has_twice_the_time_of_the_one_before(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dropped connection is soon noticed, and a slow server gets its time at last."""
    seconds: list[float] = []
    send = sender.round_trip

    class Deadline(sender._Deadline):
        def __init__(self, given: float, *args: Any) -> None:
            seconds.append(given)
            super().__init__(given, *args)

    async def silent(*args: Any) -> list[Any]:
        if len(seconds) < 4:
            raise redis.exceptions.TimeoutError("no answer")
        return await send(*args)

    monkeypatch.setattr(sender, "_FIRST_PAUSE", 0.001)
    async with backend.world() as world:
        await world.open()
        monkeypatch.setattr(sender, "_Deadline", Deadline)
        monkeypatch.setattr(sender, "round_trip", silent)
        await new_run(world)
    assert seconds[:4] == [0.5, 1.0, 2.0, 4.0]


async def test_connections_that_go_without_a_word(
    real_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are given up long before the time that a command may take."""
    async with cutting_proxy(real_backend.url) as proxy:
        world = RedisWorld(proxy.url, namespace=real_backend.namespace(), socket_timeout=3600)
        run_id = await new_run(world)
        proxy.forget_connections()
        accepted = proxy.accepted
        await world.events.create(run_id, step_created())
        assert proxy.accepted > accepted
        assert (await log_types(world, run_id)).count("step_created") == 1
        await world.aclose()


@pytest.mark.without("memory", why="nothing comes slowly from the embedded server")
async def test_a_reply_that_comes_slowly_is_waited_for(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than a try may; asked for again, it would begin anew each time."""
    monkeypatch.setattr(sender, "_FIRST_TIMEOUT", 0.3)
    payload = b"x" * 3_000_000
    async with cutting_proxy(backend.url) as proxy:
        world = RedisWorld(proxy.url, namespace=backend.namespace(), retry_timeout=60)
        run_id = await new_run(world, input=payload)
        proxy.throttle(2_000_000)
        accepted = proxy.accepted
        with monitor(backend.url) as seen:
            assert (await world.runs.get(run_id)).input == payload
            assert seen.commands() == ["EVALSHA", "HGET"]
        assert proxy.accepted == accepted
        await world.aclose()


# Contract: 4.unavailable
async def test_a_server_that_is_gone() -> None:
    with private_server(ONE) as server:
        world = RedisWorld(server.url, retry_timeout=0.1)
        await new_run(world)
        waiting = asyncio.create_task(world.runs.wait_for_terminal(new_run_id(), timeout=0.01))
        with pytest.raises(RunNotFoundError):
            await waiting
    for _ in range(3):
        with pytest.raises(WorldUnavailableError):
            await world.runs.list()
    await world.aclose()


async def test_closing_waits_for_no_server() -> None:
    """A call that is tried again and again ends with its World."""
    with private_server(ONE) as server:
        world = RedisWorld(server.url, retry_timeout=600)
        await world.open()
    call = asyncio.create_task(world.runs.list())
    await asyncio.sleep(0)
    await world.aclose()
    with pytest.raises(WorldUnavailableError):
        await call


# Contract: 4.unavailable
async def test_a_server_that_starts_again() -> None:
    """Calls that were made meanwhile are answered by the new one."""
    with private_server(ONE) as server:
        url, port = server.url, server.port
        world = RedisWorld(url)
        await new_run(world)
    run_id = new_run_id()
    calls = [
        asyncio.create_task(world.events.create(run_id, run_created())),
        asyncio.create_task(world.runs.list()),
    ]
    await asyncio.sleep(0)
    with private_server(ONE, "--port", str(port)):
        await asyncio.gather(*calls)
        assert (await world.runs.get(run_id)).run_id == run_id
        await world.aclose()


# Contract: 4.unavailable
async def test_a_server_that_lost_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is told, and the namespace is pinned again, or others could open it otherwise."""
    with private_server(ONE) as server:
        url, port = server.url, server.port
        world = RedisWorld(url)
        run_id = await new_run(world)
    with private_server(ONE, "--port", str(port)):
        with pytest.raises(RunNotFoundError):
            await world.events.create(run_id, step_created())
        assert "has lost namespace 'world'" in caplog.text
        with contextlib.closing(redis.Redis.from_url(url)) as client:
            assert client.hget(world.connection.keys.meta, "partitions") == b"1"
        await world.aclose()


@pytest.mark.parametrize("protocol", [None, 3])
async def test_the_protocol_is_ours_whatever_a_ready_client_speaks(protocol: int | None) -> None:
    """In RESP3 a server may say something between two replies, and is asked by redis-py to."""
    async with fake_server(healthy) as server:
        client = redis.asyncio.Redis.from_url(server.url, protocol=protocol)
        async with RedisWorld(client=client) as world:
            await world.open()
        await client.aclose()
    assert server.commands
    assert [b"3"] not in [each[1:2] for each in server.commands if each[0].upper() == b"HELLO"]
    assert not [each for each in server.commands if b"MAINT_NOTIFICATIONS" in each]


# Contract: 4.unavailable
async def test_a_server_that_ends_before_its_keys_are_looked_through() -> None:
    with private_server(ONE) as server:
        world = RedisWorld(server.url)
        await new_run(world)
        assert [key async for key in world.connection.scan("*:meta")]
    with pytest.raises(WorldUnavailableError, match=r"127\.0\.0\.1.* can't be reached"):
        _ = [key async for key in world.connection.scan("*:meta")]
    await world.aclose()


# Contract: 4.unavailable
async def test_a_full_server(private: Server) -> None:
    with contextlib.closing(redis.Redis.from_url(private.url)) as client:
        async with RedisWorld(private.url) as world:
            run_id = await new_run(world)
            client.config_set("maxmemory", 1)
            for call in (
                lambda: world.events.create(run_id, step_created()),
                lambda: world.queue.send(f"{TOPIC}w", {}),
                lambda: world.streams.write(run_id, "out", b"1"),
            ):
                with pytest.raises(WorldUnavailableError, match="memory"):
                    await call()
            assert (await world.runs.get(run_id)).run_id == run_id, "it can still read"
            client.config_set("maxmemory", 0)
            await write(world, run_id, step_created())
            assert await log_types(world, run_id) == ["run_created", "run_started", "step_created"]


# Contract: 4.unavailable
async def test_a_server_that_became_a_replica(private: Server) -> None:
    with contextlib.closing(redis.Redis.from_url(private.url)) as client:
        async with (
            RedisWorld(private.url, retry_timeout=0.1) as hasty,
            RedisWorld(private.url) as patient,
        ):
            run_id = await new_run(patient)
            client.replicaof("127.0.0.1", 1)
            with pytest.raises(WorldUnavailableError):
                await hasty.events.create(run_id, step_created("a"))
            call = asyncio.create_task(patient.events.create(run_id, step_created("b")))
            await until(lambda: client.info("errorstats").get("errorstat_READONLY") is not None)
            client.replicaof("NO", "ONE")
            await call
            assert (await log_types(patient, run_id)).count("step_created") == 1


ERRORS: Final = (
    "OOM command not allowed when used memory > 'maxmemory'.",
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "NOREPLICAS Not enough good replicas to write.",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "UNBLOCKED force unblock from blocking operation, instance state changed",
)


# Contract: 4.unavailable
@pytest.mark.parametrize("text", ERRORS, ids=lambda text: text.split()[0])
async def test_what_a_server_says_when_it_can_not_now(text: str) -> None:
    failing = False

    def answer(command: list[bytes]) -> Reply:
        if failing and command[0].upper() in {b"EVALSHA", b"EVAL", b"XRANGE"}:
            return f"-{text}\r\n".encode()
        return healthy(command)

    async with fake_server(answer) as server:
        world = RedisWorld(server.url, retry_timeout=0)
        await world.open()
        failing = True
        with pytest.raises(WorldUnavailableError):
            await world.runs.list()
        with pytest.raises(WorldUnavailableError):
            await world.events.list(new_run_id())
        caller = world.connection.sync_caller()
        with pytest.raises(WorldUnavailableError):
            await asyncio.to_thread(caller.call_many, "waits/get", [WAITS_GET])
        caller.close()
        sent = server.names.count(b"EVALSHA")
        with pytest.raises(WorldUnavailableError):
            await world.runs.list()
        assert server.names.count(b"EVALSHA") == sent + 1, "it is not asked again and again"
        await world.aclose()


async def test_what_nobody_foresaw_is_no_passing_trouble() -> None:
    """A bug must not be repeated for ever: it is no WorldUnavailableError."""

    def answer(command: list[bytes]) -> Reply:
        if command[0].upper() == b"XRANGE":
            return b"-ERR a bug in a script\r\n"
        return healthy(command)

    async with fake_server(answer) as server:
        world = RedisWorld(server.url)
        with pytest.raises(ScriptError, match="a bug in a script"):
            await world.events.list(new_run_id())
        await world.aclose()


# -- blocking callers ----------------------------------------------------------------------

WAITS_GET: Final = ({"wait_states": "{none/0.0}:v1:none"}, {"correlation_id": "w"})


@contextlib.contextmanager
def blocking(world: RedisWorld) -> Iterator[SyncCaller]:
    caller = world.connection.sync_caller()
    try:
        yield caller
    finally:
        caller.close()


async def test_a_blocking_caller_works_while_the_loop_is_held(
    world: RedisWorld, backend: Backend
) -> None:
    """That is what it is for: heartbeats while a replay computes."""
    await world.queue.send(f"{TOPIC}w", {"n": 1})
    (message,) = await world.queue.claim(TOPIC)
    replies: list[list[Any]] = []
    with blocking(world) as caller:
        calls = [world.queue.extension(message, 60), world.queue.extension(message, 90)]

        def beat() -> None:
            replies.extend(caller.call_many("queue/extend", calls))

        thread = threading.Thread(target=beat)
        thread.start()
        thread.join()
    assert [reply[0] for reply in replies] == [b"OK", b"OK"]
    assert await world.queue.ack(message)


async def test_a_blocking_caller_from_a_ready_client(backend: Backend) -> None:
    client = ready_client(backend)
    async with RedisWorld(client=client, namespace=backend.namespace()) as world:
        with blocking(world) as caller:
            replies = await asyncio.to_thread(caller.call_many, "waits/get", [WAITS_GET])
            assert replies == [[b"WAIT_NOT_FOUND"]]
    await client.aclose()


async def test_a_blocking_caller_leaves_no_connection(
    real_backend: Backend, looker: redis.Redis
) -> None:
    async with real_backend.world() as world:
        before = client_ids(looker)
        with blocking(world) as caller:
            await asyncio.to_thread(caller.call_many, "waits/get", [WAITS_GET])
            assert len(client_ids(looker)) == len(before) + 1
        await until(lambda: client_ids(looker) == before)


async def test_a_blocking_caller_without_a_server() -> None:
    with private_server(ONE) as server:
        world = RedisWorld(server.url)
        await world.open()
        caller = world.connection.sync_caller()
        await asyncio.to_thread(caller.call_many, "waits/get", [WAITS_GET])
    with pytest.raises(WorldUnavailableError):
        await asyncio.to_thread(caller.call_many, "waits/get", [WAITS_GET])
    caller.close()
    await world.aclose()


# -- outages -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("redis://user:secret@db.example:7000/3", "db.example:7000"),
        ("redis://db.example", "db.example:6379"),
        ("unix:///run/redis.sock", "/run/redis.sock"),
        ("redis+cluster://a:1,b:2", "a:1,b:2"),
        ("valkey://user:secret@db.example", "db.example:6379"),
        ("valkeys://db.example:7000/3", "db.example:7000"),
        ("valkeys+cluster://a:1,b:2", "a:1,b:2"),
        ("valkey+sentinel://a:1,b:2/orders", "a:1,b:2"),
        ("rediss+cluster://a:1,b:2?ssl_ca_certs=/etc/ca.pem", "a:1,b:2"),
        ("memory://here", "memory://here"),
    ],
)
def test_an_outage_names_the_server(
    url: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also from a thread that has no event loop, as the heartbeat's."""
    outage = RedisWorld(url).connection.outage
    thread = threading.Thread(target=outage.failed, args=("heartbeat", OSError("refused")))
    thread.start()
    thread.join()
    assert caplog.messages == [f"lost Redis at {where}: refused"]


async def test_another_loop_waits_for_a_server_that_was_there(real_backend: Backend) -> None:
    """As calls of the first loop do: a threaded web server has a loop for each request."""
    namespace = real_backend.namespace()
    async with (
        cutting_proxy(real_backend.url) as proxy,
        RedisWorld(proxy.url, namespace=namespace) as world,
    ):
        proxy.cut()

        async def look() -> int:
            return len((await world.runs.list()).data)

        looking = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(look())))
        await until(lambda: len(world.connection._states) == 2)
        assert (await asyncio.wait({looking}, timeout=0.5))[1]
        proxy.restore()
        assert await looking == 0


async def test_a_server_that_was_never_there_is_not_waited_for() -> None:
    world = RedisWorld("redis://127.0.0.1:1")
    async with asyncio.timeout(10):
        with pytest.raises(WorldUnavailableError):
            await world.open()
