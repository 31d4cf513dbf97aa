"""Pages, cursors and limits of every listing (contract, section 6)."""

# Contract: 6.pages

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidCursorError, InvalidInputError
from redis_world.models import Page
from redis_world.testing import ManualClock
from support.events import (
    attr_set,
    event,
    event_id,
    hook_created,
    hook_disposed,
    new_run,
    new_run_id,
    run_ended,
    step_created,
    step_started,
    wait_created,
    write,
)

COUNT: Final = 5


class Read(Protocol):
    """One listing with its run and filters filled in."""

    async def __call__(
        self, *, limit: int = ..., cursor: str | None = ..., sort_order: Any = ...
    ) -> Page[Any]: ...


@dataclass(frozen=True)
class Listing:
    """How to fill a listing, and how to read it."""

    add: Callable[[RedisWorld, str, int], Awaitable[object]]
    """Adds item number n; the run is given to those that lie in one."""
    read: Callable[[RedisWorld, str], Read]
    name_of: Callable[[Any], object]
    decoys: Callable[[RedisWorld, str, int], Awaitable[object]] | None = None
    """Adds what the listing must leave out, between the items."""


async def _add_run(world: RedisWorld, workflow_name: str, status: str) -> None:
    await new_run(world, status, workflowName=workflow_name)


def _partial(call: Callable[..., Awaitable[Page[Any]]], *args: Any, **fixed: Any) -> Read:
    async def read(**options: Any) -> Page[Any]:
        return await call(*args, **fixed, **options)

    return read


STATUSES: Final = ("pending", "running", "completed")

LISTINGS: Final[dict[str, Listing]] = {
    "runs": Listing(
        add=lambda world, _, n: _add_run(world, "w", STATUSES[n % 3]),
        read=lambda world, _: _partial(world.runs.list),
        name_of=lambda run: run.run_id,
    ),
    "runs of a status": Listing(
        add=lambda world, _, n: _add_run(world, "ab"[n % 2], "failed"),
        read=lambda world, _: _partial(world.runs.list, status="failed"),
        name_of=lambda run: run.run_id,
        decoys=lambda world, _, n: _add_run(world, "a", STATUSES[n % 3]),
    ),
    "runs of statuses": Listing(
        add=lambda world, _, n: _add_run(world, "ab"[n % 2], STATUSES[n % 3]),
        read=lambda world, _: _partial(world.runs.list, status=list(STATUSES)),
        name_of=lambda run: run.run_id,
        decoys=lambda world, _, n: _add_run(world, "a", ("failed", "cancelled")[n % 2]),
    ),
    "runs of a workflow": Listing(
        add=lambda world, _, n: _add_run(world, "a", STATUSES[n % 3]),
        read=lambda world, _: _partial(world.runs.list, workflow_name="a"),
        name_of=lambda run: run.run_id,
        decoys=lambda world, _, n: _add_run(world, "b", STATUSES[n % 3]),
    ),
    "runs of a workflow and statuses": Listing(
        add=lambda world, _, n: _add_run(world, "a", STATUSES[n % 2]),
        read=lambda world, _: _partial(
            world.runs.list, workflow_name="a", status=["pending", "running"]
        ),
        name_of=lambda run: run.run_id,
        decoys=lambda world, _, n: _add_run(world, "ab"[n % 2], ("completed", "running")[n % 2]),
    ),
    "steps": Listing(
        add=lambda world, run_id, n: write(world, run_id, step_created(f"step_{n % 3}{n}")),
        read=lambda world, run_id: _partial(world.steps.list, run_id),
        name_of=lambda step: step.step_id,
        decoys=lambda world, run_id, n: write(world, run_id, wait_created(f"wait_{n}")),
    ),
    "waits": Listing(
        add=lambda world, run_id, n: write(world, run_id, wait_created(f"wait_{n % 3}{n}")),
        read=lambda world, run_id: _partial(world.waits.list, run_id),
        name_of=lambda wait: wait.wait_id,
        decoys=lambda world, run_id, n: write(world, run_id, step_created(f"step_{n}")),
    ),
    "hooks of a run": Listing(
        add=lambda world, run_id, n: write(world, run_id, hook_created(f"h{n % 3}{n}", f"t{n}")),
        read=lambda world, run_id: _partial(world.hooks.list, run_id),
        name_of=lambda hook: hook.hook_id,
        decoys=lambda world, run_id, n: write(world, run_id, hook_created(f"taken_{n}", "t0")),
    ),
    "hooks": Listing(
        # By creation, then by hook id: within one millisecond the id alone orders them.
        add=lambda world, run_id, n: write(world, run_id, hook_created(f"h{n:03}", f"t{n}")),
        read=lambda world, _: _partial(world.hooks.list),
        name_of=lambda hook: hook.hook_id,
    ),
    "events": Listing(
        add=lambda world, run_id, n: write(world, run_id, attr_set({"n": str(n)}, f"attr_{n}")),
        read=lambda world, run_id: _partial(world.events.list, run_id),
        name_of=lambda each: each.event_id,
    ),
    "events by correlation id": Listing(
        add=lambda world, run_id, n: write(
            world, run_id, step_started("s") if n else step_created("s")
        ),
        read=lambda world, run_id: _partial(world.events.list_by_correlation_id, run_id, "s"),
        name_of=lambda each: each.event_id,
        decoys=lambda world, run_id, n: write(world, run_id, step_created(f"s{n}")),
    ),
}

per_listing = pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS)


async def prepare(world: RedisWorld, listing: Listing) -> str:
    """An empty listing: the run that it lies in, if it lies in one."""
    if listing is LISTINGS["runs"]:
        return ""
    run_id = await new_run(world, "running", workflowName="holder")
    if listing is LISTINGS["runs of statuses"]:
        await write(world, run_id, run_ended("failed"))
    return run_id


async def fill(world: RedisWorld, listing: Listing, run_id: str, numbers: range) -> None:
    for n in numbers:
        await listing.add(world, run_id, n)
        if listing.decoys is not None:
            await listing.decoys(world, run_id, n)


async def whole(listing: Listing, read: Read, order: str = "asc") -> list[object]:
    page = await read(limit=1000, sort_order=order)
    assert not page.has_more
    return [listing.name_of(item) for item in page.data]


async def walk(
    listing: Listing, read: Read, limit: int, order: str, cursor: str | None = None
) -> tuple[list[list[object]], str | None]:
    """All pages from a cursor, and the last page's cursor; every page is checked."""
    pages: list[list[object]] = []
    while True:
        page = await read(limit=limit, cursor=cursor, sort_order=order)
        assert len(page.data) <= limit
        if not page.data:
            assert page.cursor == cursor
            assert not page.has_more
            return pages, cursor
        assert page.cursor is not None
        assert page.cursor != cursor
        pages.append([listing.name_of(item) for item in page.data])
        cursor = page.cursor
        if not page.has_more:
            return pages, cursor


def in_pages(items: list[object], limit: int) -> list[list[object]]:
    return [items[start : start + limit] for start in range(0, len(items), limit)]


@pytest.mark.large
@per_listing
async def test_every_page_size_gives_everything_once(listing: Listing, world: RedisWorld) -> None:
    """Also at exact multiples: no empty page, and `has_more` only where there is more."""
    run_id = await prepare(world, listing)
    await fill(world, listing, run_id, range(COUNT))
    read = listing.read(world, run_id)
    everything = await whole(listing, read)
    assert len(everything) >= COUNT
    assert len(set(everything)) == len(everything)
    for order, limit in itertools.product(("asc", "desc"), range(1, len(everything) + 2)):
        expected = everything if order == "asc" else everything[::-1]
        pages, _ = await walk(listing, read, limit, order)
        assert pages == in_pages(expected, limit), (order, limit)


@per_listing
async def test_ties_never_lose_or_repeat(
    listing: Listing, clocked: tuple[RedisWorld, ManualClock]
) -> None:
    """The clock stands still: everything is of one millisecond."""
    world, _ = clocked
    run_id = await prepare(world, listing)
    before = len(await whole(listing, listing.read(world, run_id)))
    await fill(world, listing, run_id, range(COUNT))
    read = listing.read(world, run_id)
    everything = await whole(listing, read)
    assert len(everything) == before + COUNT
    for order, limit in itertools.product(("asc", "desc"), (1, 2, 3)):
        expected = everything if order == "asc" else everything[::-1]
        pages, _ = await walk(listing, read, limit, order)
        assert pages == in_pages(expected, limit), (order, limit)


@per_listing
async def test_appends_between_pages(listing: Listing, world: RedisWorld) -> None:
    run_id = await prepare(world, listing)
    await fill(world, listing, run_id, range(3))
    read = listing.read(world, run_id)
    before = await whole(listing, read)
    first_up = await read(limit=2, sort_order="asc")
    first_down = await read(limit=2, sort_order="desc")
    await fill(world, listing, run_id, range(3, COUNT))
    after = await whole(listing, read)
    assert after[: len(before)] == before, "a listing only grows at its end"
    pages, _ = await walk(listing, read, 2, "asc", first_up.cursor)
    assert [*pages[0], *itertools.chain(*pages[1:])] == after[2:]
    pages, _ = await walk(listing, read, 2, "desc", first_down.cursor)
    assert list(itertools.chain(*pages)) == before[::-1][2:]


@per_listing
async def test_the_last_cursor_finds_what_comes_later(listing: Listing, world: RedisWorld) -> None:
    run_id = await prepare(world, listing)
    await fill(world, listing, run_id, range(2))
    read = listing.read(world, run_id)
    before = await whole(listing, read)
    for limit in (1, 2, 1000):
        _, cursor = await walk(listing, read, limit, "asc")
        assert cursor is not None
        for _ in range(2):
            empty = await read(limit=limit, cursor=cursor, sort_order="asc")
            assert (empty.data, empty.cursor, empty.has_more) == ([], cursor, False)
    _, end = await walk(listing, read, 1, "desc")
    empty = await read(limit=1, cursor=end, sort_order="desc")
    assert (empty.data, empty.cursor, empty.has_more) == ([], end, False)
    await fill(world, listing, run_id, range(2, 4))
    pages, _ = await walk(listing, read, 1, "asc", cursor)
    assert list(itertools.chain(*pages)) == (await whole(listing, read))[len(before) :]
    assert len(pages) >= 2


@per_listing
async def test_limits_out_of_range_are_refused(listing: Listing, world: RedisWorld) -> None:
    read = listing.read(world, new_run_id())
    for limit in (0, -1, 1001, 10**20, True, 1.0, "5"):
        with pytest.raises(InvalidInputError):
            await read(limit=limit)  # type: ignore[arg-type]
    for limit in (1, 1000):
        assert not (await read(limit=limit)).has_more


@per_listing
async def test_strange_orders_are_refused(listing: Listing, world: RedisWorld) -> None:
    read = listing.read(world, new_run_id())
    for order in ("", "ASC", "up", None):
        with pytest.raises(InvalidInputError):
            await read(sort_order=order)


BAD_CURSORS: Final[tuple[Any, ...]] = (
    "",
    " ",
    "0",
    "1",
    "-1",
    "nonsense",
    "eid:",
    "eid:1",
    "eid:evnt_",
    "eid:evnt_1",
    "eid:evnt_" + "x" * 26,
    "eid:evnt_" + "-1".zfill(26),
    "eid:evnt_" + "0" * 25 + "١",  # noqa: RUF001 - a digit, but none of an event id
    "eid:" + event_id(1) + "\n",
    event_id(1),
    "runs:",
    "runs:wrun_1",
    "runs:" + "wrun_" + "8" + "Z" * 25,
    "runs:-",
    "steps:",
    "steps:x",
    "steps:-1",
    "steps:1.5",
    "steps:inf",
    "waits:(1",
    "hooks:",
    "all_hooks:",
    "all_hooks:1/h/wrun_1",
    "all_hooks:000000000000001/\ud800/wrun_" + "0" * 26,
    "\x00",
    "é" * 5000,
    1,
    b"runs:",
)


@per_listing
async def test_bad_cursors_are_refused(listing: Listing, world: RedisWorld) -> None:
    run_id = await prepare(world, listing)
    await fill(world, listing, run_id, range(2))
    read = listing.read(world, run_id)
    answers: dict[tuple[Any, str], type] = {}
    for cursor, order in itertools.product(BAD_CURSORS, ("asc", "desc")):
        try:
            await read(cursor=cursor, sort_order=order)
        except Exception as error:  # noqa: BLE001 - any other one is the wrong answer
            answers[cursor, order] = type(error)
        else:
            answers[cursor, order] = Page
    assert {key: type_ for key, type_ in answers.items() if type_ is not InvalidCursorError} == {}


def _kind(name: str) -> str:
    """Listings whose cursors are of one kind."""
    return name if name.startswith("hooks") else name.split(maxsplit=1)[0]


async def test_a_cursor_of_another_listing_is_refused(world: RedisWorld) -> None:
    run_id = await new_run(world)
    cursors = {}
    for name, listing in LISTINGS.items():
        await fill(world, listing, run_id, range(1))
        cursors[name] = (await listing.read(world, run_id)(limit=1)).cursor
        if name.startswith("hooks"):
            # Both kinds fill with the same tokens.
            for hook in (await world.hooks.list(run_id)).data:
                await write(world, run_id, hook_disposed(hook.hook_id))
    for (name, cursor), (other, listing) in itertools.product(cursors.items(), LISTINGS.items()):
        if _kind(name) != _kind(other):
            with pytest.raises(InvalidCursorError):
                await listing.read(world, run_id)(cursor=cursor)


# Contract: 6.event cursors
async def test_event_cursors_are_event_ids_too(world: RedisWorld) -> None:
    run_id = await new_run(world)
    await write(world, run_id, *(step_created(f"s{n}") for n in range(3)))
    ids = [event_id(slot) for slot in range(1, 6)]
    for place in range(7):
        cursor = f"eid:{event_id(place)}"
        for limit in (None, 2):
            up = await world.events.list(run_id, cursor=cursor, limit=limit)
            assert [each.event_id for each in up.data] == ids[place:][:limit]
            assert up.has_more == (limit is not None and len(ids[place:]) > limit)
            down = await world.events.list(run_id, cursor=cursor, limit=limit, sort_order="desc")
            older = ids[: max(0, place - 1)][::-1]
            assert [each.event_id for each in down.data] == older[:limit]
            assert down.has_more == (limit is not None and len(older) > limit)
    found = await world.events.list_by_correlation_id(run_id, "s1", cursor=f"eid:{ids[2]}")
    assert [each.event_id for each in found.data] == [ids[3]]
    found = await world.events.list_by_correlation_id(run_id, "s1", cursor=f"eid:{ids[3]}")
    assert (found.data, found.cursor) == ([], f"eid:{ids[3]}")


# Contract: 6.event cursors
async def test_cursors_of_places_that_no_log_has(world: RedisWorld) -> None:
    """An event id is well-formed whatever its number: behind it there is nothing."""
    run_id = await new_run(world)
    for slot in (10**6, 2**63, 2**64 - 1, 2**64, 10**26 - 1):
        cursor = f"eid:{event_id(slot)}"
        for limit in (None, 1, 1000):
            up = await world.events.list(run_id, cursor=cursor, limit=limit)
            assert (up.data, up.cursor, up.has_more) == ([], cursor, False)
        down = await world.events.list(run_id, cursor=cursor, limit=10, sort_order="desc")
        assert len(down.data) == 2


NUMBERED: Final = {"steps": "steps", "waits": "waits", "hooks of a run": "hooks"}
"""Listings of a run whose cursors have a number, and their names in them."""


@pytest.mark.parametrize("name", NUMBERED)
@pytest.mark.parametrize("count", [0, 2])
async def test_a_place_that_no_item_ever_had(world: RedisWorld, name: str, count: int) -> None:
    """As of a cursor older than its run: before it there is everything, behind it nothing."""
    listing = LISTINGS[name]
    run_id = await prepare(world, listing)
    await fill(world, listing, run_id, range(count))
    read = listing.read(world, run_id)
    found = [listing.name_of(item) for item in (await read(sort_order="desc")).data]
    for place in (10**6, 2**53, 2**53 + 2, 10**16 - 1):
        cursor = f"{NUMBERED[name]}:{place}"
        for limit in (1, 1000):
            down = await read(limit=limit, cursor=cursor, sort_order="desc")
            assert [listing.name_of(item) for item in down.data] == found[:limit], place
            assert down.has_more == (len(found) > limit)
            up = await read(limit=limit, cursor=cursor)
            assert (up.data, up.cursor, up.has_more) == ([], cursor, False)


async def test_a_page_ends_where_items_go_away(world: RedisWorld) -> None:
    """The cursor stands for a place: its own item may be gone when it is used."""
    run_id = await new_run(world)
    hooks = [f"h{n}" for n in range(5)]
    await write(world, run_id, *(hook_created(hook_id, hook_id) for hook_id in hooks))
    of_run = await world.hooks.list(run_id, limit=2)
    of_all = await world.hooks.list(limit=2)
    await write(world, run_id, hook_disposed("h1"), hook_disposed("h2"))
    rest = await world.hooks.list(run_id, cursor=of_run.cursor)
    assert [hook.hook_id for hook in rest.data] == ["h3", "h4"]
    rest = await world.hooks.list(cursor=of_all.cursor)
    assert [hook.hook_id for hook in rest.data] == ["h3", "h4"]


async def test_a_run_that_moves_between_pages(world: RedisWorld) -> None:
    """Runs that change their status are not given twice, and hide no other."""
    ids = [await new_run(world, "running") for _ in range(5)]
    page = await world.runs.list(status="running", limit=2, sort_order="asc")
    for run_id in (ids[1], ids[2]):
        await write(world, run_id, run_ended("completed"))
    rest = await world.runs.list(status="running", cursor=page.cursor, sort_order="asc")
    assert [run.run_id for run in rest.data] == ids[3:]
    both = await world.runs.list(
        status=["running", "completed"], cursor=page.cursor, sort_order="asc"
    )
    assert [run.run_id for run in both.data] == ids[2:]


HOOK_IDS: Final = ("h", "h!", "h-1", "h.1", "h/", "h/1", "h0", "h\x00", "H", "hé", "i")


# Contract: 6.pages, 6.hooks
async def test_all_hooks_come_by_creation_then_by_id(
    clocked: tuple[RedisWorld, ManualClock],
) -> None:
    """Also where one id begins with another one."""
    world, clock = clocked
    first, second = await new_run(world), await new_run(world)
    for number, hook_id in enumerate(HOOK_IDS[::-1]):
        await write(world, (first, second)[number % 2], hook_created(hook_id, hook_id))
    await clock.advance(0.001)
    await write(world, first, hook_created("a", "a"))
    expected = [*sorted(HOOK_IDS, key=str.encode), "a"]
    for limit in (1, 1000):
        pages, _ = await walk(LISTINGS["hooks"], _partial(world.hooks.list), limit, "asc")
        assert list(itertools.chain(*pages)) == expected
        pages, _ = await walk(LISTINGS["hooks"], _partial(world.hooks.list), limit, "desc")
        assert list(itertools.chain(*pages)) == expected[::-1]


@pytest.mark.large
async def test_pages_of_a_thousand(world: RedisWorld) -> None:
    """The largest page, of a merge of several indexes, at its exact size and one beyond."""
    wire = {"deploymentId": "d", "workflowName": "w", "input": b""}

    async def add(count: int) -> list[str]:
        events = [event("run_created", **wire) for _ in range(count)]
        results = await asyncio.gather(*(world.events.create(None, each) for each in events))
        return [result.run.run_id for result in results if result.run is not None]

    ids = await add(1000)
    for filters in ({}, {"workflow_name": "w"}, {"status": ["pending", "failed"]}):
        page = await world.runs.list(limit=1000, sort_order="asc", **filters)
        assert [run.run_id for run in page.data] == sorted(ids)
        assert not page.has_more
    (extra,) = await add(1)
    page = await world.runs.list(workflow_name="w", limit=1000, sort_order="asc")
    assert page.has_more
    rest = await world.runs.list(workflow_name="w", cursor=page.cursor, sort_order="asc")
    assert [run.run_id for run in rest.data] == [extra]
