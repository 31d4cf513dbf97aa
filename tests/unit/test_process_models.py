"""One World per process, however the process looks: threads, loops, forks, copies of memory."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import multiprocessing
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import pytest
from redis.asyncio.connection import AbstractConnection

from redis_world import RedisWorld, connection
from redis_world.connection.wires import _made_by
from redis_world.errors import WorldClosedError, WorldUnavailableError
from redis_world.testing import check_invariants
from redis_world.worker import Worker
from support.backends import CLUSTER, Backend
from support.events import event, new_run, new_run_id, run_created, write
from support.marks import slow
from support.private_servers import ONE
from support.until import until, wait_until

T = TypeVar("T")

THREADS: Final = 8
STARTS: Final = 25
STALL: Final = 1.0
"""Seconds that no call takes, beside the threads."""
TOPIC: Final = "__threads_wkf_workflow_"
LONG: Final = 30.0

pytestmark = [
    pytest.mark.parametrize("backend", ["memory", ONE, CLUSTER], indirect=True),
    # The children do nothing that another thread's lock could stop: that is what is tested.
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    # Coverage, where it is measured: a child had the package before.
    pytest.mark.filterwarnings("ignore:Module redis_world was previously imported"),
]


async def life(world: RedisWorld) -> str:
    """A run with all kinds of calls, reads and waits."""
    run_id = await new_run(world)
    waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
    reading = asyncio.create_task(chunks_of(world, run_id))
    await asyncio.gather(*(world.streams.write(run_id, "out", b"%d" % n) for n in range(3)))
    await world.streams.close(run_id, "out")
    assert await reading == [b"0", b"1", b"2"]
    assert (await world.runs.get(run_id)).status == "running"
    await write(world, run_id, event("run_completed", output=b""))
    assert (await waiting).status == "completed"
    return run_id


async def chunks_of(world: RedisWorld, run_id: str) -> list[bytes]:
    return [chunk async for chunk in world.streams.read(run_id, "out")]


# -- the shapes of processes ---------------------------------------------------------------


def loops_one_after_another(world: RedisWorld) -> list[str]:
    return [asyncio.run(life(world)) for _ in range(3)]


def in_a_loop_that_is_only_closed(main: Coroutine[Any, Any, T]) -> T:
    """As code does that does not know `asyncio.run`: nothing else of the loop is ended."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def loops_that_are_only_closed(world: RedisWorld) -> list[str]:
    return [in_a_loop_that_is_only_closed(life(world)) for _ in range(3)]


def in_threads(use: Callable[[], list[str]]) -> list[str]:
    with ThreadPoolExecutor(THREADS) as pool:
        found = [pool.submit(use) for _ in range(THREADS)]
        return [run_id for each in found for run_id in each.result(LONG)]


def threads_with_a_loop_for_each_call(world: RedisWorld) -> list[str]:
    return in_threads(lambda: [asyncio.run(life(world)) for _ in range(3)])


def threads_with_a_loop_each(world: RedisWorld) -> list[str]:
    async def lives() -> list[str]:
        return [run_id for _ in range(3) for run_id in await both(life(world), life(world))]

    return in_threads(lambda: asyncio.run(lives()))


async def both(*lives: Coroutine[Any, Any, str]) -> list[str]:
    return await asyncio.gather(*lives)


def threads_whose_loops_are_only_closed(world: RedisWorld) -> list[str]:
    return in_threads(lambda: loops_that_are_only_closed(world))


def threads_beside_a_loop(world: RedisWorld) -> list[str]:
    async def main() -> list[str]:
        found = asyncio.to_thread(threads_with_a_loop_for_each_call, world)
        own = [await life(world) for _ in range(3)]
        return own + await found

    return asyncio.run(main())


SHAPES: Final = [
    loops_one_after_another,
    loops_that_are_only_closed,
    threads_with_a_loop_for_each_call,
    threads_with_a_loop_each,
    threads_whose_loops_are_only_closed,
    threads_beside_a_loop,
]


@pytest.mark.large
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_world_in_processes_of_every_shape(
    backend: Backend, shape: Callable[[RedisWorld], list[str]]
) -> None:
    world = backend.world()
    made = shape(world)
    assert len({*made}) == len(made)

    async def look() -> None:
        runs = await world.runs.get_many(made)
        assert Counter(run and run.status for run in runs) == {"completed": len(made)}
        await check_invariants(world)
        await world.aclose()

    asyncio.run(look())


@pytest.mark.large
async def test_threads_that_start_runs_beside_a_worker(backend: Backend) -> None:
    """Nothing fails, nothing stalls, and nothing is done twice."""
    world = backend.world()
    handled: Counter[str] = Counter()
    stalls: list[float] = []

    async def handler(payload: dict[str, Any], **_: Any) -> None:
        handled[payload["runId"]] += 1
        await world.runs.get(payload["runId"])

    async def start() -> str:
        result = await world.events.create(None, run_created())
        assert result.run is not None
        await world.queue.send(f"{TOPIC}w", {"runId": result.run.run_id})
        return result.run.run_id

    def starts() -> list[str]:
        found = []
        for _ in range(STARTS):
            begun = time.monotonic()
            found.append(asyncio.run(start()))
            stalls.append(time.monotonic() - begun)
        return found

    worker = Worker(world, {TOPIC: handler})
    working = asyncio.create_task(worker.run())
    made = await asyncio.to_thread(in_threads, starts)
    assert len({*made}) == THREADS * STARTS
    await until(lambda: len(handled) == len(made))
    worker.stop()
    await working
    assert handled == Counter(made)
    # Or what is no stall on a machine that is busy with other things.
    assert max(stalls) < max(STALL, 20 * statistics.median(stalls))
    await world.aclose()


async def test_a_stream_that_threads_write_loses_nothing(backend: Backend) -> None:
    """Each loop numbers its own writes: one that overtakes another's is no repetition."""
    world = backend.world()
    run_id = await new_run(world)

    async def write_all(thread: int) -> None:
        for n in range(STARTS):
            await world.streams.write(run_id, "out", b"%d/%d" % (thread, n))

    with ThreadPoolExecutor(THREADS) as pool:
        writing = [pool.submit(asyncio.run, write_all(thread)) for thread in range(THREADS)]
        for each in writing:
            await asyncio.to_thread(each.result, LONG)
    await world.streams.close(run_id, "out")
    chunks = await chunks_of(world, run_id)
    assert len(chunks) == len({*chunks}) == THREADS * STARTS
    await world.aclose()


# -- forks ---------------------------------------------------------------------------------


def forked(use: Callable[[], None]) -> multiprocessing.process.BaseProcess:
    child = multiprocessing.get_context("fork").Process(target=use)
    child.start()
    return child


def ended_well(child: multiprocessing.process.BaseProcess) -> bool:
    child.join(LONG)
    return child.exitcode == 0


def a_life(world: RedisWorld) -> None:
    asyncio.run(life(world))


def a_life_and_a_child(world: RedisWorld) -> None:
    asyncio.run(life(world))
    assert ended_well(forked(lambda: a_life(world)))
    asyncio.run(life(world))


def a_closed_world(world: RedisWorld) -> None:
    async def use() -> None:
        async with world:
            await life(world)

    asyncio.run(use())


CHILDREN: Final = [a_life, a_life_and_a_child, a_closed_world]


@pytest.fixture
def connections(backend: Backend) -> Iterator[Callable[[], set[str]]]:
    """The connections to the server, but for the one that looks at it.

    None where they can't be told from those of the client that looks: in a cluster.
    """
    if backend.is_memory or backend.is_cluster:
        yield set
        return
    with contextlib.closing(backend.client()) as client:
        own = str(client.client_id())
        yield lambda: {each["id"] for each in client.client_list() if each["id"] != own}


@pytest.mark.parametrize("use", CHILDREN, ids=lambda use: use.__name__)
async def test_a_child_costs_its_parent_nothing(
    backend: Backend,
    connections: Callable[[], set[str]],
    use: Callable[[RedisWorld], None],
) -> None:
    """It was forked from within a coroutine, and shares the loop's set of watched sockets."""
    world = backend.world()
    run_id = await new_run(world)
    waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
    await until(lambda: bool(world.connection.hub._present))
    before = connections()
    child = forked(lambda: use(world))
    for _ in range(20):
        await world.runs.get(run_id)
    assert await asyncio.to_thread(ended_well, child)
    for _ in range(20):
        await world.runs.get(run_id)
    # Each is still heard: none was given up and made anew.
    assert before <= connections()
    await write(world, run_id, event("run_completed", output=b""))
    assert (await waiting).status == "completed"
    assert before <= connections()
    await world.aclose()


@pytest.fixture
def beside(backend: Backend) -> Iterator[Callable[[Awaitable[Any]], Any]]:
    """A loop that runs in another thread; runs something there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def main(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    yield lambda awaitable: asyncio.run_coroutine_threadsafe(main(awaitable), loop).result(LONG)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.mark.large
@pytest.mark.parametrize("use", CHILDREN, ids=lambda use: use.__name__)
def test_a_child_of_a_thread_beside_the_loop(
    backend: Backend,
    beside: Callable[[Awaitable[Any]], Any],
    connections: Callable[[], set[str]],
    use: Callable[[RedisWorld], None],
) -> None:
    """Calls of the parent's loop are under way while it forks, over and over."""
    world = backend.world()
    run_id = beside(new_run(world))
    before = connections()
    is_over = threading.Event()

    async def call() -> int:
        calls = 0
        while not is_over.is_set():
            await world.runs.get(run_id)
            calls += 1
        return calls

    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(lambda: beside(call()))
        try:
            children = [forked(lambda: use(world)) for _ in range(3)]
            assert [ended_well(child) for child in children] == [True] * 3
        finally:
            is_over.set()
        assert calling.result(LONG) > 0
    assert before <= connections()
    beside(world.aclose())


# -- copies of one memory ------------------------------------------------------------------


COPIES: Final = Path(__file__).parents[1] / "support" / "copies.py"


def run_copies(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, COPIES, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_copies_of_one_memory_make_other_ids(backend: Backend) -> None:
    run_copies("ids")
    assert backend.namespaces == []


@pytest.mark.without("memory", why="copies of the process have no store in common")
def test_copies_of_one_memory_resume_a_hook_and_write_a_stream(backend: Backend) -> None:
    run_copies("hook", backend.url, backend.namespace())


# -- the clock -----------------------------------------------------------------------------


SPEAKERS: Final[dict[str, Callable[[RedisWorld], Awaitable[object]]]] = {
    "event": new_run,
    "claim": lambda world: world.queue.claim(TOPIC),
    "stats": lambda world: world.queue.stats(TOPIC),
}


@pytest.mark.parametrize("speaker", SPEAKERS)
@pytest.mark.parametrize("hours", [-30, 30])
async def test_the_servers_time_is_heard_from_every_answer(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, speaker: str, hours: int
) -> None:
    """The machine was suspended, so that its clock stood still meanwhile, or it runs too fast."""
    world = backend.world()
    await new_run(world)
    monkeypatch.setattr(
        connection,
        "time",
        SimpleNamespace(monotonic=lambda: time.monotonic() + hours * 3600),
    )
    assert abs(world.connection.server_time() / 1000 - time.time()) > 3600
    await SPEAKERS[speaker](world)
    assert abs(world.connection.server_time() / 1000 - time.time()) < STALL
    await world.aclose()


# -- the end -------------------------------------------------------------------------------


CALLS: Final[dict[str, Callable[[RedisWorld], Awaitable[object]]]] = {
    "open": lambda world: world.open(),
    "read": lambda world: world.runs.get(new_run_id()),
    "event": new_run,
    "send": lambda world: world.queue.send(f"{TOPIC}w", {"runId": "wrun_x"}),
    "claim": lambda world: world.queue.claim(TOPIC),
    "stream": lambda world: world.streams.write("wrun_x", "out", b"1"),
    "reader": lambda world: chunks_of(world, "wrun_x"),
    "wait": lambda world: world.runs.wait_for_terminal("wrun_x"),
    "sweep": lambda world: world.sweep(),
    "worker": lambda world: Worker(world, {TOPIC: print}).run(),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_world_that_was_closed_stays_closed(backend: Backend, call: str) -> None:
    world = backend.world()
    async with world:
        await new_run(world)
    for _ in range(2):
        with pytest.raises(WorldClosedError, match="closed"):
            await CALLS[call](world)
    assert not world.connection._states
    async with world:
        assert await life(world)


async def reader_of(world: RedisWorld, run_id: str) -> None:
    await chunks_of(world, run_id)


async def waiter_of(world: RedisWorld, run_id: str) -> None:
    await world.runs.wait_for_terminal(run_id, timeout=LONG)


async def hearer_of(world: RedisWorld, run_id: str) -> None:
    channel = world.connection.partitions.of(run_id).of_run(run_id).done
    async with world.connection.hub.subscribe(channel) as hints:
        while not await hints.wait(LONG):
            pass
        await hints.wait(LONG)


LEFT_BEHIND: Final = [reader_of, waiter_of, hearer_of]


@pytest.mark.parametrize("use", LEFT_BEHIND, ids=lambda use: use.__name__)
@pytest.mark.parametrize("place", ["here", "in another thread"])
async def test_who_is_left_behind_by_the_end_is_told(
    backend: Backend,
    connections: Callable[[], set[str]],
    use: Callable[[RedisWorld, str], Coroutine[Any, Any, None]],
    place: str,
) -> None:
    world = backend.world()
    run_id = await new_run(world)
    left = asyncio.create_task(use(world, run_id))
    await until(lambda: bool(world.connection.hub._present))
    if place == "here":
        await world.aclose()
    else:
        await asyncio.to_thread(lambda: asyncio.run(world.aclose()))
    async with asyncio.timeout(LONG / 2):
        with pytest.raises(WorldClosedError):
            await left
    await until(lambda: not connections())


@pytest.mark.parametrize("use", LEFT_BEHIND, ids=lambda use: use.__name__)
async def test_an_end_that_is_cancelled_closes_everything(
    backend: Backend, use: Callable[[RedisWorld, str], Coroutine[Any, Any, None]]
) -> None:
    """As `asyncio.run` does it with what another thread has told to end; at each of its turns."""
    turns, is_over = 0, False
    while not is_over:
        turns += 1
        world = backend.world()
        run_id = await new_run(world)
        left = asyncio.create_task(use(world, run_id))
        await until(partial(is_heard, world))
        opened = connections_of(world)
        assert opened
        assert all(map(is_connected, opened))
        ending = asyncio.create_task(world.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = ending.done()
        ending.cancel()
        ended, _ = await asyncio.wait({ending, left}, timeout=LONG)
        assert ended == {ending, left}, turns
        assert isinstance(left.exception(), WorldClosedError | WorldUnavailableError), turns
        await until(partial(all_closed, opened))
    assert turns > 2


def connections_of(world: RedisWorld) -> list[AbstractConnection]:
    (state,) = world.connection._states.values()
    clients = [*state.routes.clients, *state._subscribers]
    return [each for client in clients for each in _made_by(client.connection_pool)]


def is_connected(connection: AbstractConnection) -> bool:
    return connection._writer is not None


def all_closed(connections: list[AbstractConnection]) -> bool:
    return not any(map(is_connected, connections))


def is_heard(world: RedisWorld) -> bool:
    return bool(world.connection.hub._present)


async def test_the_end_is_that_of_all_threads(
    backend: Backend, connections: Callable[[], set[str]]
) -> None:
    """Their calls are answered or told so; each loop closes its own connections."""
    world = backend.world()
    run_id = await new_run(world)
    begun: set[int] = set()

    async def call() -> None:
        while True:
            await world.runs.get(run_id)
            begun.add(threading.get_ident())

    with ThreadPoolExecutor(THREADS) as pool:
        calling = [pool.submit(lambda: asyncio.run(call())) for _ in range(THREADS)]
        await until(lambda: len(begun) == THREADS)
        await world.aclose()
        for each in calling:
            with pytest.raises(WorldClosedError):
                await asyncio.to_thread(each.result, LONG)
    await until(lambda: not connections())


# redis-py's blocking client of a cluster, which looks at it, leaves a connection to the collector.
@pytest.mark.filterwarnings("error", "ignore:unclosed:ResourceWarning")
@pytest.mark.large
@pytest.mark.parametrize("turns", [0, 1, slow(2), slow(3)])
def test_an_end_that_meets_that_of_a_loop(
    backend: Backend,
    connections: Callable[[], set[str]],
    turns: int,
) -> None:
    """Another thread closes the World while a loop goes through its own end, at each moment."""
    for moment in range(3):
        world = backend.world()
        told: list[dict[str, Any]] = []
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(partial(note, told))
        loop.run_until_complete(left_over(world))

        def close(now: int, moment: int = moment, world: RedisWorld = world) -> None:
            if now == moment:
                in_another_thread(lambda: asyncio.run(world.aclose()))

        close(0)
        for _ in range(turns):
            loop.run_until_complete(asyncio.sleep(0))
        close(1)
        loop.run_until_complete(loop.shutdown_asyncgens())
        close(2)
        loop.run_until_complete(loop.shutdown_default_executor())
        assert not asyncio.all_tasks(loop), moment
        loop.close()
        assert not told, moment
        wait_until(lambda: not connections())
    # What nobody has waited for is told now.
    gc.collect()


def note(told: list[dict[str, Any]], _: object, context: dict[str, Any]) -> None:
    told.append(context)


def in_another_thread(call: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result(LONG)


async def left_over(world: RedisWorld) -> None:
    await new_run(world)


@pytest.mark.filterwarnings("error")
def test_what_closed_loops_leave_goes_with_the_next_one(
    backend: Backend, connections: Callable[[], set[str]]
) -> None:
    """Nobody could close it in time; it is not kept for ever either."""
    world = backend.world()
    for _ in range(5):
        in_a_loop_that_is_only_closed(left_over(world))

    async def look() -> None:
        await world.runs.list()
        assert len(world.connection._states) == 1
        await world.aclose()

    asyncio.run(look())
    wait_until(lambda: not connections())


def test_a_copied_world_is_no_concern_of_the_first(backend: Backend) -> None:
    """Several Worlds of one process each have their own end."""
    first = backend.world()
    second = backend.world(namespace=first.config.namespace)

    async def use() -> None:
        await asyncio.gather(life(first), life(second))
        await first.aclose()
        await life(second)
        await second.aclose()

    asyncio.run(use())
    assert copy.copy(first.config) == second.config
