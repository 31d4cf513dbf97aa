"""Which workers a message wakes: one that sleeps, and no more than there is work for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest
from fakeredis._helpers import SimpleError
from fakeredis._msgs import NO_PERMISSION_CHANNEL_ERROR
from fakeredis.commands_mixins.pubsub_mixin import PubSubCommandsMixin

from redis_world import RedisWorld
from redis_world.hints import Subscription
from redis_world.queue import Claim, FollowUp, Message, Queue
from redis_world.sleepers import hand_on
from redis_world.testing import ManualClock
from support.at_work import at_work
from support.backends import Backend
from support.queue_tools import NAME, TOPIC, claim_one, content, send, step
from support.until import until

# Hints are counted, in one partition, and none may be lost. On a cluster and behind Sentinels
# tests/chaos sees that messages come nevertheless.
pytestmark = pytest.mark.without("cluster", "sentinel", why="hints are counted one by one")

Clocked = tuple[RedisWorld, ManualClock]
Act = Callable[[RedisWorld, Message, float], Awaitable[object]]
HOUR: Final = 3600.0
LOOK: Final = 4.0
"""How long workers sleep here, and at least three quarters of it."""


async def claim(world: RedisWorld, worker: str, limit: int = 10, look: float = LOOK) -> Claim:
    return await world.queue.claim_batch(TOPIC, worker=worker, limit=limit, look=look, lease=20)


@contextlib.asynccontextmanager
async def asleep(
    world: RedisWorld, *workers: str, look: float = LOOK
) -> AsyncIterator[dict[str, Subscription]]:
    """Workers that have found nothing, and what wakes them."""
    async with contextlib.AsyncExitStack() as stack:
        hints = {}
        for worker in workers:
            channels = [k.worker_channel(TOPIC, worker) for k in world.connection.partitions]
            waiting = world.connection.hub.subscribe(*channels)
            hints[worker] = await stack.enter_async_context(waiting)
            assert (await claim(world, worker, look=look)).asleep
        await woken(hints)
        yield hints


async def woken(hints: dict[str, Subscription]) -> list[str]:
    """Those that were woken by what was done until now."""
    await asyncio.sleep(0.1)
    return [worker for worker, each in hints.items() if await each.wait(0.01)]


ACTS: Final[dict[str, Act]] = {
    "a send": lambda world, _, delay: world.queue.send(NAME, content(2), delay=delay),
    "a retry": lambda world, message, delay: world.queue.retry(message, error="no", delay=delay),
    "a message that goes on": lambda world, message, delay: world.queue.ack(
        message, follow_up=FollowUp(delay=delay)
    ),
    "a postponement": lambda world, message, delay: world.queue.postpone(message, delay),
    "a release": lambda world, message, _: world.queue.release(message),
}


# Contract: 7.handlers
@pytest.mark.parametrize("delay", [0.0, 2.9, 4.1, HOUR])
@pytest.mark.parametrize("name", ACTS)
async def test_it_wakes_one_worker_unless_one_looks_before_it_is_due(
    clocked: Clocked, name: str, delay: float
) -> None:
    world, _ = clocked
    await send(world, content(1))
    message = await claim_one(world)
    async with asleep(world, "x", "y") as hints:
        await ACTS[name](world, message, delay)
        is_for_now = name in ("a postponement", "a release")
        assert len(await woken(hints)) == (is_for_now or delay < LOOK * 0.75)


async def test_a_burst_wakes_as_many_as_it_has_messages(clocked: Clocked) -> None:
    world, _ = clocked
    async with asleep(world, *(f"w{number}" for number in range(20))) as hints:
        await asyncio.gather(*(send(world, content(number)) for number in range(7)))
        assert len(await woken(hints)) == 7
        # Until they have looked nothing wakes these again.
        await asyncio.gather(*(send(world, content(number)) for number in range(7, 30)))
        assert len(await woken(hints)) == 13


async def test_a_postponed_message_wakes_another_worker(clocked: Clocked) -> None:
    world, _ = clocked
    await send(world, step("a"))
    (message,) = (await claim(world, "y", limit=1)).messages
    # The one that postpones it is the first that would be woken.
    async with asleep(world, "x") as hints, asleep(world, "y", look=1.0) as others:
        await world.queue.postpone(message, 10)
        assert await woken(hints) == ["x"]
        assert await woken(others) == []
        # It was not forgotten over that.
        await send(world, step("b"))
        assert await woken(others) == ["y"]


# Contract: 7.postpone
@pytest.mark.large
async def test_a_postponed_message_wakes_only_who_may_have_it(clocked: Clocked) -> None:
    """Whoever has declined it may be the one that looks first."""
    world, _ = clocked
    await send(world, step("a"))
    names = [f"w{number}" for number in range(20)]
    (message,) = (await claim(world, "first", limit=1)).messages
    async with asleep(world, *names, look=15) as hints:
        left = {*names}
        while left:
            await world.queue.postpone(message, 3600)
            (name,) = await woken(hints)
            left.remove(name)
            # From now on it sleeps in front of all others.
            (message,) = (await claim(world, name, limit=1)).messages
            assert (await claim(world, name, look=1.0)).asleep


# Contract: 7.postpone
async def test_a_postponed_message_is_handed_on_to_who_may_have_it(clocked: Clocked) -> None:
    """By one that has no room, although one that has declined it would look first."""
    world, _ = clocked
    await send(world, step("a"))
    (message,) = (await claim(world, "old", limit=1)).messages
    async with (
        asleep(world, "new", look=12) as able,
        asleep(world, "full", look=8) as full,
        asleep(world, "old", look=4) as old,
    ):
        await world.queue.postpone(message, HOUR)
        assert (await woken(full), await woken(able), await woken(old)) == (["full"], [], [])
        await hand_on(world.connection, TOPIC, 0, "full")
        assert (await woken(able), await woken(old)) == (["new"], [])


# Contract: 7.postpone
async def test_who_takes_one_of_two_postponed_messages_wakes_another(clocked: Clocked) -> None:
    """And not one that has declined the one that is left, although it would look first."""
    world, _ = clocked
    await send(world, step("a"))
    await send(world, step("b"))
    messages = (await claim(world, "old", limit=2)).messages
    names = ("new1", "new2", "new3")
    async with asleep(world, *names, look=8) as able, asleep(world, "old", look=4) as old:
        for message in messages:
            await world.queue.postpone(message, HOUR)
        # These two are slow.
        assert len(slow := await woken(able)) == 2
        assert len((await claim(world, "busy", limit=1)).messages) == 1
        assert await woken(able) == [*({*names} - {*slow})]
        assert await woken(old) == []


async def test_who_leaves_something_wakes_another_worker(clocked: Clocked) -> None:
    """Messages of which nobody has told: here those of a worker that is gone."""
    world, clock = clocked
    for number in range(3):
        await send(world, step(f"s{number}"))
    await claim(world, "gone", limit=3)
    async with asleep(world, "x", "y", look=HOUR) as hints:
        await clock.advance(21)
        assert len((await claim(world, "z", limit=1)).messages) == 1
        (first,) = await woken(hints)
        assert len((await claim(world, first, limit=1)).messages) == 1
        (second,) = await woken(hints)
        assert second != first
        assert len((await claim(world, second, limit=1)).messages) == 1
        assert await woken(hints) == []


async def test_a_sweep_that_frees_leases_wakes_a_worker(clocked: Clocked) -> None:
    world, clock = clocked
    await send(world, content(1))
    await claim(world, "gone", limit=1)
    async with asleep(world, "x", look=HOUR) as hints:
        await clock.advance(21)
        await world.sweep()
        assert await woken(hints) == ["x"]


async def test_one_whose_look_is_overdue_is_passed_over(clocked: Clocked) -> None:
    world, clock = clocked
    async with asleep(world, "gone") as dead:
        await clock.advance(LOOK + 1.1)
        async with asleep(world, "x") as hints:
            await send(world, content(1))
            assert await woken(hints) == ["x"]
        assert await woken(dead) == []


async def test_any_number_of_dead_ones_is_passed_over(backend: Backend) -> None:
    """At once, in a bounded number of commands."""
    async with backend.world(library=ManualClock.library()) as world:
        clock = await ManualClock(world).set()
        key = world.connection.keys.topic(TOPIC, "sleepers")
        dead = [each for number in range(2500) for each in (number, f"w{number}")]
        await world.connection.execute(("ZADD", key, *dead))
        async with asleep(world, "x", look=HOUR) as hints:
            await clock.advance(10)
            await send(world, step("s"))
            assert await woken(hints) == ["x"]
        assert (await world.connection.execute(("ZCARD", key)))[0] == 0


async def test_one_that_stops_is_woken_no_more(clocked: Clocked) -> None:
    world, _ = clocked
    async with asleep(world, "x", "y") as hints:
        await hand_on(world.connection, TOPIC, 0, "x")
        for number in range(3):
            await send(world, content(number))
        assert await woken(hints) == ["y"]


async def test_what_one_has_no_room_for_is_handed_on(clocked: Clocked) -> None:
    world, _ = clocked
    async with asleep(world, "x", "y", "z") as hints:
        await hand_on(world.connection, TOPIC, 0, "x")
        assert await woken(hints) == []
        await send(world, step("a"))
        first = await woken(hints)
        await hand_on(world.connection, TOPIC, 0, *first)
        second = await woken(hints)
        assert len({*first, *second}) == 2


async def test_a_postponed_message_is_handed_on(clocked: Clocked) -> None:
    """Though it is not due yet: others may have it before its time."""
    world, _ = clocked
    await send(world, step("a"))
    (message,) = (await claim(world, "y", limit=1)).messages
    async with asleep(world, "x", "z") as hints:
        await world.queue.postpone(message, HOUR)
        first = await woken(hints)
        await hand_on(world.connection, TOPIC, 0, *first)
        assert len({*first, *await woken(hints)}) == 2


# -- who takes care of what comes later ------------------------------------------------------


async def test_one_of_many_looks_when_a_message_is_due(clocked: Clocked) -> None:
    """The others sleep on: who looks first before it is due sees to it."""
    world, clock = clocked
    await send(world, content(1), delay=10)
    waits: list[float] = []
    for number in range(20):
        result = await claim(world, f"w{number}", look=20)
        waits += result.asleep.values()
    waits.sort()
    assert (waits[0], waits[1] >= 15) == (10.0, True)
    # One that would be woken for it looks by itself.
    await clock.advance(9)
    assert list((await claim(world, "w0", look=20)).asleep.values()) == [1.0]


# Contract: 7.postpone
async def test_one_that_is_alone_looks_when_it_is_due_again(clocked: Clocked) -> None:
    world, clock = clocked
    await send(world, step("a"))
    for turn in range(3):
        (message,) = (await claim(world, "x", look=20)).messages
        async with asleep(world, "x", look=20) as hints:
            await world.queue.postpone(message, 0.3)
            assert await woken(hints) == ["x"]
            assert (await claim(world, "x", look=20)).asleep == {0: 0.3}, turn
            await clock.advance(0.3)


@pytest.mark.parametrize("act", ["is filled", "stops"])
async def test_a_look_that_is_not_made_is_another_ones(clocked: Clocked, act: str) -> None:
    """It was to look when the message is due; the others rely on it."""
    world, clock = clocked
    await send(world, step("a"), delay=10)
    assert (await claim(world, "x", look=20)).asleep == {0: 10.0}
    async with asleep(world, "y", "z", look=60) as hints:
        await clock.advance(5)
        if act == "stops":
            await hand_on(world.connection, TOPIC, 0, "x")
        else:
            await send(world, step("b"))
            await woken(hints)
            assert len((await claim(world, "x", limit=1, look=20)).messages) == 1
        (told,) = await woken(hints)
        assert (await claim(world, told, look=60)).asleep == {0: 5.0}


async def test_with_room_for_no_more_it_does_not_sleep(world: RedisWorld) -> None:
    for number in range(3):
        await send(world, step(f"s{number}"))
    assert not (await claim(world, "x", limit=2)).asleep
    last = await claim(world, "x", limit=2)
    assert len(last.messages) == 1
    assert [*last.asleep] == [0]
    assert LOOK * 0.75 <= last.asleep[0] <= LOOK
    assert not (await world.queue.claim_batch(TOPIC)).asleep


# -- workers ---------------------------------------------------------------------------------


class Claims:
    """How many messages each claim of this process brings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        self.asked = 0
        claim_batch = Queue.claim_batch

        async def counted(queue: Queue, *args: Any, **options: Any) -> Claim:
            self.asked += 1
            try:
                claim = await claim_batch(queue, *args, **options)
                self.counts.append(len(claim.messages))
                return claim
            finally:
                self.asked -= 1

        monkeypatch.setattr(Queue, "claim_batch", counted)

    async def begin(self) -> None:
        """Count from now on: the server has answered claims that are not counted yet."""
        await until(lambda: not self.asked)
        self.counts.clear()


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    return Claims(monkeypatch)


@pytest.fixture
def _long_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself: what is handled was told."""
    monkeypatch.setattr("redis_world.worker.running.look_seconds", lambda _: 10 * HOUR)


async def handle(payload: Any, **_: object) -> None:
    """Nothing to do."""


async def sleeping(world: RedisWorld, partition: int = 0) -> int:
    key = world.connection.partitions[partition].topic(TOPIC, "sleepers")
    (count,) = await world.connection.execute(("ZCARD", key))
    return int(count)


async def all_asleep(world: RedisWorld, count: int) -> None:
    """Wait until so many workers sleep in each partition."""
    for keys in world.connection.partitions:
        while await sleeping(world, keys.number) != count:  # noqa: ASYNC110 - of the server
            await asyncio.sleep(0.02)


async def nothing_is_left(world: RedisWorld) -> None:
    while (stats := await world.queue.stats(TOPIC)) and stats.ready + stats.leased:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_worker_that_finds_nothing_sleeps_in_each_partition(
    backend: Backend, partitions: int
) -> None:
    async with backend.world(partitions=partitions) as world:
        found = await claim(world, "x")
        assert len(found.asleep) == partitions
        assert [await sleeping(world, number) for number in range(partitions)] == [1] * partitions


@pytest.mark.usefixtures("_long_looks")
@pytest.mark.parametrize("partitions", [1, 4])
async def test_a_message_is_one_claim_of_one_of_many_workers(
    backend: Backend, claims: Claims, partitions: int
) -> None:
    async with backend.world(partitions=partitions) as world, contextlib.AsyncExitStack() as stack:
        for _ in range(12):
            await stack.enter_async_context(at_work(world, handle))
        await all_asleep(world, 12)
        await claims.begin()
        for number in range(40):
            await send(world, step(f"s{number}", f"wrun_{number}"))
        await nothing_is_left(world)
        # A worker may find that another one has been faster with a message beside its own.
        assert sum(claims.counts) == 40
        assert len(claims.counts) <= 42


@pytest.mark.usefixtures("_long_looks")
async def test_no_worker_claims_for_what_is_due_in_a_day(
    world: RedisWorld, claims: Claims
) -> None:
    handled: list[object] = []

    async def note(payload: Any, **_: object) -> None:
        handled.append(payload)

    async with at_work(world, note):
        await all_asleep(world, 1)
        await claims.begin()
        for number in range(20):
            await send(world, content(number), delay=24 * HOUR)
        await send(world, content(100))
        await until(lambda: bool(handled))
        assert claims.counts == [1]


async def test_a_message_comes_on_time_without_a_word(world: RedisWorld) -> None:
    """The worker that looks next finds it, and sleeps until it is due."""
    came: list[float] = []

    async def note(_: Any, **__: object) -> None:
        came.append(time.monotonic())

    async with at_work(world, note):
        await all_asleep(world, 1)
        sent = time.monotonic()
        await send(world, content(1), delay=1.5)
        await until(lambda: bool(came))
    # The delay is counted from the server's clock in whole milliseconds.
    assert 1.49 <= came[0] - sent < 2.5


@pytest.mark.usefixtures("_long_looks")
async def test_a_full_worker_hands_on_what_wakes_it(backend: Backend) -> None:
    """It sleeps in one partition, and then takes all that it has room for from another one."""
    async with backend.world(partitions=2) as world:
        gate = asyncio.Event()
        handled: list[str] = []

        async def wait(payload: Any, **_: object) -> None:
            handled.append(payload["runId"])
            await gate.wait()

        def run_in(partition: int) -> str:
            number = 0
            while world.connection.partitions.of(f"wrun_{number}").number != partition:
                number += 1
            return f"wrun_{number}"

        async with at_work(world, wait, concurrency=1):
            await all_asleep(world, 1)
            await send(world, step("a", run_in(0)))
            await until(lambda: len(handled) == 1)
            async with at_work(world, wait, concurrency=1):
                # One is asleep in both, the other in the second one alone, and it is woken first.
                while not await sleeping(world, 0):  # noqa: ASYNC110 - of the server
                    await asyncio.sleep(0.02)
                await send(world, step("b", run_in(1)))
                await until(lambda: len(handled) == 2)
                gate.set()
                await nothing_is_left(world)


@pytest.mark.usefixtures("_long_looks")
async def test_a_worker_that_becomes_free_claims_by_itself(world: RedisWorld) -> None:
    handled: list[object] = []

    async def note(payload: Any, **_: object) -> None:
        await asyncio.sleep(0.01)
        handled.append(payload)

    for number in range(20):
        await send(world, step(f"s{number}"))
    async with at_work(world, note, concurrency=3):
        await until(lambda: len(handled) == 20)


@pytest.mark.usefixtures("_long_looks")
async def test_messages_go_to_those_that_are_left(world: RedisWorld) -> None:
    handled: list[object] = []

    async def note(payload: Any, **_: object) -> None:
        handled.append(payload)

    async with at_work(world, note):
        async with at_work(world, handle):
            await all_asleep(world, 2)
        await all_asleep(world, 1)
        for number in range(5):
            await send(world, content(number))
            await until(lambda: len(handled) == number + 1)  # noqa: B023 - waited for here


async def test_a_dead_sleeper_costs_one_look_of_another_worker(world: RedisWorld) -> None:
    came = asyncio.Event()

    async def note(_: Any, **__: object) -> None:
        came.set()

    async with at_work(world, note):
        await all_asleep(world, 1)
        # It would be woken first, and nobody hears.
        assert (await claim(world, "gone", look=1.0)).asleep
        sent = time.monotonic()
        await send(world, content(1))
        await asyncio.wait_for(came.wait(), 20)
    assert time.monotonic() - sent < 4.0


@contextlib.asynccontextmanager
async def without_channels(
    backend: Backend, world: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RedisWorld]:
    """The World of a user that has no rights on channels, beside another one."""
    namespace = world.config.namespace
    if backend.is_memory:

        def refuse(*_: object) -> int:
            raise SimpleError(NO_PERMISSION_CHANNEL_ERROR)

        with monkeypatch.context() as patch:
            patch.setattr(PubSubCommandsMixin, "publish", refuse)
            yield world
        return
    with contextlib.closing(backend.client()) as client:
        rule = ("on", ">secret", "~*", "+@all", "resetchannels")
        client.execute_command("ACL", "SETUSER", "mute", *rule)  # type: ignore[no-untyped-call]
        try:
            url = backend.url.replace("redis://", "redis://mute:secret@")
            async with RedisWorld(url, namespace=namespace) as mute:
                yield mute
        finally:
            client.execute_command("ACL", "DELUSER", "mute")  # type: ignore[no-untyped-call]


async def test_who_may_not_publish_keeps_no_other_from_waking_a_worker(
    backend: Backend, world: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own messages wait until the worker looks."""
    async with asleep(world, "x", look=HOUR) as hints:
        async with without_channels(backend, world, monkeypatch) as mute:
            await send(mute, step("a"))
            assert await woken(hints) == []
        await send(world, step("b"))
        assert await woken(hints) == ["x"]
        assert len((await claim(world, "x")).messages) == 2
