"""Hooks that come again, that were given up, and that share an id (contract, sections 5 and 6)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from redis_world import RedisWorld
from redis_world.errors import EntityConflictError, HookNotFoundError
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend

pytestmark = pytest.mark.everywhere

Clocked = tuple[RedisWorld, ManualClock]


async def runs_apart(world: RedisWorld, count: int = 2) -> list[str]:
    """Runs in their order, of which no two lie in one partition where there are several."""
    found: dict[int, str] = {}
    while len(found) < count:
        run_id = e.new_run_id()
        place = world.connection.partitions.of(run_id).number
        found.setdefault(place if len(world.connection.partitions) > 1 else len(found), run_id)
    for run_id in sorted(found.values()):
        await world.events.create(run_id, e.run_created())
    return sorted(found.values())


# Contract: 5.hook_created, 5.hook_conflict, 5.tokens across partitions
async def test_a_hook_that_comes_again_is_a_duplicate_across_partitions(backend: Backend) -> None:
    """While it lives, after its disposal, and after its conflict, also when the token is free."""
    async with backend.world(partitions=8) as world:
        owner, run_id = await runs_apart(world)
        await world.events.create(owner, e.hook_created(token="shared", metadata=b"first"))
        await world.events.create(run_id, e.hook_created(token="shared"))

        async def assert_duplicates() -> None:
            for place in (owner, run_id):
                for token in ("shared", "another"):
                    with pytest.raises(EntityConflictError) as raised:
                        await world.events.create(place, e.hook_created(token=token))
                    assert raised.value.reason == "duplicate"

        await assert_duplicates()
        assert (await world.hooks.get_by_token("shared")).metadata == b"first"
        await world.events.create(owner, e.hook_disposed())
        await assert_duplicates()
        for token in ("shared", "another"):
            with pytest.raises(HookNotFoundError):
                await world.hooks.get_by_token(token)
        assert (await e.log_types(world, owner))[1:] == ["hook_created", "hook_disposed"]
        assert (await e.log_types(world, run_id))[1:] == ["hook_conflict"]
        await check_invariants(world)


# Contract: 5.hook retention, 5.hook_disposed
async def test_a_hook_that_is_disposed_of_before_the_end_is_not_retained(
    clocked: Clocked,
) -> None:
    """Its `tokenRetentionUntil` holds for what outlives the run, not for what was given up."""
    world, clock = clocked
    owner, run_id = await e.new_run(world), await e.new_run(world)
    until = clock.now + timedelta(days=1)
    await e.write(world, owner, e.hook_created(tokenRetentionUntil=until), e.hook_disposed())
    result = await world.events.create(run_id, e.hook_created("other", "token_1"))
    assert result.hook is not None
    await world.events.create(owner, e.run_ended("completed"))
    assert (await world.hooks.get_by_token("token_1")).run_id == run_id
    with pytest.raises(HookNotFoundError):
        await world.hooks.get("hook_1")
    await check_invariants(world)


# Contract: 6.hooks
@pytest.mark.parametrize("partitions", [1, 8])
async def test_of_one_id_the_newest_hook_counts_not_the_newest_run(
    backend: Backend, partitions: int
) -> None:
    async with backend.world(partitions=partitions, library=ManualClock.library()) as world:
        clock = await ManualClock(world).set()
        older, newer = await runs_apart(world)
        await world.events.create(newer, e.hook_created("same", "t1"))
        await clock.advance(0.001)
        await world.events.create(older, e.hook_created("same", "t2"))
        assert (await world.hooks.get("same")).run_id == older
        await world.events.create(older, e.hook_disposed("same"))
        assert (await world.hooks.get("same")).run_id == newer
