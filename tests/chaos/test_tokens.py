"""Random rivals for hook tokens that lie in other partitions, judged behind every script call.

`make chaos` runs the long form: 20 seeds of 5,000 steps on both servers, and tells how many other
seeds find each mutant.
"""

# Contract: 5.tokens across partitions

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import pytest
import redis

import redis_world.tokens
from redis_world.errors import RunNotFoundError
from redis_world.keys import Partitions
from redis_world.lua import ScriptLibrary
from redis_world.models import EventResult
from redis_world.testing import InvariantViolationError, check_invariants
from support import events as e
from support.backends import Backend
from support.token_mutants import MUTANTS
from support.token_oracle import Change, LiveHook
from support.token_scheduler import Client
from support.token_simulation import TokenSimulation, simulate
from support.token_stage import Stage, staged

IS_LONG: Final = os.environ.get("REDIS_WORLD_CHAOS") == "long"
SEEDS: Final = 8 if IS_LONG else 4
STEPS: Final = 5_000 if IS_LONG else 300

SEEN: Final = {"OK", "TOKEN_TAKEN", "CONFLICT", "UNRESERVED", "REVOKED", "RUN_TERMINAL"}
"""What a long life meets of hook_created: one without a fence proves nothing about it."""

in_memory = pytest.mark.parametrize("backend", ["memory"], indirect=True)


@pytest.mark.parametrize("backend", ["memory", "redis7"], indirect=True)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_random_rivals_leave_every_token_one_owner(backend: Backend, seed: int) -> None:
    partitions = 8 if seed % 4 > 1 else 2
    print(f"seed {seed}, {STEPS} steps")  # noqa: T201 - shown when it fails
    simulation = await simulate(backend, seed, STEPS, partitions=partitions)
    if IS_LONG:
        assert simulation.promises.seen.keys() >= SEEN


@in_memory
async def test_a_seed_is_the_same_life_every_time(backend: Backend) -> None:
    lives = [await simulate(backend, 7, 200, partitions=8) for _ in range(2)]
    assert lives[0].story == lives[1].story
    assert lives[0].story != (await simulate(backend, 9, 200, partitions=8)).story


# -- mutants -------------------------------------------------------------------------------


async def what_is_found(backend: Backend, name: str, seed: int, steps: int) -> str:
    """What the simulation says of a mutant; "" when it finds nothing."""
    mutant = MUTANTS[name]
    with mutant.reading():
        try:
            await simulate(
                backend,
                seed,
                steps,
                partitions=2,
                library=mutant.library(),
                tokens=mutant.tokens(),
                favoured=mutant.favoured,
                patience=mutant.patience,
            )
        except AssertionError as error:
            return f"found: {error}"
    return ""


@in_memory
@pytest.mark.parametrize("name", MUTANTS)
async def test_a_rule_that_is_missing_is_found(backend: Backend, name: str) -> None:
    mutant = MUTANTS[name]
    found = await what_is_found(backend, name, mutant.seed, mutant.steps)
    assert found, f"nothing was found by seed {mutant.seed} in {mutant.steps} steps"
    assert mutant.says in found.partition("after")[0]
    if IS_LONG:
        # With all rules the same life finds nothing.
        await simulate(
            backend,
            mutant.seed,
            mutant.steps,
            partitions=2,
            favoured=mutant.favoured,
            patience=mutant.patience,
        )


# -- lives that were made up ---------------------------------------------------------------

CREATION: Final = "events/hook_created create"
ENDLESS: Final = MUTANTS["nobody's time is ever over"]
UNCHECKED: Final = MUTANTS["a token is reserved for a run that is not there"]


async def begin_hook(
    stage: Stage, world: int, run_id: str, token: str, hook_id: str = "h", until: str = ""
) -> Client:
    """A client that creates a hook, as far as in front of this script."""
    client = Client(f"hook of {run_id}", 0, {})
    event = e.hook_created(hook_id, token)
    await stage.scheduler.begin(client, lambda: stage.worlds[world].events.create(run_id, event))
    await stage.scheduler.play(client, until)
    return client


async def outcome_of(stage: Stage, world: int, run_id: str, token: str, hook_id: str = "h") -> str:
    """The type of the event that the creation of a hook has recorded."""
    client = await begin_hook(stage, world, run_id, token, hook_id)
    return recorded(client)


def recorded(client: Client) -> str:
    assert isinstance(client.outcome, EventResult), client.outcome
    assert client.outcome.event is not None
    return client.outcome.event.event_type


def apart(stage: Stage, run_id: str, token: str = "token") -> str:
    """A token that lies in another partition than the run."""
    partitions = stage.worlds[0].connection.partitions
    tokens = [f"{token}_{i}" for i in range(64)]
    return next(each for each in tokens if partitions.of(each) is not partitions.of(run_id))


async def test_a_creator_that_comes_late_finds_itself_fenced_off(backend: Backend) -> None:
    async with staged(backend, partitions=2) as stage:
        world = stage.worlds[0]
        late, rival = await e.new_run(world), await e.new_run(world)
        client = await begin_hook(stage, 0, late, "token", until=CREATION)
        await stage.clock.advance(3.001)
        assert await outcome_of(stage, 1, rival, "token") == "hook_created"
        await stage.scheduler.play(client)
        assert recorded(client) == "hook_conflict"
        assert e.data_of(client.outcome.event)["conflictingRunId"] == rival
        await check_invariants(world)


async def test_a_rival_waits_for_a_creator_that_is_only_slow(backend: Backend) -> None:
    async with staged(backend, partitions=2) as stage:
        world = stage.worlds[0]
        slow, rival = await e.new_run(world), await e.new_run(world)
        client = await begin_hook(stage, 0, slow, "token", until=CREATION)
        await stage.clock.advance(3)
        waiting = await begin_hook(stage, 1, rival, "token", until="sleep")
        assert not waiting.task.done()
        await stage.scheduler.play(client)
        await stage.scheduler.play(waiting)
        assert [recorded(client), recorded(waiting)] == ["hook_created", "hook_conflict"]
        await check_invariants(world)


@in_memory
@pytest.mark.parametrize(
    "tokens", [redis_world.tokens, ENDLESS.tokens()], ids=["as it is", "without an end"]
)
async def test_the_token_of_a_creator_that_is_gone_can_be_had(
    backend: Backend, tokens: ModuleType
) -> None:
    async with staged(backend, partitions=2, tokens=tokens) as stage:
        world = stage.worlds[0]
        gone, rival = await e.new_run(world), await e.new_run(world)
        await stage.scheduler.stop(await begin_hook(stage, 0, gone, "token", until=CREATION))
        client = await begin_hook(stage, 1, rival, "token", until="sleep")
        for _ in range(10):
            await stage.clock.advance(0.5)
            if not client.task.done():
                (pause,) = stage.scheduler.waiting
                await stage.scheduler.answer(pause, await stage.scheduler.take(pause))
                await stage.scheduler.play(client, "sleep")
        assert client.task.done() == (tokens is redis_world.tokens)
        if client.task.done():
            assert recorded(client) == "hook_created"
        else:
            await stage.scheduler.stop(client)


@in_memory
@pytest.mark.parametrize(
    ("tokens", "library"),
    [(redis_world.tokens, None), (UNCHECKED.tokens(), UNCHECKED.library())],
    ids=["as it is", "without a check"],
)
async def test_a_hook_of_a_run_that_comes_later_reserves_nothing(
    backend: Backend, tokens: ModuleType, library: ScriptLibrary | None
) -> None:
    """A run that is missing makes a reservation dead, and can't be told that it does.

    Were the token reserved nevertheless, a rival would take it over without leaving a fence; then
    the run would come, and with it a second owner.
    """
    async with staged(backend, partitions=2, library=library, tokens=tokens) as stage:
        world = stage.worlds[0]
        late, rival = e.run_id_at(stage.clock.now), await e.new_run(world)
        client = await begin_hook(stage, 0, late, "token", until=CREATION)
        is_checked = client.task.done()
        assert await outcome_of(stage, 1, rival, "token") == "hook_created"
        await e.write(world, late, e.run_created())
        await stage.scheduler.play(client)
        if is_checked:
            assert isinstance(client.outcome, RunNotFoundError)
            await check_invariants(world)
        else:
            assert tokens is not redis_world.tokens
            assert recorded(client) == "hook_created"
            with pytest.raises(InvariantViolationError, match="the token of two live hooks"):
                await check_invariants(world)


@in_memory
async def test_a_reservation_does_not_outlive_its_run(backend: Backend) -> None:
    """A run that is removed and started again under its id knows nothing of what was decided."""
    async with staged(backend, partitions=2) as stage:
        world = stage.worlds[0]
        run_id, rival = await e.new_run(world), await e.new_run(world)
        client = await begin_hook(stage, 0, run_id, "token", until=CREATION)
        await e.write(world, run_id, e.run_ended("completed"))
        assert await world.prune(0) == 1
        assert await outcome_of(stage, 1, rival, "token") == "hook_created"
        await e.write(world, run_id, e.resilient_start())
        await stage.scheduler.play(client)
        await check_invariants(world)


@in_memory
async def test_a_note_of_a_hook_does_not_free_the_token_of_its_namesake(backend: Backend) -> None:
    """A run that is removed and started again under its id may have the same hook again."""
    async with staged(backend, partitions=2) as stage:
        world = stage.worlds[0]
        run_id = await e.new_run(world)
        token = apart(stage, run_id)
        await e.write(world, run_id, e.hook_created("h", token), e.run_ended("completed"))
        assert await world.prune(0) == 1
        await e.write(world, run_id, e.resilient_start(), e.hook_created("h", token))
        await world.sweep()
        await check_invariants(world)


@in_memory
async def test_a_fence_is_that_of_one_token(backend: Backend) -> None:
    """A hook that was fenced off under one token can be created with another one at once.

    Its number is another partition's: if that has counted less far, the hook asks for one number
    after the other until it is higher than the fence.
    """
    async with staged(backend, partitions=2) as stage:
        world = stage.worlds[0]
        partitions = world.connection.partitions
        busy, idle = (
            next(t for t in map(str, range(64)) if partitions.of(t) is each) for each in partitions
        )
        stage.client.set(partitions[0].token_numbers, 500)
        run_id = await e.new_run(world)
        client = await begin_hook(stage, 0, run_id, busy, until=CREATION)
        await stage.scheduler.stop(client)
        await stage.clock.advance(4)
        await world.sweep()
        client = await begin_hook(stage, 1, run_id, idle)
        assert recorded(client) == "hook_created"
        assert client.calls < 10


# -- the oracle ----------------------------------------------------------------------------

Damage = Callable[[redis.Redis, Partitions, str], Any]
"""Changes raw keys; has the id of a run with the live hook `h1`, whose token is `token_a`."""


def _hook(partitions: Partitions, run_id: str, hook_id: str) -> str:
    return partitions.of(run_id).of_run(run_id).hook(hook_id)


def _record(partitions: Partitions, token: str) -> str:
    return partitions.of(token).token(token)


DAMAGES: Final[dict[str, Damage]] = {
    "has lost its life": lambda c, p, run: c.delete(_hook(p, run, "h1")),
    "came to life by itself": lambda c, p, run: c.hset(_hook(p, run, "h2"), "token", "token_b"),
    "has two live hooks": lambda c, p, run: c.hset(_hook(p, run, "h2"), "token", "token_a"),
    "and its record names": lambda c, p, run: c.delete(_record(p, "token_a")),
    "and it has no live hook": lambda c, p, run: c.hset(_record(p, "token_b"), "run", run),
    "is of an unknown token": lambda c, p, run: c.hset(_record(p, "another"), "run", run),
    "releases has": lambda c, p, run: c.zadd(p[0].releases, {"0/x/y/z": 0}),
    "reservations has": lambda c, p, run: c.zadd(p[1].reservations, {"x": 0}),
}


@pytest.mark.parametrize("says", DAMAGES)
@in_memory
async def test_the_oracle_sees_it(backend: Backend, says: str) -> None:
    async with staged(backend, partitions=2) as stage:
        world = stage.worlds[0]
        run_id = await e.new_run(world)
        await e.write(world, run_id, e.hook_created("h1", "token_a"))
        await stage.clock.advance(4)
        await world.sweep()
        oracle = TokenSimulation(stage, 0).oracle
        oracle.run_ids.append(run_id)
        created = Change(creates=LiveHook(run_id, "h1"))
        assert [*oracle.look(1, created), *oracle.leftovers()] == []
        DAMAGES[says](stage.client, world.connection.partitions, run_id)
        wrong = [*oracle.look(2), *oracle.leftovers()]
        assert any(says in sentence for sentence in wrong), wrong
