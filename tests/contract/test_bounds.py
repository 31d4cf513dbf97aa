"""What takes several scripts, since one would take too long, is still one whole answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import pytest

from redis_world import RedisWorld, cleaning, paging, payloads
from redis_world.connection import Connection
from redis_world.errors import HookNotFoundError, WorldUnavailableError
from redis_world.events import log
from redis_world.models import Page
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.metering import size_of
from support.queue_tools import TOPIC, claim_one, send

pytestmark = pytest.mark.large

Clocked = tuple[RedisWorld, ManualClock]
DAY: Final = timedelta(days=1)
LARGE: Final = 600_000
"""Bytes of a payload of which two are more than one script reads."""
AT_ONCE: Final = 50


async def in_turns(acts: Sequence[Awaitable[Any]]) -> None:
    for first in range(0, len(acts), AT_ONCE):
        await asyncio.gather(*acts[first : first + AT_ONCE])


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The scripts that Worlds call from now on, and how many bytes they answer."""
    found: list[tuple[str, int]] = []
    original = Connection.call

    async def call(
        self: Connection, name: str, keys: Mapping[str, str | bytes], args: Mapping[str, Any]
    ) -> list[Any]:
        reply = await original(self, name, keys, args)
        found.append((name, size_of(reply)))
        return reply

    monkeypatch.setattr(Connection, "call", call)
    return found


def sizes_of_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes plain commands answer from now on, each round trip."""
    found: list[int] = []
    original = Connection.execute

    async def execute(self: Connection, *commands: Any) -> list[Any]:
        replies = await original(self, *commands)
        found.append(size_of(replies))
        return replies

    monkeypatch.setattr(Connection, "execute", execute)
    return found


# -- hooks -----------------------------------------------------------------------------------


# Contract: 6.pages, 6.hooks
async def test_hooks_of_a_large_run_that_is_over_hide_none(clocked: Clocked) -> None:
    """The janitor has not come yet: most of its hooks are there, and no longer listed."""
    world, clock = clocked
    first, large, last = [await e.new_run(world) for _ in range(3)]
    await e.write(world, first, e.hook_created("a", "a"))
    kept = e.hook_created("k", "k", tokenRetentionUntil=clock.now + DAY)
    dead = [e.hook_created(f"d{n}", f"d{n}") for n in range(400)]
    await in_turns([e.write(world, large, each) for each in dead[:200]])
    await e.write(world, large, kept)
    await in_turns([e.write(world, large, each) for each in dead[200:]])
    await e.write(world, last, e.hook_created("z", "z"))
    await e.write(world, large, e.run_ended("completed"))
    for run_id, expected in ((None, ["a", "k", "z"]), (large, ["k"]), (first, ["a"])):
        for order in ("asc", "desc"):
            names = expected if order == "asc" else expected[::-1]
            for limit in (1, 2, 3, 1000):
                assert await pages(world, run_id, order, limit) == [
                    names[start : start + limit] for start in range(0, len(names), limit)
                ]
    await clock.advance(2 * DAY)
    assert await pages(world, large, "asc", 1) == []
    assert await pages(world, None, "desc", 1) == [["z"], ["a"]]


async def pages(world: RedisWorld, run_id: str | None, order: Any, limit: int) -> list[list[str]]:
    """All pages of hooks, none of which is empty."""
    found: list[list[str]] = []
    cursor = None
    while True:
        page = await world.hooks.list(run_id, sort_order=order, limit=limit, cursor=cursor)
        if not page.data:
            assert (page.has_more, page.cursor, found) == (False, None, [])
            return found
        found.append([hook.hook_id for hook in page.data])
        cursor = page.cursor
        if not page.has_more:
            return found


# Contract: 6.hooks
async def test_the_newest_live_hook_of_an_id_is_found_behind_any_number_of_others(
    clocked: Clocked,
) -> None:
    """All of one millisecond, and then some of the next."""
    world, clock = clocked
    run_ids = sorted([await e.new_run(world) for _ in range(130)])
    until = clock.now + DAY
    for some in (run_ids[:80], run_ids[80:]):
        hooks = [
            e.write(world, run_id, e.hook_created("same", run_id, tokenRetentionUntil=until))
            for run_id in some
        ]
        await in_turns(hooks)
        await clock.advance(timedelta(milliseconds=1))
    await in_turns([e.write(world, each, e.run_ended("completed")) for each in run_ids[1:]])
    assert (await world.hooks.get("same")).run_id == run_ids[-1]
    await clock.advance(2 * DAY)
    assert (await world.hooks.get("same")).run_id == run_ids[0]
    await e.write(world, run_ids[0], e.run_ended("completed"))
    with pytest.raises(HookNotFoundError):
        await world.hooks.get("same")


# -- streams ---------------------------------------------------------------------------------


# Contract: 8.listing
async def test_all_streams_are_listed_however_many(
    world: RedisWorld, replies: list[tuple[str, int]]
) -> None:
    run_id = e.new_run_id()
    names = sorted(f"s{number}" for number in range(1_003))
    await in_turns([world.streams.write(run_id, name, b"x") for name in names])
    replies.clear()
    assert await world.streams.list(run_id) == names
    assert [name for name, _ in replies] == ["streams/list"] * 3


# Contract: 8.streams and runs
@pytest.mark.parametrize("creation", [e.run_created(), e.resilient_start()], ids=["c", "s"])
async def test_a_janitor_keeps_the_streams_whose_run_s_creator_died(
    backend: Backend,
    world: RedisWorld,
    monkeypatch: pytest.MonkeyPatch,
    creation: e.Wire,
) -> None:
    """The script that creates a run keeps some of the streams that were there before it."""

    async def die(*_: object) -> None:
        raise WorldUnavailableError("gone")

    monkeypatch.setattr(cleaning, "go_on", die)
    run_id = e.new_run_id()
    names = sorted(f"s{number}" for number in range(250))
    await in_turns([world.streams.write(run_id, name, b"x") for name in names])
    await world.events.create(run_id, creation, skip_preload=True)
    await check_invariants(world)
    assert len({*expiries(backend, world, run_id, names)}) > 1
    assert await world.streams.list(run_id) == names
    await world.sweep()
    assert {*expiries(backend, world, run_id, names)} == {-1}
    await check_invariants(world)


def expiries(backend: Backend, world: RedisWorld, run_id: str, names: list[str]) -> list[int]:
    keys = world.connection.partitions.of(run_id).of_run(run_id)
    with contextlib.closing(backend.client()) as client:
        kept = [client.ttl(keys.stream(name)) for name in names]
        return [*kept, *(client.ttl(keys.writers(name)) for name in names)]


# Contract: 5.user data
async def test_streams_of_a_run_that_expired_are_not_kept(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its creator died, and so did its data, before anybody had kept all of its streams."""

    async def die(*_: object) -> None:
        raise WorldUnavailableError("gone")

    monkeypatch.setattr(cleaning, "go_on", die)
    run_id = e.new_run_id()
    names = sorted(f"s{number}" for number in range(120))
    await in_turns([world.streams.write(run_id, name, b"x") for name in names])
    creation = e.run_created(attributes={"$retention": "0"}, allowReservedAttributes=True)
    await world.events.create(run_id, creation)
    await e.write(world, run_id, e.run_ended("completed"))
    await world.sweep()
    assert await world.streams.list(run_id) == names
    await check_invariants(world)


# -- runs ------------------------------------------------------------------------------------


# Contract: 5.run retention
async def test_runs_of_one_millisecond_are_pruned_page_by_page(clocked: Clocked) -> None:
    """A page begins behind a run that the last one has removed."""
    world, clock = clocked
    statuses = ("completed", "cancelled", "failed")
    made: dict[str, list[str]] = {status: [] for status in statuses}

    async def make(number: int) -> None:
        status = statuses[number % 3]
        made[status].append(await e.new_run(world, status))

    for _ in range(2):
        await in_turns([make(number) for number in range(105)])
        await clock.advance(timedelta(milliseconds=1))
    seen: list[tuple[int, int]] = []
    cancelled = len(made["cancelled"])
    found = await world.prune(
        0, status="cancelled", on_progress=lambda *counts: seen.append(counts)
    )
    assert (found, seen[-1]) == (cancelled, (210, cancelled))
    left = {run.run_id for run in (await world.runs.list(limit=1000)).data}
    assert left == {*made["completed"], *made["failed"]}
    assert await world.prune(0) == len(left)


# -- large payloads --------------------------------------------------------------------------


async def _steps(world: RedisWorld, run_id: str, number: int) -> None:
    name = f"s{number}"
    await e.write(world, run_id, e.lazy_start(name), e.step_completed(name, result=bytes(LARGE)))


async def _hooks(world: RedisWorld, run_id: str, number: int) -> None:
    hook = e.hook_created(f"h{number}", f"t{number}", metadata=bytes(LARGE))
    await e.write(world, run_id, hook)


async def _runs(world: RedisWorld, _: str, number: int) -> None:
    await e.new_run(world, workflowName="large", input=bytes([number]) * LARGE)


async def _letters(world: RedisWorld, _: str, number: int) -> None:
    await send(world, {"number": number, "body": bytes(LARGE)})
    assert await world.queue.retry(await claim_one(world), error="no", delay=0)


Read = Callable[..., Awaitable[Page[Any]]]
LARGE_PAGES: Final[
    dict[str, tuple[Callable[[RedisWorld, str, int], Awaitable[None]], Callable[..., Read]]]
] = {
    "steps/list": (_steps, lambda world, run_id: _of(world.steps.list, run_id)),
    "hooks/list": (_hooks, lambda world, run_id: _of(world.hooks.list, run_id)),
    "hooks/list_all": (_hooks, lambda world, _: world.hooks.list),
    "runs/list": (_runs, lambda world, _: _of(world.runs.list, workflow_name="large")),
    "queue/dead_letters": (_letters, lambda world, _: _of(world.queue.dead_letters, TOPIC)),
}


def _of(read: Callable[..., Awaitable[Page[Any]]], *args: Any, **fixed: Any) -> Read:
    async def read_page(**options: Any) -> Page[Any]:
        return await read(*args, **fixed, **options)

    return read_page


# Contract: 6.pages
@pytest.mark.parametrize("script", LARGE_PAGES)
async def test_a_page_of_large_payloads_is_whole(
    backend: Backend, replies: list[tuple[str, int]], script: str
) -> None:
    add, reader = LARGE_PAGES[script]
    async with backend.world(max_failures=1) as world:
        run_id = await e.new_run(world)
        for number in range(5):
            await add(world, run_id, number)
        read = reader(world, run_id)
        replies.clear()
        everything = (await read(limit=5)).data
        assert len(everything) == 5
        for limit in (1, 2, 3, 4, 5, 6):
            cursor = None
            found: list[Any] = []
            while True:
                page = await read(limit=limit, cursor=cursor)
                assert len(page.data) == min(limit, 5 - len(found))
                found += page.data
                assert page.has_more == (len(found) < 5)
                cursor = page.cursor
                if not page.has_more:
                    break
            assert found in (everything, everything[::-1])
        sizes = [size for name, size in replies if name == script]
        assert len(sizes) > 3
        # One script stops at a megabyte, behind the payload that makes it full.
        assert max(sizes) < 1_048_576 + 2 * LARGE


# Contract: 6.pages
async def test_a_page_of_many_payloads_in_the_log_is_whole(
    world: RedisWorld, replies: list[tuple[str, int]]
) -> None:
    """Each of them small, all together more than one script answers."""
    run_id = await e.new_run(world)
    payload = bytes(4_000)
    names = [f"s{number}" for number in range(160)]
    for begin in range(0, len(names), 40):
        some = names[begin : begin + 40]
        starts = [
            each
            for name in some
            for each in (e.step_created(name, input=payload), e.step_started(name))
        ]
        await world.events.create_batch(run_id, starts)
        ends = [e.step_completed(name, result=payload) for name in some]
        await world.events.create_batch(run_id, ends)
    replies.clear()
    page = await world.steps.list(run_id, limit=1000)
    assert [step.step_id for step in page.data] == names
    assert {(step.input, step.output) for step in page.data} == {(payload, payload)}
    assert not page.has_more
    assert len(replies) == 2
    assert max(size for _, size in replies) < 1_048_576 + 10_000


# Contract: 6.pages
async def test_a_page_of_many_rows_is_whole(
    world: RedisWorld, replies: list[tuple[str, int]]
) -> None:
    run_id = await e.new_run(world)
    count = 2 * paging.ROWS_AT_ONCE
    await in_turns([e.write(world, run_id, e.wait_created(f"w{n}")) for n in range(count)])
    replies.clear()
    for limit, scripts in ((count - 1, 2), (count, 2), (count + 1, 3)):
        page = await world.waits.list(run_id, limit=limit)
        assert len({wait.wait_id for wait in page.data}) == min(limit, count)
        assert page.has_more == (limit < count)
        assert len(replies) <= scripts
        replies.clear()


# Contract: 6.events
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_log_of_large_payloads_comes_in_small_pages(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    """Their sizes tell how many of them to ask for at a time."""
    monkeypatch.setattr(payloads, "_BYTES_AT_ONCE", 50_000)
    run_id = await e.new_run(world)
    count = 2 * log.FIRST_PAGE
    large = [e.step_created(f"s{n}", input=bytes([n]) * 10_000) for n in range(count)]
    await in_turns([e.write(world, run_id, each) for each in large])
    sizes = sizes_of_reads(monkeypatch)
    everything = (await world.events.list(run_id, sort_order=order)).data
    assert len({each.event_id for each in everything}) == count + 2
    assert max(sizes) < 60_000


# Contract: 6.events
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_log_of_middling_payloads_comes_in_small_pages(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    """What was read tells how much of the rest to ask for at a time, and the next time, too."""
    monkeypatch.setattr(log, "_PAGE_BYTES", 50_000)
    run_id = await e.new_run(world)
    count = 2 * log.FIRST_PAGE
    middling = [e.step_created(f"s{n}", input=bytes([n]) * 4_000) for n in range(count)]
    await in_turns([e.write(world, run_id, each) for each in middling])
    sizes = sizes_of_reads(monkeypatch)
    everything = (await world.events.list(run_id, sort_order=order)).data
    assert len({each.event_id for each in everything}) == count + 2
    assert len([size for size in sizes if size > 100_000]) == 1, "the first look"
    if order == "asc":
        sizes.clear()
        assert (await world.events.list(run_id)).data == everything
        assert max(sizes) < 100_000


# Contract: 6.events
async def test_any_number_of_events_of_one_entity_are_read(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.hook_created())
    sent = [bytes([n]) for n in range(150)]
    await in_turns([e.write(world, run_id, e.hook_received(payload=each)) for each in sent])
    for order in ("asc", "desc"):
        found = await world.events.list_by_correlation_id(
            run_id,
            "hook_1",
            sort_order=order,
        )
        data = [e.data_of(each).get("payload") for each in found.data]
        assert {each for each in data if each is not None} == {*sent}
        assert len(data) == len(sent) + 1
