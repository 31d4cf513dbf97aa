"""Every event in every state of a run, step, hook and wait (contract, section 5).

What is refused leaves every key of the server as it was.
"""

# Contract: 5.order of checks, 5.terminal runs, 5.nothing left behind, 4.conflicts

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from redis_world import RedisWorld
from redis_world.errors import (
    EntityConflictError,
    HookNotFoundError,
    RunNotFoundError,
    StepNotFoundError,
    TooEarlyError,
    WaitNotFoundError,
    WorldError,
)
from support import events as e
from support.backends import Backend
from support.folding import assert_log_folds
from support.transitions import HOOK, RUN, STEP, TABLES, WAIT, Outcome, Table

EVENTS = {
    "run_created": e.run_created(),
    "run_started": e.event("run_started"),
    "run_started, resilient": e.resilient_start(),
    "run_completed": e.run_ended("completed"),
    "run_failed": e.run_ended("failed"),
    "run_cancelled": e.run_ended("cancelled"),
    "attr_set": e.attr_set({"color": "blue"}, "attr_1"),
    "step_created": e.step_created(),
    "step_started": e.step_started(),
    "step_started, lazy": e.lazy_start(),
    "step_completed": e.step_completed(),
    "step_failed": e.step_failed(),
    "step_retrying": e.step_retrying(),
    "hook_created": e.hook_created(),
    "hook_received": e.hook_received(),
    "hook_disposed": e.hook_disposed(),
    "wait_created": e.wait_created(),
    "wait_completed": e.wait_completed(),
}

State = Callable[[RedisWorld, str], Awaitable[str]]


def cells(table: Table) -> pytest.MarkDecorator:
    """Run a test for every cell."""
    return pytest.mark.parametrize(
        ("event", "state", "outcome"),
        [pytest.param(*cell, id=f"{cell[0]}-{cell[1]}") for cell in table.cells()],
    )


async def drive(
    world: RedisWorld,
    backend: Backend,
    run_id: str,
    event: str,
    outcome: Outcome,
    state_of: State,
) -> None:
    """Create the event; whatever comes of it must be the outcome, and nothing else."""
    wire = EVENTS[event]
    before, slots = backend.dump(), len(await e.log(world, run_id))
    if outcome.error is None:
        old = await state_of(world, run_id)
        result = await world.events.create(run_id, wire)
        assert await state_of(world, run_id) == (outcome.state or old)
        assert len(await e.log(world, run_id)) == slots + outcome.events
        if outcome.events:
            assert result.event is not None
            assert result.event.event_id == e.event_id(slots + outcome.events)
        else:
            assert result.event == (await e.log(world, run_id))[1]
            assert backend.dump() == before
        await assert_log_folds(world, run_id)
        return
    with pytest.raises(WorldError) as raised:
        await world.events.create(run_id, wire)
    assert type(raised.value) is outcome.error
    if isinstance(raised.value, EntityConflictError):
        assert raised.value.reason == outcome.reason
    if isinstance(raised.value, TooEarlyError):
        assert raised.value.retry_after >= 1
    assert backend.dump() == before


# -- runs ----------------------------------------------------------------------------------


async def run_in(world: RedisWorld, backend: Backend, state: str) -> str:
    if state == "missing":
        return e.new_run_id()
    if state in e.RUN_STATES:
        return await e.new_run(world, state)
    run_id = await e.new_run(world)
    with contextlib.closing(backend.client()) as client:
        key = world.connection.partitions.of(run_id).of_run(run_id).run
        assert client.hset(key, "spec_version", state.removeprefix("version ")) == 0
    return run_id


async def run_state(world: RedisWorld, run_id: str) -> str:
    try:
        return (await world.runs.get(run_id)).status
    except RunNotFoundError:
        return "missing"


# Contract: 5.order of checks, 5.terminal runs, 5.nothing left behind, 4.conflicts
# Contract: 5.run_created, 5.run_started, 5.resilient start, 5.ends of runs, 5.attr_set
@pytest.mark.large
@cells(RUN)
async def test_a_run(
    world: RedisWorld, backend: Backend, event: str, state: str, outcome: Outcome
) -> None:
    run_id = await run_in(world, backend, state)
    await drive(world, backend, run_id, event, outcome, run_state)


# -- steps ---------------------------------------------------------------------------------

STEP_PATHS = {
    "missing": [],
    "pending": [e.step_created()],
    "too early": [
        e.step_created(),
        e.step_started(),
        e.step_retrying(retryAfter=datetime(2100, 1, 1, tzinfo=UTC)),
    ],
    "running": [e.step_created(), e.step_started()],
    "completed": [e.step_created(), e.step_started(), e.step_completed()],
    "failed": [e.lazy_start(), e.step_failed()],
}


async def step_state(world: RedisWorld, run_id: str) -> str:
    try:
        step = await world.steps.get(run_id, "step_1")
    except StepNotFoundError:
        return "missing"
    early = step.status == "pending" and step.retry_after is not None
    return "too early" if early else step.status


async def run_with(world: RedisWorld, paths: dict[str, list[e.Wire]], state: str) -> str:
    """A run in which the events of a state happened; ended afterwards where it says so."""
    state, _, ended = state.partition("; ")
    run_id = await e.new_run(world)
    for wire in paths[state]:
        await world.events.create(run_id, wire)
    if ended:
        await world.events.create(run_id, e.run_ended("completed"))
    return run_id


# Contract: 5.terminal runs, 5.nothing left behind, 4.conflicts, 4.too early, 5.step_created
# Contract: 5.step_started, 5.lazy start, 5.ends of steps, 5.step_retrying
@pytest.mark.large
@cells(STEP)
async def test_a_step(
    world: RedisWorld, backend: Backend, event: str, state: str, outcome: Outcome
) -> None:
    run_id = await run_with(world, STEP_PATHS, state)
    assert await step_state(world, run_id) == state.partition("; ")[0]
    await drive(world, backend, run_id, event, outcome, step_state)


# -- hooks ---------------------------------------------------------------------------------

HOOK_PATHS = {
    "missing": [],
    "live": [e.hook_created()],
    "disposed": [e.hook_created(), e.hook_disposed()],
    "conflicted": [e.hook_created()],
}


async def hook_state(world: RedisWorld, run_id: str) -> str:
    try:
        await world.hooks.get("hook_1", run_id=run_id)
    except HookNotFoundError:
        types = [each.event_type for each in await e.log(world, run_id)]
        ends = {"hook_conflict": "conflicted", "hook_disposed": "disposed"}
        return next((ends[kind] for kind in types if kind in ends), "missing")
    return "live"


async def hook_in(world: RedisWorld, state: str) -> str:
    holds_token = "token taken" in state or "conflicted" in state
    holder = await e.new_run(world)
    if holds_token:
        await world.events.create(holder, e.hook_created("holder"))
    if state == "missing; token taken":
        return await e.new_run(world)
    if state == "retained; run ended":
        run_id = await e.new_run(world)
        until = (await world.runs.get(run_id)).created_at + timedelta(days=1)
        await e.write(world, run_id, e.hook_created(tokenRetentionUntil=until))
        await e.write(world, run_id, e.run_ended("completed"))
        return run_id
    run_id = await run_with(world, HOOK_PATHS, state.removesuffix("; token free"))
    if state.endswith("token free"):
        await world.events.create(holder, e.hook_disposed("holder"))
    return run_id


# Contract: 5.terminal runs, 5.nothing left behind, 4.conflicts, 5.hook_created
# Contract: 5.hook_conflict, 5.hook_received, 5.hook_disposed
@cells(HOOK)
async def test_a_hook(
    world: RedisWorld, backend: Backend, event: str, state: str, outcome: Outcome
) -> None:
    run_id = await hook_in(world, state)
    await drive(world, backend, run_id, event, outcome, hook_state)


# -- waits ---------------------------------------------------------------------------------

WAIT_PATHS = {
    "missing": [],
    "waiting": [e.wait_created()],
    "completed": [e.wait_created(), e.wait_completed()],
}


async def wait_state(world: RedisWorld, run_id: str) -> str:
    try:
        return (await world.waits.get(run_id, "wait_1")).status
    except WaitNotFoundError:
        return "missing"


# Contract: 5.terminal runs, 5.nothing left behind, 4.conflicts, 5.wait_created
# Contract: 5.wait_completed
@cells(WAIT)
async def test_a_wait(
    world: RedisWorld, backend: Backend, event: str, state: str, outcome: Outcome
) -> None:
    run_id = await run_with(world, WAIT_PATHS, state)
    await drive(world, backend, run_id, event, outcome, wait_state)


# -- the tables themselves -----------------------------------------------------------------


def test_every_event_has_a_row() -> None:
    """A new event must be put into the tables."""
    kinds = {wire["eventType"] for wire in EVENTS.values()}
    assert len(kinds) == 16
    assert {row.partition(",")[0] for table in TABLES.values() for row in table.rows} == kinds
    assert set(RUN.rows) == set(EVENTS)
