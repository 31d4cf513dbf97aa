"""Hooks that outlive their run until `tokenRetentionUntil` (contract, section 5)."""

# Contract: 5.hook retention

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import (
    HookNotFoundError,
    RunExpiredError,
)
from redis_world.models import HookConflictEvent
from redis_world.testing import ManualClock, check_invariants
from support import events as e

Clocked = tuple[RedisWorld, ManualClock]
KEPT_MS: Final = 60_000
MILLISECOND: Final = timedelta(milliseconds=1)
MANY: Final = 230
"""More hooks than one script removes at a time."""


def kept_hook(
    clock: ManualClock, hook_id: str = "kept", token: str = "t kept", ms: int = KEPT_MS
) -> dict[str, Any]:
    until = clock.now + timedelta(milliseconds=ms)
    return e.hook_created(hook_id, token, tokenRetentionUntil=until)


async def run_with_hooks(clocked: Clocked, *hooks: dict[str, Any]) -> str:
    world, _ = clocked
    run_id = await e.new_run(world)
    await e.write(world, run_id, *hooks)
    return run_id


async def owner_of(world: RedisWorld, token: str) -> str | None:
    """Who is named when another run wants this token: the run, or None when it got the token."""
    result = await world.events.create(await e.new_run(world), e.hook_created("other", token))
    if result.hook is not None:
        return None
    assert isinstance(result.event, HookConflictEvent)
    assert result.event.event_data is not None
    return result.event.event_data.conflicting_run_id


async def ids_of_all(world: RedisWorld, run_id: str) -> list[tuple[str, ...]]:
    """What each way of listing hooks tells."""
    return [
        tuple(hook.hook_id for hook in (await listing).data)
        for listing in (
            world.hooks.list(run_id),
            world.hooks.list(),
            world.hooks.list(run_id, sort_order="desc", limit=1),
            world.hooks.list(sort_order="desc", limit=1),
        )
    ]


@pytest.mark.parametrize("status", e.TERMINAL)
async def test_it_outlives_its_run_and_can_t_be_resumed(clocked: Clocked, status: str) -> None:
    world, clock = clocked
    run_id = await run_with_hooks(clocked, kept_hook(clock), e.hook_created("free", "t free"))
    hook = await world.hooks.get("kept")
    await e.write(world, run_id, e.run_ended(status))
    await clock.advance(timedelta(milliseconds=KEPT_MS - 1))
    await world.sweep()

    assert await world.hooks.get("kept") == hook
    assert (await world.hooks.get("kept", run_id=run_id)) == hook
    by_token = await world.hooks.get_by_token("t kept")
    assert by_token.hook_id == "kept"
    assert await ids_of_all(world, run_id) == [("kept",)] * 4
    with pytest.raises(RunExpiredError):
        await world.events.create(run_id, e.hook_received("kept"))
    with pytest.raises(RunExpiredError):
        await world.events.create(run_id, e.hook_received("kept"), resume_id="r")
    with pytest.raises(HookNotFoundError):
        await world.events.create(run_id, e.hook_received("free"))
    await check_invariants(world)
    assert await owner_of(world, "t kept") == run_id
    assert await owner_of(world, "t free") is None


@pytest.mark.parametrize("swept", [False, True], ids=["unswept", "swept"])
async def test_it_vanishes_by_itself(clocked: Clocked, swept: bool) -> None:
    """At its time, whether or not a sweep has come by."""
    world, clock = clocked
    run_id = await run_with_hooks(clocked, kept_hook(clock))
    await e.write(world, run_id, e.run_ended("completed"))
    await clock.advance(timedelta(milliseconds=KEPT_MS))
    if swept:
        await world.sweep()
        await check_invariants(world)

    for read in (
        world.hooks.get("kept"),
        world.hooks.get("kept", run_id=run_id),
        world.hooks.get_by_token("t kept"),
        world.events.create(run_id, e.hook_received("kept")),
    ):
        with pytest.raises(HookNotFoundError):
            await read
    with pytest.raises(RunExpiredError):
        await world.events.create(run_id, e.hook_disposed("kept"))
    assert await ids_of_all(world, run_id) == [()] * 4
    assert await owner_of(world, "t kept") is None
    await world.sweep()
    await check_invariants(world)
    # What was removed late has taken nothing from the new holder of its token.
    assert (await world.hooks.get_by_token("t kept")).hook_id == "other"


async def test_a_sweep_says_how_many_have_gone(clocked: Clocked) -> None:
    world, clock = clocked
    hooks = [kept_hook(clock, f"h{i}", f"t{i}", KEPT_MS + i) for i in range(3)]
    await e.write(world, await run_with_hooks(clocked, *hooks), e.run_ended("failed"))
    assert (await world.sweep())["expired_hooks"] == 0
    await clock.advance(timedelta(milliseconds=KEPT_MS + 1))
    assert (await world.sweep())["expired_hooks"] == 2
    assert [hook.hook_id for hook in (await world.hooks.list()).data] == ["h2"]


async def test_one_whose_time_is_over_goes_with_its_run(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await run_with_hooks(clocked, kept_hook(clock))
    await clock.advance(timedelta(milliseconds=KEPT_MS))
    assert (await world.hooks.get("kept")).token == "t kept", "its run goes on"
    result = await world.events.create(run_id, e.hook_received("kept"))
    assert result.event is not None
    await world.sweep()
    assert (await world.hooks.get("kept")).token == "t kept"
    await e.write(world, run_id, e.run_ended("completed"))
    await check_invariants(world)
    with pytest.raises(HookNotFoundError):
        await world.hooks.get("kept")


async def test_disposing_of_it_frees_it_at_once(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await run_with_hooks(clocked, kept_hook(clock))
    await e.write(world, run_id, e.run_ended("completed"), e.hook_disposed("kept"))
    await check_invariants(world)
    with pytest.raises(HookNotFoundError):
        await world.hooks.get("kept")
    with pytest.raises(RunExpiredError):
        await world.events.create(run_id, e.hook_disposed("kept"))
    assert await owner_of(world, "t kept") is None


# Contract: 5.hook retention, 6.hooks
async def test_the_newest_of_one_id_that_still_lives(clocked: Clocked) -> None:
    """Of two runs with a hook of this id: the newer one's, until it vanishes."""
    world, clock = clocked
    old = await run_with_hooks(clocked, e.hook_created("same", "t old"))
    await clock.advance(1)
    new = await run_with_hooks(clocked, kept_hook(clock, "same", "t new"))
    await e.write(world, new, e.run_ended("completed"))
    assert (await world.hooks.get("same")).run_id == new
    await clock.advance(timedelta(milliseconds=KEPT_MS))
    assert (await world.hooks.get("same")).run_id == old


# Contract: 5.hook retention, 5.resume dedupe
async def test_a_resume_that_was_recorded_stands(clocked: Clocked) -> None:
    """Its answer is the first event, also while its hook is only retained."""
    world, clock = clocked
    run_id = await run_with_hooks(clocked, kept_hook(clock))
    first = await world.events.create(run_id, e.hook_received("kept"), resume_id="r")
    await e.write(world, run_id, e.run_ended("completed"))
    again = await world.events.create(run_id, e.hook_received("kept"), resume_id="r")
    assert again.event == first.event


# Contract: 5.hook retention, 5.ends of runs
@pytest.mark.large
async def test_a_run_of_many_hooks_ends_at_once(clocked: Clocked) -> None:
    """Whatever their removal takes: no token is held, no hook is read, none is lost."""
    world, clock = clocked
    run_id = await e.new_run(world)
    for number in range(MANY):
        made = (
            kept_hook(clock, f"hook {number}", f"t {number}")
            if number % 10 == 9
            else e.hook_created(f"hook {number}", f"t {number}")
        )
        await e.write(world, run_id, made)
    await e.write(world, run_id, e.run_ended("completed"))
    await check_invariants(world)
    kept = tuple(f"hook {number}" for number in range(9, MANY, 10))

    async def hooks() -> list[tuple[str, ...]]:
        found = [await world.hooks.list(run_id, limit=5), await world.hooks.list(limit=5)]
        while any(page.has_more for page in found):
            for place, listed in ((0, run_id), (1, None)):
                page = await world.hooks.list(listed, limit=5, cursor=found[place].cursor)
                data = [*found[place].data, *page.data]
                found[place] = page.model_copy(update={"data": data})
        return [tuple(hook.hook_id for hook in page.data) for page in found]

    # Of one millisecond, so that all of them together come in the order of their ids.
    assert await hooks() == [kept, tuple(sorted(kept))]
    for number in (0, 50, MANY - 2):
        with pytest.raises(HookNotFoundError):
            await world.hooks.get(f"hook {number}")
        with pytest.raises(HookNotFoundError):
            await world.hooks.get_by_token(f"t {number}")
    assert await owner_of(world, f"t {MANY - 2}") is None
    assert await owner_of(world, f"t {MANY - 1}") == run_id
    await world.sweep()
    await check_invariants(world)
    (left,) = await world.connection.execute(
        ("ZCARD", world.connection.partitions.of(run_id).of_run(run_id).hooks)
    )
    assert left == len(kept)
    assert await hooks() == [kept, (*sorted(kept), "other")]
    await clock.advance(timedelta(milliseconds=KEPT_MS))
    await world.sweep()
    await check_invariants(world)
    assert await hooks() == [(), ("other",)]
