"""A partition whose node hangs or fails keeps the others from nothing (contract, section 7)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

import pytest
import pytest_asyncio

from redis_world import RedisWorld, claims
from redis_world.connection import Connection
from redis_world.errors import MessageNotFoundError, ScriptError, WorldUnavailableError
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.at_work import at_work
from support.backends import Backend
from support.marks import slow
from support.queue_tools import content, wake
from support.until import until

PARTITIONS: Final = 3
TOPIC: Final = "__wkf_workflow_"
NAME: Final = f"{TOPIC}orders"
SOON: Final = 5.0
"""Seconds; far more than the second that a lost partition may cost, and less than a call takes."""


class Trouble:
    """Makes the calls to one partition hang, fail, or come late."""

    def __init__(self, world: RedisWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self._base = ""
        self._kind = ""
        self._script = ""
        self._over = asyncio.Event()
        self.met = 0
        call, execute = Connection.call, Connection.execute

        async def troubled_call(connection: Connection, name: str, keys: Any, args: Any) -> Any:
            mine = any(str(key).startswith(self._base) for key in keys.values())
            return await self._do(mine, name, lambda: call(connection, name, keys, args))

        async def troubled_execute(connection: Connection, *commands: Any) -> Any:
            mine = any(str(command[1]).startswith(self._base) for command in commands)
            return await self._do(mine, "execute", lambda: execute(connection, *commands))

        monkeypatch.setattr(Connection, "call", troubled_call)
        monkeypatch.setattr(Connection, "execute", troubled_execute)
        self._partitions = [*world.connection.partitions]

    def begin(self, kind: str, partition: int, *, script: str = "") -> None:
        self._kind, self._script = kind, script
        self._base = self._partitions[partition].base

    def end(self) -> None:
        """What hung goes on."""
        self._kind = ""
        self._over.set()

    async def _do(self, mine: bool, name: str, call: Callable[[], Awaitable[list[Any]]]) -> Any:
        if not mine or not self._kind or not name.startswith(self._script):
            return await call()
        self.met += 1
        match self._kind:
            case "fails":
                raise WorldUnavailableError("the node is away")
            case "is corrupt":
                raise ScriptError("WRONGTYPE")
            case "answers late":
                reply = await call()
                await self._over.wait()
                return reply
        await self._over.wait()
        return await call()


@pytest_asyncio.fixture
async def clocked() -> AsyncIterator[tuple[RedisWorld, ManualClock]]:
    library = ManualClock.library()
    async with RedisWorld(
        f"memory://lost-{time.monotonic_ns()}", partitions=PARTITIONS, library=library
    ) as world:
        yield world, await ManualClock(world).set()


@pytest.fixture
def wide(clocked: tuple[RedisWorld, ManualClock]) -> RedisWorld:
    return clocked[0]


@pytest.fixture
def trouble(wide: RedisWorld, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    trouble = Trouble(wide, monkeypatch)
    yield trouble
    trouble.end()


def run_ids(world: RedisWorld, of_each: int = 1) -> list[str]:
    """Ids of runs in each partition, in their order."""
    found: list[str] = []
    for number in range(PARTITIONS * of_each):
        while True:
            run_id = e.new_run_id()
            if world.connection.partitions.of(run_id).number == number % PARTITIONS:
                break
        found.append(run_id)
    return found


async def send_everywhere(world: RedisWorld) -> list[str]:
    runs = run_ids(world)
    for run_id in runs:
        await world.queue.send(NAME, wake(run_id))
    return runs


async def claimed(world: RedisWorld, count: int) -> set[str]:
    """The runs of so many messages, however many claims they take; each claim comes soon."""
    found: list[str] = []
    async with asyncio.timeout(SOON * (count + 1)):
        while len(found) < count:
            async with asyncio.timeout(SOON):
                found += [str(each.run_id) for each in await world.queue.claim(TOPIC)]
    assert len(found) == count
    return {*found}


WHERE = pytest.mark.parametrize("place", range(PARTITIONS))
KINDS = pytest.mark.parametrize("kind", ["hangs", slow("fails"), slow("is corrupt")])


@WHERE
@KINDS
@pytest.mark.parametrize("script", ["", "queue/peek", "queue/claim"], ids=["all", "look", "claim"])
async def test_a_claim_takes_what_the_others_have(
    wide: RedisWorld, trouble: Trouble, kind: str, place: int, script: str
) -> None:
    runs = await send_everywhere(wide)
    trouble.begin(kind, place, script=script)
    assert await claimed(wide, 2) == {*runs} - {runs[place]}
    # Nor is a later one held up, when messages come.
    more = await send_to(wide, {0, 1, 2} - {place})
    assert await claimed(wide, 2) == more
    assert trouble.met
    trouble.end()
    assert await claimed(wide, 1) == {runs[place]}


async def send_to(world: RedisWorld, places: set[int]) -> set[str]:
    runs = run_ids(world)
    for place in places:
        await world.queue.send(NAME, wake(runs[place]))
    return {runs[place] for place in places}


@KINDS
@pytest.mark.parametrize("script", ["", "queue/peek", "queue/claim"], ids=["all", "look", "claim"])
@pytest.mark.parametrize("concurrency", [1, slow(2), slow(32)])
async def test_a_worker_goes_on_with_the_others(
    wide: RedisWorld, trouble: Trouble, kind: str, script: str, concurrency: int
) -> None:
    handled: set[str] = set()

    async def handle(payload: Any, **_: object) -> None:
        await asyncio.sleep(0.005)
        handled.add(payload["runId"])

    async with at_work(wide, handle, concurrency=concurrency):
        await asyncio.sleep(0.05)
        trouble.begin(kind, 1, script=script)
        sent: set[str] = set()
        for count in (1, 1, 1, 6, 1, 1, 6, 1):
            runs = {run_id for _ in range(count) for run_id in await send_to(wide, {0, 2})}
            sent |= runs
            async with asyncio.timeout(SOON):
                await until(lambda: sent <= handled)  # noqa: B023 - waited for here
        trouble.end()
        (late,) = await send_to(wide, {1})
        async with asyncio.timeout(SOON):
            await until(lambda: late in handled)


@WHERE
async def test_an_empty_queue_is_looked_at_beside_a_partition_that_hangs(
    wide: RedisWorld, trouble: Trouble, place: int
) -> None:
    trouble.begin("hangs", place)
    for _ in range(3):
        async with asyncio.timeout(SOON):
            batch = await wide.queue.claim_batch(TOPIC)
        assert (batch.messages, batch.more) == ([], False)
    assert trouble.met == 1, "asked once, not once per claim"


@pytest.mark.parametrize("kind", ["", "hangs", "answers late"])
async def test_claims_at_a_time_share_no_message(
    wide: RedisWorld, trouble: Trouble, kind: str
) -> None:
    runs = run_ids(wide, 4)
    for run_id in runs:
        await wide.queue.send(NAME, wake(run_id))
    trouble.begin(kind, 1, script="queue/claim")
    found = [*await asyncio.gather(*(wide.queue.claim(TOPIC, limit=1) for _ in range(8)))]
    trouble.end()
    while sum(map(len, found)) < len(runs):
        async with asyncio.timeout(SOON):
            found.append(await wide.queue.claim(TOPIC))
    ids = [message.run_id for messages in found for message in messages]
    assert sorted(map(str, ids)) == sorted(runs)
    assert (await wide.queue.stats(TOPIC)).leased == len(runs)


async def test_looks_at_a_time_see_all_partitions(wide: RedisWorld) -> None:
    """Those who ask the same in one moment all get all of it."""
    runs = await send_everywhere(wide)
    batches = await asyncio.gather(*(wide.queue.claim_batch(TOPIC) for _ in range(4)))
    assert {m.run_id for batch in batches for m in batch.messages} == {*runs}


async def test_a_claim_raises_when_nothing_answers(
    wide: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> list[Any]:
        raise WorldUnavailableError("all nodes are away")

    monkeypatch.setattr(Connection, "call", fail)
    with pytest.raises(WorldUnavailableError, match="all nodes are away"):
        await wide.queue.claim(TOPIC)


@WHERE
async def test_what_a_late_claim_has_leased_comes_with_the_next_one(
    wide: RedisWorld, trouble: Trouble, place: int
) -> None:
    runs = await send_everywhere(wide)
    trouble.begin("answers late", place, script="queue/claim")
    assert await claimed(wide, 2) == {*runs} - {runs[place]}
    assert (await wide.queue.stats(TOPIC)).leased == 3, "leased to nobody yet"
    trouble.end()
    # One that is under way when it comes does not see it yet.
    message = (await wide.queue.claim(TOPIC) or await wide.queue.claim(TOPIC))[0]
    assert (message.run_id, message.attempt) == (runs[place], 1)
    assert await wide.queue.ack(message)
    await check_invariants(wide)


async def test_what_no_claim_fetches_is_released(
    wide: RedisWorld, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_RELEASE_SECONDS", 0.01)
    await send_everywhere(wide)
    trouble.begin("answers late", 1, script="queue/claim")
    await claimed(wide, 2)
    trouble.end()
    stats = await wide.queue.stats(TOPIC)
    while stats.leased > 2:
        await asyncio.sleep(0.01)
        stats = await wide.queue.stats(TOPIC)
    assert stats.ready == 1
    (message,) = await wide.queue.claim(TOPIC)
    assert message.attempt == 1, "a delivery that nobody saw does not count"
    await check_invariants(wide)


async def test_what_is_late_when_the_world_closes_is_released(
    wide: RedisWorld, trouble: Trouble
) -> None:
    await send_everywhere(wide)
    trouble.begin("answers late", 1, script="queue/claim")
    await claimed(wide, 2)
    closing = asyncio.create_task(wide.queue.release_claims())
    await asyncio.sleep(0)
    trouble.end()
    await closing
    assert (await wide.queue.stats(TOPIC)).leased == 2


async def test_closing_waits_once_for_a_server_that_takes_no_release(
    wide: RedisWorld, trouble: Trouble
) -> None:
    for _ in range(4):
        await send_everywhere(wide)
    trouble.begin("answers late", 1, script="queue/claim")
    await claimed(wide, 8)
    trouble.end()
    late = wide.queue._claims_of_this_loop()
    await until(lambda: any(late._spare.values()))
    trouble.begin("hangs", 1)
    async with asyncio.timeout(SOON):
        await wide.queue.release_claims()


async def test_what_a_worker_has_leased_too_late_is_no_other_workers(
    wide: RedisWorld, trouble: Trouble
) -> None:
    runs = await send_everywhere(wide)
    trouble.begin("answers late", 1, script="queue/claim")
    found = (await wide.queue.claim_batch(TOPIC, worker="a")).messages
    assert {message.run_id for message in found} == {runs[0], runs[2]}
    trouble.end()
    late = wide.queue._claims_of_this_loop()
    await until(lambda: any(late._spare.values()))
    assert (await wide.queue.claim_batch(TOPIC, worker="b")).messages == []
    (message,) = (await wide.queue.claim_batch(TOPIC, worker="a")).messages
    assert message.run_id == runs[1]


async def test_closing_does_not_wait_for_a_claim_that_hangs(
    wide: RedisWorld, trouble: Trouble
) -> None:
    await send_everywhere(wide)
    trouble.begin("hangs", 1)
    await claimed(wide, 2)
    async with asyncio.timeout(SOON):
        await wide.queue.release_claims()


async def test_what_a_cancelled_claim_has_leased_is_not_lost(
    wide: RedisWorld, trouble: Trouble
) -> None:
    runs = await send_everywhere(wide)
    trouble.begin("answers late", 1, script="queue/claim")
    claiming = asyncio.create_task(wide.queue.claim(TOPIC))
    await until(lambda: trouble.met > 0)
    claiming.cancel()
    await asyncio.wait({claiming})
    trouble.end()
    assert await claimed(wide, 3) == {*runs}


async def test_what_a_cancelled_claim_of_the_one_partition_has_leased_is_released(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend.world() as world:
        await world.queue.send(f"{TOPIC}orders", content(1))
        trouble = Trouble(world, monkeypatch)
        trouble.begin("answers late", 0, script="queue/claim")
        claiming = asyncio.create_task(world.queue.claim(TOPIC))
        await until(lambda: trouble.met > 0)
        while (await world.queue.stats(TOPIC)).leased == 0:  # noqa: ASYNC110 - another server
            await asyncio.sleep(0.01)
        claiming.cancel()
        await asyncio.wait({claiming})
        trouble.end()
        while (await world.queue.stats(TOPIC)).leased:  # noqa: ASYNC110 - another server
            await asyncio.sleep(0.01)
        (message,) = await world.queue.claim(TOPIC)
        assert message.attempt == 1


async def test_a_lost_partition_is_logged_once_and_so_is_its_return(
    wide: RedisWorld, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redis_world.outages")
    trouble.begin("fails", 2)
    for _ in range(5):
        await wide.queue.claim(TOPIC)
    trouble.end()
    for _ in range(2):
        await wide.queue.claim(TOPIC)
    lost, back = caplog.messages
    assert lost.startswith("lost 1 of 3 partitions (2) at memory://lost-")
    assert lost.endswith(": the node is away; claiming from the others")
    assert back.startswith("reconnected after ")


# -- everything else that asks all of them -------------------------------------------------


@WHERE
@pytest.mark.parametrize("kind", ["fails", "is corrupt"])
async def test_a_sweep_sees_to_the_others_and_then_raises(
    clocked: tuple[RedisWorld, ManualClock], trouble: Trouble, kind: str, place: int
) -> None:
    world, clock = clocked
    runs = run_ids(world)
    for run_id in runs:
        await e.write(world, run_id, e.run_created(), e.event("run_started"))
    await clock.advance(world.config.sweep_interval)
    trouble.begin(kind, place)
    with pytest.raises(WorldUnavailableError if kind == "fails" else ScriptError):
        await world.sweep()
    trouble.end()
    assert await claimed(world, 2) == {*runs} - {runs[place]}
    assert (await world.sweep())["woken_runs"] == 1


async def test_a_sweep_does_not_wait_with_the_others_for_one_that_hangs(
    clocked: tuple[RedisWorld, ManualClock],
    trouble: Trouble,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even where those that hang are as many as are swept at a time."""
    world, clock = clocked
    monkeypatch.setattr("redis_world.world._PARTITIONS_AT_ONCE", 1)
    runs = run_ids(world)
    for run_id in runs:
        await e.write(world, run_id, e.run_created(), e.event("run_started"))
    await clock.advance(world.config.sweep_interval)
    trouble.begin("hangs", 0)
    sweeping = asyncio.create_task(world.sweep())
    assert await claimed(world, 2) == {*runs[1:]}
    assert not sweeping.done()
    trouble.end()
    assert (await sweeping)["woken_runs"] == 3


async def test_the_janitor_makes_room_while_the_server_takes_no_messages(
    clocked: tuple[RedisWorld, ManualClock], trouble: Trouble
) -> None:
    world, clock = clocked
    old, live = run_ids(world, 2)[::PARTITIONS]
    await e.write(world, live, e.run_created(), e.event("run_started"))
    await e.write(world, old, e.run_created(), e.event("run_started"), e.run_ended("failed"))
    await clock.advance(30 * 24 * 3600)
    trouble.begin("fails", 0, script="queue/")
    with pytest.raises(WorldUnavailableError):
        await world.sweep()
    trouble.end()
    assert [run.run_id for run in (await world.runs.list()).data] == [live]


async def dead_letters(world: RedisWorld, runs: list[str]) -> list[str]:
    ids = [str(await world.queue.send(NAME, content(1, run_id))) for run_id in runs]
    while (await world.queue.stats(TOPIC)).dead < len(runs):
        for message in await world.queue.claim(TOPIC):
            await world.queue.retry(message, error="no", delay=0)
    return ids


@pytest_asyncio.fixture
async def dying(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisWorld]:
    url = f"memory://lost-{time.monotonic_ns()}"
    async with RedisWorld(url, partitions=PARTITIONS, max_failures=1) as world:
        yield world


@WHERE
async def test_dead_letters_of_the_others_are_redriven_and_purged(
    dying: RedisWorld, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    trouble = Trouble(dying, monkeypatch)
    ids = await dead_letters(dying, run_ids(dying))
    trouble.begin("fails", place)
    for number, message_id in enumerate(ids):
        if number != place:
            assert await dying.queue.redrive(message_id) == message_id
    with pytest.raises(WorldUnavailableError):
        await dying.queue.redrive(ids[place])
    with pytest.raises(WorldUnavailableError):
        await dying.queue.redrive("msg_01HZX0000000000000000000AA")
    trouble.end()
    with pytest.raises(MessageNotFoundError):
        await dying.queue.redrive("msg_01HZX0000000000000000000AA")
    assert (await dying.queue.stats(TOPIC)).dead == 1


@WHERE
@pytest.mark.parametrize("what", ["redrive_all", "purge_dead_letters"])
async def test_all_dead_letters_of_the_others(
    dying: RedisWorld, monkeypatch: pytest.MonkeyPatch, place: int, what: str
) -> None:
    trouble = Trouble(dying, monkeypatch)
    await dead_letters(dying, run_ids(dying))
    trouble.begin("fails", place)
    with pytest.raises(WorldUnavailableError, match="1 of 3 partitions"):
        await getattr(dying.queue, what)(TOPIC)
    trouble.end()
    assert (await dying.queue.stats(TOPIC)).dead == 1


@WHERE
async def test_runs_of_the_others_are_pruned(
    wide: RedisWorld, trouble: Trouble, place: int
) -> None:
    for run_id in run_ids(wide):
        await e.write(wide, run_id, e.run_created(), e.event("run_started"), e.run_ended("failed"))
    trouble.begin("fails", place)
    with pytest.raises(WorldUnavailableError, match="1 of 3 partitions"):
        await wide.prune(0)
    trouble.end()
    assert await wide.prune(0) == 1


LISTINGS: Final[dict[str, Callable[[RedisWorld], Awaitable[Any]]]] = {
    "runs.list": lambda world: world.runs.list(),
    "hooks.list": lambda world: world.hooks.list(),
    "hooks.get": lambda world: world.hooks.get("hook"),
    "queue.stats": lambda world: world.queue.stats(TOPIC),
    "queue.topics": lambda world: world.queue.topics(),
    "queue.dead_letters": lambda world: world.queue.dead_letters(TOPIC),
}


@WHERE
@pytest.mark.parametrize("listing", LISTINGS)
async def test_a_listing_is_whole_or_an_error(
    wide: RedisWorld, trouble: Trouble, listing: str, place: int
) -> None:
    await send_everywhere(wide)
    trouble.begin("fails", place)
    with pytest.raises(WorldUnavailableError):
        await LISTINGS[listing](wide)
