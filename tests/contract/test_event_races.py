"""Rivals for one transition, on several connections at once (contract, sections 1 and 5).

Exactly one of them wins, the others get the typed error that runtimes swallow, and what is left
is a log with dense slots that makes exactly the entities that are read.
"""

# Contract: 1.rivals

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

import pytest
import pytest_asyncio

from redis_world import RedisWorld
from redis_world.errors import (
    EntityConflictError,
    HookNotFoundError,
    HookResumeConflictError,
    RunExpiredError,
    WaitNotFoundError,
    WorldError,
)
from redis_world.models import EventResult
from support import events as e
from support.backends import Backend
from support.folding import assert_log_folds

pytestmark = pytest.mark.large

CALLERS: Final = 20

Worlds = list[RedisWorld]
Outcomes = Sequence[EventResult | Exception]


@pytest_asyncio.fixture
async def worlds(backend: Backend) -> AsyncIterator[Worlds]:
    """Four Worlds of one namespace, as four processes have them."""
    namespace = backend.namespace()
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(backend.world(namespace=namespace)) for _ in range(4)
        ]


def split(outcomes: Outcomes) -> tuple[list[EventResult], list[Exception]]:
    won = [each for each in outcomes if isinstance(each, EventResult)]
    lost = [each for each in outcomes if isinstance(each, Exception)]
    return won, lost


def slots(results: Sequence[EventResult]) -> list[str]:
    """The event ids of results, which no two of them share."""
    ids = [each.event.event_id or "" for each in results if each.event is not None]
    assert len(set(ids)) == len(ids)
    return sorted(ids)


# -- exactly one wins ----------------------------------------------------------------------


@dataclass(frozen=True)
class Race:
    """What happened before, who competes, what the losers get, and what the winner added."""

    rivals: tuple[e.Wire, ...]
    loss: tuple[type[WorldError], str | None]
    before: tuple[e.Wire, ...] = ()
    status: str = "running"
    added: int = 1


DUPLICATE: Final = (EntityConflictError, "duplicate")

RACES: Final = {
    "step_created": Race((e.step_created(),), DUPLICATE),
    "step_started, lazy": Race((e.lazy_start(),), DUPLICATE, added=2),
    "step_completed": Race(
        (e.step_completed(),), (EntityConflictError, "step_terminal"), (e.lazy_start(),)
    ),
    "step_failed": Race(
        (e.step_failed(),), (EntityConflictError, "step_terminal"), (e.lazy_start(),)
    ),
    "step_completed and step_failed": Race(
        (e.step_completed(), e.step_failed()),
        (EntityConflictError, "step_terminal"),
        (e.lazy_start(),),
    ),
    "hook_created": Race((e.hook_created(),), DUPLICATE),
    "hook_created, two tokens": Race(
        (e.hook_created(), e.hook_created(token="token_2")), DUPLICATE
    ),
    "hook_disposed": Race((e.hook_disposed(),), (HookNotFoundError, None), (e.hook_created(),)),
    "wait_created": Race((e.wait_created(),), DUPLICATE),
    "wait_completed": Race((e.wait_completed(),), DUPLICATE, (e.wait_created(),)),
    "attr_set by the workflow": Race(
        tuple(e.attr_set({"a": str(i)}, "attr_1") for i in range(4)), DUPLICATE
    ),
    "run_completed": Race((e.run_ended("completed"),), (EntityConflictError, "run_terminal")),
    "run_failed": Race((e.run_ended("failed"),), (EntityConflictError, "run_terminal")),
    "run_completed and run_failed": Race(
        (e.run_ended("completed"), e.run_ended("failed")),
        (EntityConflictError, "run_terminal"),
        (e.lazy_start(), e.hook_created(), e.wait_created()),
    ),
    "run_failed of a pending run": Race(
        (e.run_ended("failed"),), (EntityConflictError, "run_terminal"), status="pending"
    ),
}


# Contract: 1.rivals, 5.ends of steps, 5.wait_completed, 5.hook_disposed
@pytest.mark.parametrize("name", RACES)
async def test_exactly_one_wins(worlds: Worlds, name: str) -> None:
    case = RACES[name]
    run_id = await e.new_run(worlds[0], case.status)
    for wire in case.before:
        await worlds[0].events.create(run_id, wire)
    length = len(await e.log(worlds[0], run_id))
    rivals = [case.rivals[i % len(case.rivals)] for i in range(CALLERS)]
    won, lost = split(await e.race(worlds, run_id, rivals))
    assert len(won) == 1
    error, reason = case.loss
    assert {type(each) for each in lost} == {error}
    assert {getattr(each, "reason", None) for each in lost} == {reason}
    assert won[0].event is not None
    events = await e.log(worlds[0], run_id)
    assert events[-1] == won[0].event
    assert len(events) == length + case.added
    await assert_log_folds(worlds[0], run_id)


# Contract: 1.rivals, 5.run_created
async def test_one_creation_of_a_run_wins(worlds: Worlds) -> None:
    run_id = e.new_run_id()
    rivals = [e.run_created(input=bytes([i])) for i in range(CALLERS)]
    won, lost = split(await e.race(worlds, run_id, rivals))
    assert len(won) == 1
    assert {type(each) for each in lost} == {EntityConflictError}
    assert won[0].run == await worlds[0].runs.get(run_id)
    assert await e.log_types(worlds[0], run_id) == ["run_created"]
    await assert_log_folds(worlds[0], run_id)


# Contract: 1.rivals, 5.lazy start
async def test_lazy_starts_and_creations_of_a_step_have_one_winner(worlds: Worlds) -> None:
    """A deferred creation must not start a step that somebody else created."""
    run_id = await e.new_run(worlds[0])
    rivals = [e.step_created(), e.lazy_start()] * (CALLERS // 2)
    won, lost = split(await e.race(worlds, run_id, rivals))
    assert len(won) == 1
    assert {type(each) for each in lost} == {EntityConflictError}
    step = await worlds[0].steps.get(run_id, "step_1")
    assert step.attempt == (1 if won[0].step_created else 0)
    await assert_log_folds(worlds[0], run_id)


# -- several may succeed -------------------------------------------------------------------


# Contract: 1.rivals, 5.run_started
async def test_all_starts_of_a_run_succeed_and_one_is_recorded(worlds: Worlds) -> None:
    run_id = await e.new_run(worlds[0], "pending")
    won, lost = split(await e.race(worlds, run_id, [e.event("run_started")] * CALLERS))
    assert not lost
    assert [each.event_id for each in (r.event for r in won) if each] == [e.event_id(2)] * CALLERS
    assert {(r.run.status, r.run.started_at) for r in won if r.run} == {
        ("running", (await worlds[0].runs.get(run_id)).started_at)
    }
    log = await e.log(worlds[0], run_id)
    assert [each.event_type for each in log] == ["run_created", "run_started"]
    assert all(r.events == log for r in won)
    await assert_log_folds(worlds[0], run_id)


# Contract: 1.rivals, 5.resilient start
async def test_resilient_starts_and_a_creation_make_one_run(worlds: Worlds) -> None:
    run_id = e.new_run_id()
    rivals = [e.resilient_start(input=bytes([i])) for i in range(CALLERS)]
    rivals[::4] = [e.run_created(input=bytes([i])) for i in range(0, CALLERS, 4)]
    outcomes = await e.race(worlds, run_id, rivals)
    started, refused = split([each for i, each in enumerate(outcomes) if i % 4])
    created, lost = split(outcomes[::4])
    assert not refused
    assert len(created) <= 1
    assert {type(each) for each in lost} == {EntityConflictError}
    # Those that find the run running answer what has started it.
    assert {each.event.event_id for each in started if each.event is not None} == {e.event_id(2)}
    assert await e.log_types(worlds[0], run_id) == ["run_created", "run_started"]
    await assert_log_folds(worlds[0], run_id)


# Contract: 1.rivals, 5.ends of runs
async def test_all_cancellations_succeed_and_the_first_ends_the_run(worlds: Worlds) -> None:
    run_id = await e.new_run(worlds[0])
    await e.write(worlds[0], run_id, e.hook_created(), e.wait_created())
    won, lost = split(await e.race(worlds, run_id, [e.run_ended("cancelled")] * CALLERS))
    assert not lost
    assert slots(won) == [e.event_id(5 + i) for i in range(CALLERS)]
    completed = {each.run.completed_at for each in won if each.run is not None}
    assert completed == {(await e.log(worlds[0], run_id))[4].created_at}
    await assert_log_folds(worlds[0], run_id)


# Contract: 1.rivals, 5.ends of runs
async def test_one_kind_of_end_wins(worlds: Worlds) -> None:
    run_id = await e.new_run(worlds[0])
    await e.write(worlds[0], run_id, e.lazy_start(), e.hook_created(), e.wait_created())
    kinds = [e.TERMINAL[i % 3] for i in range(CALLERS)]
    outcomes = await e.race(worlds, run_id, [e.run_ended(kind) for kind in kinds])
    status = (await worlds[0].runs.get(run_id)).status
    for kind, outcome in zip(kinds, outcomes, strict=True):
        if kind != status:
            assert isinstance(outcome, EntityConflictError)
            assert outcome.reason == "run_terminal"
    won, _ = split(outcomes)
    assert len(won) == (kinds.count("cancelled") if status == "cancelled" else 1)
    assert len(await e.log(worlds[0], run_id)) == 6 + len(won)
    await assert_log_folds(worlds[0], run_id)


# Contract: 5.step_started
async def test_every_bare_start_counts_an_attempt(worlds: Worlds) -> None:
    run_id = await e.new_run(worlds[0])
    await worlds[0].events.create(run_id, e.step_created())
    won, lost = split(await e.race(worlds, run_id, [e.step_started()] * CALLERS))
    assert not lost
    attempts = [each.step.attempt for each in won if each.step is not None]
    assert sorted(attempts) == list(range(1, CALLERS + 1))
    by_attempt = sorted(won, key=lambda each: each.step.attempt if each.step else 0)
    assert [each.event.event_id for each in by_attempt if each.event] == slots(won)
    assert len({each.step.started_at for each in won if each.step}) == 1
    await assert_log_folds(worlds[0], run_id)


# Contract: 5.ends of steps
async def test_a_step_s_end_is_its_last_event(worlds: Worlds) -> None:
    """Whatever else is on its way: starts and retries come before it or not at all."""
    run_id = await e.new_run(worlds[0])
    await worlds[0].events.create(run_id, e.lazy_start())
    rivals = [e.step_started(), e.step_retrying(), e.step_completed(), e.step_failed()]
    _, lost = split(await e.race(worlds, run_id, rivals * (CALLERS // 4)))
    assert {type(each) for each in lost} == {EntityConflictError}
    assert {each.reason for each in lost if isinstance(each, EntityConflictError)} == {
        "step_terminal"
    }
    types = (await e.log_types(worlds[0], run_id))[4:]
    ends = [kind for kind in types if kind in ("step_completed", "step_failed")]
    assert len(ends) == 1
    assert types[-1] == ends[0]
    await assert_log_folds(worlds[0], run_id)


# Contract: 5.attr_set
async def test_steps_attribute_writes_all_count(worlds: Worlds) -> None:
    run_id = await e.new_run(worlds[0])
    rivals = [e.attr_set({f"k{i}": "v", "last": str(i)}, step=f"s{i}") for i in range(CALLERS)]
    won, lost = split(await e.race(worlds, run_id, rivals))
    assert not lost
    assert slots(won) == [e.event_id(3 + i) for i in range(CALLERS)]
    folded = await assert_log_folds(worlds[0], run_id)
    assert len(folded.run["attributes"]) == CALLERS + 1


# Contract: 5.attributes
async def test_no_more_attributes_get_in_than_a_run_may_have(worlds: Worlds) -> None:
    run_id = await e.new_run(worlds[0], attributes={f"k{i}": "v" for i in range(59)})
    rivals = [e.attr_set({f"new{i}": "v"}, f"attr_{i}") for i in range(CALLERS)]
    won, _ = split(await e.race(worlds, run_id, rivals))
    assert len(won) == 5
    folded = await assert_log_folds(worlds[0], run_id)
    assert len(folded.run["attributes"]) == 64


# -- hooks ---------------------------------------------------------------------------------


# Contract: 1.rivals, 5.hook_conflict
async def test_a_token_has_one_owner(worlds: Worlds) -> None:
    runs = [await e.new_run(worlds[0]) for _ in range(CALLERS)]
    won, lost = split(await e.race(worlds, runs, [e.hook_created(token="shared")] * CALLERS))
    assert not lost
    kinds = Counter(each.event.event_type for each in won if each.event is not None)
    assert kinds == {"hook_created": 1, "hook_conflict": CALLERS - 1}
    owner = (await worlds[0].hooks.get_by_token("shared")).run_id
    for run_id, result in zip(runs, won, strict=True):
        assert (result.hook is not None) == (run_id == owner)
        if run_id != owner:
            assert e.data_of(result.event) == {"token": "shared", "conflictingRunId": owner}
        await assert_log_folds(worlds[0], run_id)


# Contract: 5.hook_created, 5.hook_conflict
async def test_rival_replays_of_a_hook_leave_one_outcome(worlds: Worlds) -> None:
    """While its token is freed: either created or in conflict, never both."""
    owner, run_id = await e.new_run(worlds[0]), await e.new_run(worlds[0])
    await worlds[0].events.create(owner, e.hook_created("hook_0", "shared"))
    rivals = [e.hook_created(token="shared")] * CALLERS
    rivals[7] = e.hook_disposed("hook_0")
    ids = [owner if i == 7 else run_id for i in range(CALLERS)]
    outcomes = await e.race(worlds, ids, rivals)
    assert isinstance(outcomes.pop(7), EventResult)
    won, lost = split(outcomes)
    assert len(won) == 1
    assert {type(each) for each in lost} == {EntityConflictError}
    types = await e.log_types(worlds[0], run_id)
    assert types[2:] in (["hook_created"], ["hook_conflict"])
    hooks = (await worlds[0].hooks.list()).data
    assert len(hooks) == (types[2:] == ["hook_created"])


# Contract: 5.hook_disposed, 5.ends of runs
async def test_a_token_passes_from_hook_to_hook_without_a_second_owner(worlds: Worlds) -> None:
    owner = await e.new_run(worlds[0])
    await worlds[0].events.create(owner, e.hook_created("hook_0", "shared"))
    runs = [await e.new_run(worlds[0]) for _ in range(CALLERS - 1)]
    rivals = [e.hook_created(token="shared")] * (CALLERS - 1)
    rivals.insert(9, e.run_ended("completed"))
    outcomes = await e.race(worlds, [*runs[:9], owner, *runs[9:]], rivals)
    won, lost = split(outcomes)
    assert not lost
    live = [each.hook for each in won if each.hook is not None]
    assert (await worlds[0].hooks.list()).data == live
    assert len(live) <= 1
    if live:
        assert (await worlds[0].hooks.get_by_token("shared")).run_id == live[0].run_id
    else:
        with pytest.raises(HookNotFoundError):
            await worlds[0].hooks.get_by_token("shared")


# Contract: 5.hook_received
async def test_all_that_is_received_counts(worlds: Worlds) -> None:
    run_id = await e.new_run(worlds[0])
    await worlds[0].events.create(run_id, e.hook_created())
    rivals = [e.hook_received(payload=bytes([i])) for i in range(CALLERS)]
    won, lost = split(await e.race(worlds, run_id, rivals))
    assert not lost
    assert slots(won) == [e.event_id(4 + i) for i in range(CALLERS)]
    log = await e.log(worlds[0], run_id)
    assert {e.data_of(each)["payload"] for each in log[3:]} == {bytes([i]) for i in range(CALLERS)}


# Contract: 1.rivals, 5.resume dedupe
async def test_one_resume_is_one_event(worlds: Worlds) -> None:
    run_id = await e.new_run(worlds[0])
    await worlds[0].events.create(run_id, e.hook_created())
    rivals = [e.hook_received(payload=bytes([i])) for i in range(CALLERS)]
    won, lost = split(await e.race(worlds, run_id, rivals, resume_id="r"))
    assert not lost
    log = await e.log(worlds[0], run_id)
    assert len(log) == 4
    assert all(each.event == log[3] for each in won)


# Contract: 1.rivals, 5.resume dedupe
async def test_one_of_two_payloads_of_a_resume_stands(worlds: Worlds) -> None:
    run_id = await e.new_run(worlds[0])
    await worlds[0].events.create(run_id, e.hook_created())
    groups = await asyncio.gather(
        *(
            e.race(
                worlds,
                run_id,
                [e.hook_received(payload=payload)] * (CALLERS // 2),
                resume_id="r",
                payload_digest=payload.decode(),
            )
            for payload in (b"1", b"2")
        )
    )
    log = await e.log(worlds[0], run_id)
    assert len(log) == 4
    winner = 0 if e.data_of(log[3])["payload"] == b"1" else 1
    assert all(isinstance(each, EventResult) and each.event == log[3] for each in groups[winner])
    assert {type(each) for each in groups[1 - winner]} == {HookResumeConflictError}


# Contract: 5.hook_disposed
async def test_nothing_is_received_after_the_disposal(worlds: Worlds) -> None:
    run_id = await e.new_run(worlds[0])
    await worlds[0].events.create(run_id, e.hook_created())
    rivals = [e.hook_received()] * CALLERS
    rivals[10] = e.hook_disposed()
    outcomes = await e.race(worlds, run_id, rivals)
    assert isinstance(outcomes[10], EventResult)
    won, lost = split(outcomes)
    assert {type(each) for each in lost} <= {HookNotFoundError}
    types = await e.log_types(worlds[0], run_id)
    assert types[-1] == "hook_disposed"
    assert len(types) == 3 + len(won)


# -- the end of a run against everything ---------------------------------------------------


# Contract: 5.terminal runs
async def test_nothing_begins_after_the_end_of_a_run(worlds: Worlds) -> None:
    run_id = await e.new_run(worlds[0])
    await e.write(
        worlds[0], run_id, e.lazy_start("old"), e.hook_created("old", "old"), e.wait_created("old")
    )
    rivals = [
        wire
        for i in range(6)
        for wire in (
            e.step_created(f"a{i}"),
            e.lazy_start(f"b{i}"),
            e.hook_created(f"c{i}", f"c{i}"),
            e.wait_created(f"d{i}"),
            e.attr_set({f"e{i}": "v"}),
            e.hook_received("old"),
            e.step_started("old"),
        )
    ]
    rivals.insert(20, e.run_ended("completed"))
    rivals.append(e.wait_completed("old"))
    rivals.append(e.step_completed("old"))
    outcomes = await e.race(worlds, run_id, rivals)
    end = outcomes[20]
    assert isinstance(end, EventResult)
    assert end.event is not None
    _, lost = split(outcomes)
    assert lost
    assert {type(each) for each in lost} <= {
        EntityConflictError,
        HookNotFoundError,
        RunExpiredError,
        WaitNotFoundError,
    }
    log = await e.log(worlds[0], run_id)
    late = [each.event_type for each in log[log.index(end.event) + 1 :]]
    assert late in ([], ["step_completed"])
    await assert_log_folds(worlds[0], run_id)
    other = await e.new_run(worlds[0])
    for token in ("old", *[f"c{i}" for i in range(6)]):
        result = await worlds[0].events.create(other, e.hook_created(token, token))
        assert result.hook is not None


# Contract: 2.slots
async def test_every_writer_gets_a_slot_of_its_own(worlds: Worlds) -> None:
    """All kinds of events of several runs at once, over all connections."""
    runs = [await e.new_run(worlds[0]) for _ in range(4)]
    rivals = [
        wire
        for i in range(8)
        for wire in (
            e.step_created(f"a{i}"),
            e.lazy_start(f"b{i}"),
            e.wait_created(f"c{i}"),
            e.attr_set({f"d{i}": "v"}, f"d{i}"),
        )
        for _ in runs
    ]
    outcomes = await e.race(worlds, [runs[i % 4] for i in range(len(rivals))], rivals)
    for i, run_id in enumerate(runs):
        won, lost = split(outcomes[i::4])
        assert not lost
        slots(won)
        assert len(await e.log(worlds[0], run_id)) == 2 + 8 * 5
        await assert_log_folds(worlds[0], run_id)
