"""Tokens of hooks, over several partitions and through retention (contract, section 5)."""

# Contract: 5.tokens across partitions

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from redis_world import RedisWorld
from redis_world.errors import EntityConflictError, HookNotFoundError
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend

Clocked = tuple[RedisWorld, ManualClock]


@pytest_asyncio.fixture
async def wide(backend: Backend) -> AsyncIterator[RedisWorld]:
    """A World whose runs and tokens lie in eight partitions."""
    async with backend.world(partitions=8) as world:
        yield world


async def runs_apart(world: RedisWorld, count: int = 3) -> list[str]:
    """Runs of which no two lie in one partition."""
    found: dict[int, str] = {}
    while len(found) < count:
        run_id = e.new_run_id()
        found.setdefault(world.connection.partitions.of(run_id).number, run_id)
    for run_id in found.values():
        await world.events.create(run_id, e.run_created())
    return list(found.values())


async def test_a_conflict_names_the_owner(wide: RedisWorld) -> None:
    owner, *others = await runs_apart(wide)
    for number in range(8):  # tokens of about as many partitions
        hook_id, token = f"hook_{number}", f"token_{number}"
        made = await wide.events.create(owner, e.hook_created(hook_id, token))
        assert made.hook is not None
        for run_id in others:
            result = await wide.events.create(run_id, e.hook_created(hook_id, token))
            assert result.hook is None
            assert e.data_of(result.event) == {"token": token, "conflictingRunId": owner}
            assert result.event == (await e.log(wide, run_id))[-1]
        found = await wide.hooks.get_by_token(token)
        assert (found.run_id, found.hook_id) == (owner, hook_id)
    await check_invariants(wide)


@pytest.mark.parametrize("way", ["disposed", *e.TERMINAL])
async def test_a_token_is_free_at_once(wide: RedisWorld, way: str) -> None:
    first, *others = await runs_apart(wide)
    for number in range(8):
        await wide.events.create(first, e.hook_created(f"hook_{number}", f"token_{number}"))
    if way == "disposed":
        await e.write(wide, first, *[e.hook_disposed(f"hook_{number}") for number in range(8)])
    else:
        await wide.events.create(first, e.run_ended(way))
    for number in range(8):
        token, run_id = f"token_{number}", others[number % len(others)]
        with pytest.raises(HookNotFoundError):
            await wide.hooks.get_by_token(token)
        result = await wide.events.create(run_id, e.hook_created(f"hook_{number}", token))
        assert result.hook is not None
        assert (await wide.hooks.get_by_token(token)).run_id == run_id
    if way == "disposed":
        # What is left of the old hooks must not take the tokens from the new ones.
        await wide.events.create(first, e.run_ended("completed"))
    await wide.sweep()
    assert {(await wide.hooks.get_by_token(f"token_{n}")).run_id for n in range(8)} == {*others}
    await check_invariants(wide)


async def test_the_same_hook_again_is_a_duplicate(wide: RedisWorld) -> None:
    """While it lives, after its disposal, and after its conflict, also when the token is free."""
    owner, run_id, _ = await runs_apart(wide)
    await wide.events.create(owner, e.hook_created(token="shared", metadata=b"first"))
    await wide.events.create(run_id, e.hook_created(token="shared"))

    async def assert_duplicates() -> None:
        for place in (owner, run_id):
            for token in ("shared", "another"):
                with pytest.raises(EntityConflictError) as raised:
                    await wide.events.create(place, e.hook_created(token=token))
                assert raised.value.reason == "duplicate"

    await assert_duplicates()
    assert (await wide.hooks.get_by_token("shared")).metadata == b"first"
    await wide.events.create(owner, e.hook_disposed())
    await assert_duplicates()
    for token in ("shared", "another"):
        with pytest.raises(HookNotFoundError):
            await wide.hooks.get_by_token(token)
    assert (await e.log_types(wide, owner))[1:] == ["hook_created", "hook_disposed"]
    assert (await e.log_types(wide, run_id))[1:] == ["hook_conflict"]


# Contract: 5.hook retention
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


# Contract: 5.hook retention
@pytest.mark.parametrize("status", e.TERMINAL)
async def test_a_retained_token_is_taken_in_a_namespace_of_partitions_too(
    backend: Backend, status: str
) -> None:
    async with backend.world(partitions=8, library=ManualClock.library()) as world:
        clock = await ManualClock(world).set()
        owner, run_id, third = await runs_apart(world)
        until = clock.now + timedelta(minutes=1)
        await world.events.create(owner, e.hook_created(tokenRetentionUntil=until))
        await world.events.create(owner, e.run_ended(status))
        await clock.advance(59.999)
        result = await world.events.create(run_id, e.hook_created())
        assert e.data_of(result.event) == {"token": "token_1", "conflictingRunId": owner}
        assert (await world.hooks.get_by_token("token_1")).run_id == owner
        await clock.advance(0.001)
        with pytest.raises(HookNotFoundError):
            await world.hooks.get_by_token("token_1")
        result = await world.events.create(third, e.hook_created())
        assert result.hook is not None
        await world.sweep()
        assert (await world.hooks.get_by_token("token_1")).run_id == third
        await check_invariants(world)
