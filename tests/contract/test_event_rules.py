"""What events of runs, steps and waits do, beyond their states (contract, sections 2, 3 and 5).

Hooks and attributes have modules of their own.
"""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redis_world import RedisWorld
from redis_world.errors import (
    EntityConflictError,
    InvalidCursorError,
    InvalidEventError,
    RunNotFoundError,
    RunNotSupportedError,
    TooEarlyError,
)
from redis_world.models import (
    AttributeChange,
    AttributeWriter,
    AttrSetData,
    AttrSetEvent,
    BaseEvent,
    EventResult,
    HookCreatedData,
    HookCreatedEvent,
    HookReceivedData,
    HookReceivedEvent,
    RunCompletedData,
    RunCompletedEvent,
    RunCreatedData,
    RunCreatedEvent,
    RunStartedData,
    RunStartedEvent,
    StepCreatedData,
    StepCreatedEvent,
    StepStartedData,
    StepStartedEvent,
    WaitCompletedEvent,
    WaitCreatedData,
    WaitCreatedEvent,
)
from redis_world.testing import ManualClock
from support import events as e
from support.backends import Backend
from support.folding import assert_log_folds

Clocked = tuple[RedisWorld, ManualClock]

LATER = datetime(2041, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)

# -- ids -----------------------------------------------------------------------------------


# Contract: 2.run ids
async def test_a_run_id_is_made_from_the_server_s_time(clocked: Clocked) -> None:
    world, clock = clocked
    began = time.monotonic()
    await clock.set(LATER)
    result = await world.events.create(None, e.run_created())
    assert result.run is not None
    run_id = result.run.run_id
    assert len(run_id) == len("wrun_") + 26
    # The process counts on from the last answer of the server.
    passed = timedelta(seconds=time.monotonic() - began)
    assert e.run_id_at(LATER)[:15] <= run_id[:15] <= e.run_id_at(LATER + passed)[:15]
    assert result.event is not None
    assert (result.event.run_id, result.event.event_id) == (run_id, e.event_id(1))


# Contract: 2.run ids
@pytest.mark.parametrize(
    ("age", "accepted"),
    [
        (timedelta(hours=24), True),
        (timedelta(hours=24, milliseconds=1), False),
        (timedelta(0), True),
        (timedelta(minutes=-5), True),
        (timedelta(minutes=-5, milliseconds=-1), False),
        (timedelta(days=4000), False),
    ],
    ids=str,
)
async def test_the_age_of_a_client_s_run_id_is_limited(
    clocked: Clocked, backend: Backend, age: timedelta, accepted: bool
) -> None:
    world, clock = clocked
    run_id = e.run_id_at(clock.now - age)
    if accepted:
        result = await world.events.create(run_id, e.run_created())
        assert result.run is not None
        assert result.run.run_id == run_id
        return
    before = backend.dump()
    with pytest.raises(InvalidEventError, match="24 h"):
        await world.events.create(run_id, e.run_created())
    assert backend.dump() == before


# Contract: 2.run ids
@pytest.mark.parametrize(
    "run_id",
    [
        "run_1",
        "wrun_",
        "wrun_" + "0" * 25,
        "wrun_" + "0" * 27,
        "wrun_" + "8" + "0" * 25,  # beyond 128 bits
        "wrun_01ILOU" + "0" * 20,  # letters that Crockford left out
        "msg_" + "0" * 26,
    ],
)
@pytest.mark.parametrize(
    "wire", [e.run_created(), e.resilient_start()], ids=["created", "started"]
)
async def test_a_run_is_not_created_under_a_malformed_id(
    world: RedisWorld, backend: Backend, run_id: str, wire: e.Wire
) -> None:
    before = backend.dump()
    with pytest.raises(InvalidEventError):
        await world.events.create(run_id, wire)
    assert backend.dump() == before


# Contract: 2.run ids, 5.resilient start
async def test_a_resilient_start_takes_a_run_id_of_any_age(clocked: Clocked) -> None:
    world, clock = clocked
    for age in (timedelta(days=400), timedelta(days=-400)):
        run_id = e.run_id_at(clock.now - age)
        result = await world.events.create(run_id, e.resilient_start())
        assert result.run is not None
        assert result.run.status == "running"


# Contract: 2.run ids, 5.resilient start
@pytest.mark.parametrize("age", [timedelta(days=2), timedelta(days=400), timedelta(days=-400)])
async def test_a_late_run_created_is_in_conflict_whatever_the_age_of_its_id(
    clocked: Clocked, backend: Backend, age: timedelta
) -> None:
    """To a client "invalid" means that its start has failed, though the run is there."""
    world, clock = clocked
    run_id = e.run_id_at(clock.now - age)
    await world.events.create(run_id, e.resilient_start())
    before = backend.dump()
    with pytest.raises(EntityConflictError) as caught:
        await world.events.create(run_id, e.run_created())
    assert caught.value.reason == "duplicate"
    assert backend.dump() == before


# Contract: 2.slots, 5.nothing left behind
async def test_slots_are_dense_over_refused_events_and_runs(world: RedisWorld) -> None:
    """A rejected write takes no slot, and each run counts for itself."""
    runs = [await e.new_run(world), await e.new_run(world)]
    for i in range(3):
        for run_id in runs:
            await world.events.create(run_id, e.step_created(f"step_{i}"))
            with pytest.raises(EntityConflictError):
                await world.events.create(run_id, e.step_created(f"step_{i}"))
    for run_id in runs:
        ids = [each.event_id for each in await e.log(world, run_id)]
        assert ids == [e.event_id(slot) for slot in range(1, 6)]
        assert ids == sorted(ids, key=str)


# Contract: 1.ids of a run
async def test_correlation_ids_are_of_their_run(world: RedisWorld) -> None:
    runs = [await e.new_run(world), await e.new_run(world)]
    for run_id in runs:
        await e.write(
            world, run_id, e.step_created("x"), e.wait_created("x"), e.hook_created("x", run_id)
        )
    await e.write(world, runs[0], e.step_completed("x"), e.wait_completed("x"))
    await world.events.create(runs[0], e.hook_disposed("x"))
    assert (await world.steps.get(runs[1], "x")).status == "pending"
    assert (await world.waits.get(runs[1], "x")).status == "waiting"
    assert (await world.hooks.get("x")).run_id == runs[1]
    for run_id in runs:
        await assert_log_folds(world, run_id)


# Contract: 1.ids of a run
@pytest.mark.parametrize("odd", ["a/b:c", "{x}", "%41", "\u00e9\U0001f600", " ", "*", "a\x00b"])
async def test_correlation_ids_are_any_text(world: RedisWorld, odd: str) -> None:
    run_id = await e.new_run(world)
    await e.write(
        world, run_id, e.step_created(odd), e.hook_created(odd, odd), e.wait_created(odd)
    )
    await e.write(world, run_id, e.attr_set({odd: odd}, odd), e.lazy_start(odd + "2"))
    assert (await world.steps.get(run_id, odd)).step_id == odd
    assert (await world.hooks.get_by_token(odd)).hook_id == odd
    assert (await world.waits.get(run_id, odd)).wait_id == f"{run_id}-{odd}"
    await assert_log_folds(world, run_id)
    await e.write(world, run_id, e.hook_disposed(odd), e.run_ended("completed"))
    await assert_log_folds(world, run_id)


# -- spec versions -------------------------------------------------------------------------


# Contract: 2.spec versions
async def test_the_spec_version_is_stamped_as_sent(world: RedisWorld) -> None:
    for sent, stamped in ((None, 7), (2, 2), (4, 4), (7, 7)):
        version = {} if sent is None else {"specVersion": sent}
        result = await world.events.create(None, {**e.run_created(), **version})
        assert result.run is not None
        assert result.run.spec_version == stamped
        run_id = result.run.run_id
        for wire in (e.step_created(), e.hook_created(token=run_id), e.wait_created()):
            await world.events.create(run_id, {**wire, **version})
        assert {each.spec_version for each in await e.log(world, run_id)} == {stamped}
        assert (await world.steps.get(run_id, "step_1")).spec_version == stamped
        assert (await world.hooks.get("hook_1", run_id=run_id)).spec_version == stamped
        assert (await world.waits.get(run_id, "wait_1")).spec_version == stamped


# Contract: 2.spec versions
async def test_an_event_s_spec_version_is_its_own(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    result = await world.events.create(run_id, {**e.step_created(), "specVersion": 5})
    assert result.event is not None
    assert result.event.spec_version == 5
    assert (await world.runs.get(run_id)).spec_version == 7


# Contract: 2.spec versions
@pytest.mark.parametrize("version", [1, 8, 100])
@pytest.mark.parametrize(
    "wire", [e.run_created(), e.resilient_start()], ids=["created", "started"]
)
async def test_a_run_of_a_version_that_is_not_ours_is_not_created(
    world: RedisWorld, backend: Backend, wire: e.Wire, version: int
) -> None:
    before = backend.dump()
    with pytest.raises(RunNotSupportedError, match=str(version)):
        await world.events.create(e.new_run_id(), {**wire, "specVersion": version})
    assert backend.dump() == before


# Contract: 5.order of checks, 2.spec versions
@pytest.mark.parametrize("version", ["1", "8"])
async def test_the_spec_version_is_judged_before_run_and_entity_state(
    world: RedisWorld, backend: Backend, version: str
) -> None:
    """On a finished run with a running step, every event that checks the run finds its version."""
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.lazy_start(), e.run_ended("cancelled"))
    with contextlib.closing(backend.client()) as client:
        key = world.connection.partitions.of(run_id).of_run(run_id).run
        assert client.hset(key, "spec_version", version) == 0
    before = backend.dump()
    for wire in (
        e.event("run_started"),
        e.resilient_start(),
        *map(e.run_ended, e.TERMINAL),
        e.attr_set({"a": "b"}),
        e.step_created(),
        e.step_started(),
        e.lazy_start(),
        e.step_failed(),
        e.hook_created(),
        e.hook_received(),
        e.hook_disposed(),
        e.wait_created(),
        e.wait_completed(),
    ):
        with pytest.raises(RunNotSupportedError):
            await world.events.create(run_id, wire)
    assert backend.dump() == before


# -- runs ----------------------------------------------------------------------------------

FULL_CREATION: dict[str, Any] = {
    "deploymentId": "dpl_1",
    "workflowName": "workflow//./a//b",
    "input": e.ALL_BYTES,
    "executionContext": {
        "workflowCoreVersion": "5.0.0",
        "traceCarrier": {"traceparent": "00-1"},
        "features": {"encryption": True, "list": [3, 1, 2], "none": None, "half": 0.5},
    },
    "attributes": {"tenant": "acme", "$retention": "1d"},
    "allowReservedAttributes": True,
    "encryptionPublicKey": "key==",
    "somethingNew": [{"b": b"\x00\xff"}, "z", "a"],
}


# Contract: 5.run_created, 5.resilient start, 3.run
@pytest.mark.parametrize("kind", ["run_created", "run_started"])
async def test_a_run_keeps_every_field_it_is_created_with(world: RedisWorld, kind: str) -> None:
    run_id = e.new_run_id()
    wire = {**e.event(kind, **FULL_CREATION), "specVersion": 6}
    result = await world.events.create(run_id, wire)
    run = await world.runs.get(run_id)
    assert result.run == run
    kept = run.to_wire()
    names = ("deploymentId", "workflowName", "input", "executionContext", "encryptionPublicKey")
    for name in names:
        assert kept[name] == FULL_CREATION[name], name
    assert kept["attributes"] == FULL_CREATION["attributes"]
    assert kept["specVersion"] == 6
    first = (await e.log(world, run_id))[0]
    assert (first.event_type, first.event_id, first.spec_version) == (
        "run_created",
        e.event_id(1),
        6,
    )
    assert e.data_of(first) == FULL_CREATION


# Contract: 5.run_created, 5.resilient start
@pytest.mark.parametrize("kind", ["run_created", "run_started"])
async def test_empty_texts_count_as_given(world: RedisWorld, kind: str) -> None:
    run_id = e.new_run_id()
    data = {"deploymentId": "", "workflowName": "", "input": "", "encryptionPublicKey": ""}
    await world.events.create(run_id, e.event(kind, **data))
    run = (await world.runs.get(run_id)).to_wire()
    assert {name: run.get(name) for name in data} == data


# Contract: 5.resilient start
@pytest.mark.parametrize("missing", ["deploymentId", "workflowName", "input"])
async def test_a_start_without_all_that_a_run_is_made_of_creates_none(
    world: RedisWorld, backend: Backend, missing: str
) -> None:
    wire = e.resilient_start()
    del wire["eventData"][missing]
    before = backend.dump()
    with pytest.raises(RunNotFoundError):
        await world.events.create(e.new_run_id(), wire)
    assert backend.dump() == before


# Contract: 5.resilient start
async def test_a_resilient_start_is_two_events_and_a_late_creation_conflicts(
    clocked: Clocked,
) -> None:
    world, clock = clocked
    run_id = e.run_id_at(clock.now)
    result = await world.events.create(run_id, e.resilient_start())
    assert result.event is not None
    assert result.run is not None
    assert result.event.event_id == e.event_id(2)
    assert "eventData" not in result.event.to_wire()
    assert await e.log_types(world, run_id) == ["run_created", "run_started"]
    assert result.events == await e.log(world, run_id)
    assert result.run.created_at == result.run.started_at == clock.now
    with pytest.raises(EntityConflictError) as raised:
        await world.events.create(run_id, e.run_created())
    assert raised.value.reason == "duplicate"
    await assert_log_folds(world, run_id)


# Contract: 5.resilient start
async def test_a_resilient_start_of_a_run_that_exists_changes_none_of_its_fields(
    world: RedisWorld,
) -> None:
    run_id = await e.new_run(world, "pending", attributes={"a": "1"})
    other = {
        "deploymentId": "dpl_2",
        "workflowName": "other",
        "input": b"other",
        "attributes": {"a": "2"},
    }
    result = await world.events.create(run_id, e.event("run_started", **other))
    run = await world.runs.get(run_id)
    assert result.run == run
    assert (run.deployment_id, run.workflow_name, run.input) == ("dpl_1", "workflow//w", b"in")
    assert run.attributes == {"a": "1"}
    assert await e.log_types(world, run_id) == ["run_created", "run_started"]


# Contract: 3.unstored data, 5.run_started
async def test_the_data_of_a_start_is_not_stored(world: RedisWorld) -> None:
    run_id = await e.new_run(world, "pending")
    result = await world.events.create(run_id, e.resilient_start(more=1))
    last = (await e.log(world, run_id))[-1]
    for started in (result.event, last):
        assert started is not None
        assert "eventData" not in started.to_wire()


# Contract: 5.run_started, 5.event ceiling
async def test_a_start_of_a_running_run_changes_nothing_and_preloads(
    world: RedisWorld, backend: Backend
) -> None:
    run_id = await e.new_run(world)
    run, events, before = await world.runs.get(run_id), await e.log(world, run_id), backend.dump()
    for wire in (e.event("run_started"), e.resilient_start(input=b"other")):
        result = await world.events.create(run_id, wire)
        assert (result.event, result.run, result.events) == (events[1], run, events)
        assert result.cursor is not None
        assert result.has_more is False
        assert result.max_events == 25_000
        skipped = await world.events.create(run_id, wire, skip_preload=True)
        assert (skipped.event, skipped.run, skipped.events) == (events[1], run, None)
        assert skipped.max_events == 25_000
    assert backend.dump() == before


# Contract: 5.run_started
async def test_a_start_preloads_a_long_log_from_its_beginning(world: RedisWorld) -> None:
    """It may come as a first page; page and rest are the whole log."""
    run_id = await e.new_run(world)
    for i in range(150):
        await world.events.create(run_id, e.attr_set({"i": str(i)}))
    result = await world.events.create(run_id, e.event("run_started"))
    assert result.events
    rest = await world.events.list(run_id, cursor=result.cursor)
    assert result.has_more == bool(rest.data)
    assert result.events + rest.data == await e.log(world, run_id)


# Contract: 3.times
async def test_times_of_entities_are_those_of_their_events(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await e.new_run(world, "pending")
    for wire in (
        e.event("run_started"),
        e.step_created(),
        e.step_started(),
        e.step_retrying(retryAfter=LATER - timedelta(days=9000)),
        e.step_started(),
        e.step_completed(),
        e.lazy_start("step_2"),
        e.hook_created(),
        e.wait_created(),
        e.wait_completed(),
    ):
        await clock.advance(1.001)
        result = await world.events.create(run_id, wire)
        assert result.event is not None
        assert result.event.created_at == clock.now
    folded = await assert_log_folds(world, run_id)
    assert folded.steps["step_2"]["createdAt"] == folded.steps["step_2"]["startedAt"]
    await clock.advance(1)
    result = await world.events.create(run_id, e.run_ended("failed"))
    assert result.run is not None
    assert result.run.completed_at == clock.now
    await assert_log_folds(world, run_id)


# Contract: 5.ends of runs, 5.terminal runs
async def test_a_second_cancellation_is_one_more_event_and_changes_no_run(
    clocked: Clocked,
) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    first = await world.events.create(run_id, e.event("run_cancelled", cancelReason="first"))
    await clock.advance(5)
    second = await world.events.create(run_id, e.event("run_cancelled", cancelReason="second"))
    assert second.run == first.run == await world.runs.get(run_id)
    assert second.max_events == 25_000
    last = (await e.log(world, run_id))[-2:]
    assert [e.data_of(each) for each in last] == [
        {"cancelReason": "first"},
        {"cancelReason": "second"},
    ]


# Contract: 5.ends of runs
async def test_the_reason_of_a_cancellation_is_kept_on_the_event_only(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    longest = "\U0001f600" * 256  # 512 UTF-16 units
    result = await world.events.create(run_id, e.event("run_cancelled", cancelReason=longest))
    assert e.data_of(result.event) == {"cancelReason": longest}
    assert result.run is not None
    assert longest not in repr(result.run.to_wire())


# Contract: 5.ends of runs
@pytest.mark.parametrize("status", e.TERMINAL)
async def test_the_end_of_a_run_takes_hooks_tokens_and_waits_but_no_step(
    world: RedisWorld, status: str
) -> None:
    run_id = await e.new_run(world)
    steps = [e.step_created("pending"), e.lazy_start("running"), e.step_created("done")]
    await e.write(world, run_id, *steps, e.step_completed("done"))
    await e.write(world, run_id, *[e.hook_created(f"hook_{i}", f"token_{i}") for i in range(3)])
    await e.write(world, run_id, *[e.wait_created(f"wait_{i}") for i in range(3)])
    before = (await world.steps.list(run_id)).data
    await world.events.create(run_id, e.run_ended(status))
    assert (await world.steps.list(run_id)).data == before
    assert [step.status for step in before] == ["pending", "running", "completed"]
    assert (await world.hooks.list(run_id)).data == []
    assert (await world.hooks.list()).data == []
    assert (await world.waits.list(run_id)).data == []
    other = await e.new_run(world)
    for i in range(3):
        result = await world.events.create(other, e.hook_created(f"hook_{i}", f"token_{i}"))
        assert result.hook is not None
        assert (await world.hooks.get_by_token(f"token_{i}")).run_id == other


# Contract: 5.ends of runs
async def test_a_failed_run_keeps_error_and_code(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    wire = e.event("run_failed", error=e.ALL_BYTES, errorCode="USER_ERROR")
    result = await world.events.create(run_id, wire)
    run = await world.runs.get(run_id)
    assert result.run == run
    assert (run.status, run.error, run.error_code) == ("failed", e.ALL_BYTES, "USER_ERROR")
    assert "output" not in run.to_wire()


# -- steps ---------------------------------------------------------------------------------


# Contract: 5.step_created, 5.step_started, 5.step_retrying, 5.ends of steps
async def test_the_life_of_a_step_over_two_attempts(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    created = await world.events.create(run_id, e.step_created())
    assert created.step is not None
    assert (created.step.status, created.step.attempt) == ("pending", 0)
    assert created.step.started_at is None
    first = await world.events.create(run_id, e.step_started())
    assert first.step is not None
    assert (first.step.status, first.step.attempt) == ("running", 1)
    assert (first.step_created, first.step.started_at) == (None, clock.now)
    retry_at = clock.now + timedelta(seconds=2)
    retrying = await world.events.create(run_id, e.step_retrying(retryAfter=retry_at))
    assert retrying.step is not None
    assert (retrying.step.status, retrying.step.attempt) == ("pending", 1)
    assert (retrying.step.error, retrying.step.retry_after) == (b"again", retry_at)
    await clock.advance(2)
    second = await world.events.create(run_id, e.step_started())
    assert second.step is not None
    assert (second.step.attempt, second.step.error) == (2, b"again")
    assert second.step.started_at == first.step.started_at
    assert "retryAfter" not in second.step.to_wire()
    done = await world.events.create(run_id, e.step_completed())
    assert done.step == await world.steps.get(run_id, "step_1")
    assert (done.step.status, done.step.output, done.step.attempt) == ("completed", b"res", 2)
    await assert_log_folds(world, run_id)


# Contract: 5.step_started, 4.too early
async def test_a_step_starts_at_its_retry_time_and_never_before(
    clocked: Clocked, backend: Backend
) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    retry_at = clock.now + timedelta(seconds=2.5)
    await e.write(world, run_id, e.lazy_start(), e.step_retrying(retryAfter=retry_at))
    for wait, left in ((0, 3), (0.5, 2), (1.999, 1)):
        await clock.advance(wait)
        before = backend.dump()
        with pytest.raises(TooEarlyError) as raised:
            await world.events.create(run_id, e.step_started())
        assert raised.value.retry_after == left
        assert backend.dump() == before
    await clock.advance(0.001)
    result = await world.events.create(run_id, e.step_started())
    assert result.step is not None
    assert result.step.attempt == 2


# Contract: 5.step_retrying
async def test_a_retry_without_a_time_clears_the_last_one(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.lazy_start(), e.step_retrying(retryAfter=LATER))
    assert (await world.steps.get(run_id, "step_1")).retry_after == LATER
    result = await world.events.create(run_id, e.step_retrying(error=b"other"))
    assert result.step is not None
    assert "retryAfter" not in result.step.to_wire()
    assert result.step.error == b"other"
    started = await world.events.create(run_id, e.step_started())
    assert started.step is not None
    assert started.step.status == "running"


# Contract: 5.step_started
async def test_a_running_step_may_be_started_again(world: RedisWorld) -> None:
    """A worker that died in an attempt left it running."""
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.lazy_start())
    result = await e.write(world, run_id, e.step_started(), e.step_started())
    assert result.step is not None
    assert (result.step.status, result.step.attempt) == ("running", 3)


# Contract: 5.lazy start, 3.unstored data
async def test_a_lazy_start_is_two_events(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    wire = e.lazy_start(input=e.ALL_BYTES, ownerMessageId="msg_1", attempt=1, new=[2, 1])
    result = await world.events.create(run_id, wire)
    assert result.step_created is True
    assert result.step == await world.steps.get(run_id, "step_1")
    assert (result.step.status, result.step.attempt) == ("running", 1)
    assert (result.step.step_name, result.step.input) == ("s", e.ALL_BYTES)
    created, started = (await e.log(world, run_id))[-2:]
    assert result.event == started
    assert (created.event_type, started.event_type) == ("step_created", "step_started")
    assert (created.correlation_id, started.correlation_id) == ("step_1", "step_1")
    made = e.data_of(created)
    assert (made["stepName"], made["input"]) == ("s", e.ALL_BYTES)
    rest = {"stepName": "s", "ownerMessageId": "msg_1", "attempt": 1, "new": [2, 1]}
    assert e.data_of(started) == rest


# Contract: 5.lazy start
@pytest.mark.parametrize("value", [None, "", b""], ids=repr)
async def test_an_empty_input_makes_a_start_lazy_too(world: RedisWorld, value: object) -> None:
    run_id = await e.new_run(world)
    result = await world.events.create(run_id, e.lazy_start(stepName="", input=value))
    assert result.step_created is True
    step = await world.steps.get(run_id, "step_1")
    assert (step.input, step.step_name) == (value, "")
    assert "input" in step.to_wire()


# Contract: 5.step_started
async def test_a_start_with_a_name_alone_is_bare(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.step_created())
    result = await world.events.create(run_id, e.step_started(stepName="s", attempt=1))
    assert result.step_created is None
    assert e.data_of(result.event) == {"stepName": "s", "attempt": 1}
    assert result.event == (await e.log(world, run_id))[-1]


# Contract: 5.terminal runs, 5.ends of steps
async def test_a_running_step_records_its_outcome_after_the_run_s_end(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.lazy_start("a"), e.lazy_start("b"), e.lazy_start("c"))
    await world.events.create(run_id, e.run_ended("cancelled"))
    await e.write(world, run_id, e.step_completed("a"), e.step_failed("b"), e.step_retrying("c"))
    statuses = [step.status for step in (await world.steps.list(run_id)).data]
    assert statuses == ["completed", "failed", "pending"]
    await assert_log_folds(world, run_id)


# Contract: 4.missing
async def test_the_text_of_a_missing_step_is_the_one_that_runtimes_match(
    world: RedisWorld,
) -> None:
    run_id = await e.new_run(world)
    for kind, name, wire in (
        ("Step", "step_9", e.step_completed("step_9")),
        ("Wait", "wait_9", e.wait_completed("wait_9")),
    ):
        error = await e.attempt(world, run_id, wire)
        assert str(error) == f'{kind} "{name}" not found'


# -- waits ---------------------------------------------------------------------------------


# Contract: 5.wait_created, 5.wait_completed
async def test_the_life_of_a_wait(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    created = await world.events.create(run_id, e.wait_created(resume_at=LATER, note="n"))
    assert created.wait is not None
    assert created.wait.wait_id == f"{run_id}-wait_1"
    assert (created.wait.status, created.wait.resume_at) == ("waiting", LATER)
    assert created.wait == await world.waits.get(run_id, "wait_1")
    await clock.advance(1)
    done = await world.events.create(run_id, e.wait_completed(resumeAt=LATER))
    assert done.wait == await world.waits.get(run_id, "wait_1")
    assert (done.wait.status, done.wait.completed_at) == ("completed", clock.now)
    assert (done.wait.created_at, done.wait.resume_at) == (created.wait.created_at, LATER)
    assert e.data_of(done.event) == {"resumeAt": LATER}
    await assert_log_folds(world, run_id)


# -- event data ----------------------------------------------------------------------------

EXTRAS: dict[str, Any] = {
    "ownerMessageId": "msg_1",
    "zz": {"b": [3, 1, 2, {"k": None}], "a": b"\x00\xff", "f": 1.5, "big": 2**70},
    "when": datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
    "text": "\u00e9\U0001f600\x00",
    "snake_case": True,
}


# Contract: 3.event data
async def test_event_data_is_kept_whole(world: RedisWorld) -> None:
    """Keys that no model knows are data of a newer client, which replays depend on."""
    run_id = await e.new_run(world)
    attr = e.attr_set(
        [{"key": "z", "value": "1", "new": 1}, {"key": "a", "value": None}], "attr_1"
    )
    attr["eventData"]["writer"]["new"] = [1]
    for wire in (
        attr,
        e.step_created(),
        e.step_started(),
        e.step_retrying(retryAfter=LATER - timedelta(days=9000)),
        e.step_started(),
        e.step_completed(),
        e.step_created("step_2"),
        e.step_failed("step_2"),
        e.hook_created(metadata=b"m"),
        e.hook_received(),
        e.hook_disposed(),
        e.wait_created(),
        e.wait_completed(),
        e.run_ended("cancelled"),
        e.event("run_cancelled", cancelReason="r"),
    ):
        extras = EXTRAS if wire is not attr else {"zz": [2, 1, {"y": None}]}
        data = {**wire.get("eventData", {}), **extras}
        result = await world.events.create(run_id, {**wire, "eventData": data})
        assert e.data_of(result.event) == data, wire["eventType"]
        assert result.event == (await e.log(world, run_id))[-1], wire["eventType"]


# Contract: 3.event data
@pytest.mark.parametrize("kind", ["run_completed", "run_failed"])
async def test_event_data_of_a_run_s_end_is_kept_whole(world: RedisWorld, kind: str) -> None:
    run_id = await e.new_run(world)
    data = {**e.run_ended(kind.removeprefix("run_"))["eventData"], **EXTRAS}
    result = await world.events.create(run_id, e.event(kind, **data))
    assert e.data_of(result.event) == data
    assert result.event == (await e.log(world, run_id))[-1]


# Contract: 3.event data
async def test_a_bare_start_keeps_all_of_its_data(world: RedisWorld) -> None:
    """Only a lazy start's input lies elsewhere."""
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.step_created(input=b"first"))
    result = await world.events.create(run_id, e.step_started(input=b"\x00second", attempt=1))
    assert e.data_of(result.event) == {"input": b"\x00second", "attempt": 1}
    assert result.event == (await e.log(world, run_id))[-1]
    assert (await world.steps.get(run_id, "step_1")).input == b"first"


ABSENT = object()
PAYLOAD_CASES = [*e.PAYLOADS.items(), ("absent", ABSENT)]


# Contract: 3.payloads
@pytest.mark.parametrize("value", [v for _, v in PAYLOAD_CASES], ids=[k for k, _ in PAYLOAD_CASES])
async def test_payloads_come_back_as_they_were_sent(world: RedisWorld, value: object) -> None:
    """None, no field, "" and b"" are four things, in the log, the entities and the answers."""
    run_id = e.new_run_id()
    for kind, correlation_id, field, more, where in (
        ("run_created", None, "input", {"deploymentId": "", "workflowName": ""}, "run.input"),
        ("step_created", "step_1", "input", {"stepName": "s"}, "step.input"),
        ("step_retrying", "step_1", "error", {}, "step.error"),
        ("step_completed", "step_1", "result", {}, "step.output"),
        ("step_created", "step_2", "input", {"stepName": "s"}, "step.input"),
        ("step_failed", "step_2", "error", {}, "step.error"),
        ("hook_created", "hook_1", "metadata", {"token": "t"}, "hook.metadata"),
        ("hook_received", "hook_1", "payload", {"token": "t"}, None),
        ("run_completed", None, "output", {}, "run.output"),
    ):
        data = {**more, **({} if value is ABSENT else {field: value})}
        wire = {**e.event(kind, correlation_id), "eventData": data}
        result = await world.events.create(run_id, wire)
        assert result.event == (await e.log(world, run_id))[-1], kind
        found = [e.data_of(result.event).get(field, ABSENT)]
        if where is not None:
            entity, _, name = where.partition(".")
            found.append(getattr(result, entity).to_wire().get(name, ABSENT))
            read: Any = {
                "run": lambda: world.runs.get(run_id),
                "step": lambda c=correlation_id: world.steps.get(run_id, c),
                "hook": lambda c=correlation_id: world.hooks.get(c, run_id=run_id),
            }[entity]
            found.append((await read()).to_wire().get(name, ABSENT))
        for got in found:
            assert (type(got), got) == (type(value), value), kind


# -- models and mappings -------------------------------------------------------------------

TWINS: list[tuple[BaseEvent, e.Wire]] = [
    (
        RunStartedEvent(event_data=RunStartedData(deployment_id="d")),
        e.event("run_started", deploymentId="d"),
    ),
    (
        AttrSetEvent(
            correlation_id="attr_1",
            event_data=AttrSetData(
                changes=[AttributeChange(key="k", value="v")],
                writer=AttributeWriter(type="workflow"),
            ),
        ),
        e.attr_set({"k": "v"}, "attr_1"),
    ),
    (
        StepCreatedEvent(
            correlation_id="step_1", event_data=StepCreatedData(step_name="s", input=b"in")
        ),
        e.step_created(),
    ),
    (StepStartedEvent(correlation_id="step_1"), e.step_started()),
    (
        StepStartedEvent(
            correlation_id="step_2", event_data=StepStartedData(step_name="s", input=b"in")
        ),
        e.lazy_start("step_2"),
    ),
    (
        HookCreatedEvent(
            correlation_id="hook_1",
            event_data=HookCreatedData(token="t", is_webhook=True, metadata=b"m"),
        ),
        e.hook_created(token="t", isWebhook=True, metadata=b"m"),
    ),
    (
        HookReceivedEvent(correlation_id="hook_1", event_data=HookReceivedData(payload=b"sent")),
        e.hook_received(),
    ),
    (
        WaitCreatedEvent(correlation_id="wait_1", event_data=WaitCreatedData(resume_at=LATER)),
        e.wait_created(resume_at=LATER),
    ),
    (WaitCompletedEvent(correlation_id="wait_1"), e.wait_completed()),
    (RunCompletedEvent(event_data=RunCompletedData(output=b"out")), e.run_ended("completed")),
]


# Contract: 3.event
async def test_models_and_mappings_give_the_same(clocked: Clocked, backend: Backend) -> None:
    world, clock = clocked
    run_id = e.run_id_at(clock.now)
    results: list[list[EventResult]] = []
    created = RunCreatedEvent(
        event_data=RunCreatedData(deployment_id="dpl_1", workflow_name="workflow//w", input=b"in")
    )
    # The same run id once more, in a namespace of its own: nothing but the form may differ.
    async with backend.world(library=ManualClock.library()) as second:
        await ManualClock(second).set(clock.now)
        for each, form in ((world, 0), (second, 1)):
            pairs = [(created, e.run_created()), *TWINS]
            results.append([await each.events.create(run_id, pair[form]) for pair in pairs])
        assert results[0] == results[1]
        logs = [await e.log(each, run_id) for each in (world, second)]
        assert logs[0] == logs[1]
        assert [x.to_wire() for x in logs[0]] == [x.to_wire() for x in logs[1]]


# Contract: 3.event
async def test_an_event_that_was_read_can_be_written_again(world: RedisWorld) -> None:
    """Its ids and times are the World's to give: those of the request do not count."""
    source, target = await e.new_run(world), await e.new_run(world)
    await e.write(world, source, e.attr_set({"a": "b"}), e.step_created())
    result = await world.events.create(target, (await e.log(world, source))[-1])
    assert result.event is not None
    assert (result.event.run_id, result.event.event_id) == (target, e.event_id(3))
    assert result.event == (await e.log(world, target))[-1]


# -- the event ceiling ---------------------------------------------------------------------


# Contract: 5.event ceiling
async def test_past_the_ceiling_nothing_begins_but_everything_ends(backend: Backend) -> None:
    async with backend.world(max_events_per_run=9) as world:
        run_id = await e.new_run(world)
        await e.write(
            world,
            run_id,
            e.lazy_start("a"),
            e.step_created("b"),
            e.hook_created(),
            e.wait_created(),
        )
        await e.write(world, run_id, e.attr_set({"x": "1"}, "attr_1"), e.step_created("c"))
        assert len(await e.log(world, run_id)) == 9
        before = backend.dump()
        for wire in (
            e.step_created("new"),
            e.lazy_start("new"),
            e.hook_created("new", "new"),
            e.hook_created("new", "token_1"),
            e.wait_created("new"),
            e.attr_set({"x": "2"}, "attr_2"),
            e.hook_received(),
        ):
            with pytest.raises(InvalidEventError):
                await world.events.create(run_id, wire)
        assert backend.dump() == before
        result = await world.events.create(run_id, e.event("run_started"))
        assert (result.event, result.max_events) == ((await e.log(world, run_id))[1], 9)
        await e.write(
            world,
            run_id,
            e.step_started("b"),
            e.step_retrying("b"),
            e.step_completed("b"),
            e.step_completed("a"),
            e.step_failed("c"),
            e.hook_disposed(),
            e.wait_completed(),
        )
        ended = await world.events.create(run_id, e.run_ended("failed"))
        assert ended.max_events == 9
        await assert_log_folds(world, run_id)


# Contract: 5.event ceiling
@pytest.mark.parametrize("status", e.TERMINAL)
async def test_past_the_ceiling_a_run_can_end(backend: Backend, status: str) -> None:
    async with backend.world(max_events_per_run=1) as world:
        created = await world.events.create(None, e.run_created())
        assert created.run is not None
        run_id = created.run.run_id
        started = await world.events.create(run_id, e.event("run_started"))
        assert (created.max_events, started.max_events) == (1, 1)
        ended = await world.events.create(run_id, e.run_ended(status))
        assert ended.run is not None
        assert ended.run.status == status


# Contract: 5.event ceiling
async def test_a_repetition_is_told_as_such_past_the_ceiling(backend: Backend) -> None:
    """A rival's duplicate is swallowed by runtimes; a ceiling would fail the run."""
    async with backend.world(max_events_per_run=7) as world:
        run_id = await e.new_run(world)
        once = [e.step_created(), e.wait_created(), e.hook_created(), e.attr_set({"a": "b"}, "a")]
        await e.write(world, run_id, *once)
        first = await world.events.create(run_id, e.hook_received(), resume_id="r")
        for wire in once:
            with pytest.raises(EntityConflictError):
                await world.events.create(run_id, wire)
        again = await world.events.create(run_id, e.hook_received(), resume_id="r")
        assert again.event == first.event


# Contract: 5.event ceiling
async def test_there_may_be_no_ceiling(backend: Backend) -> None:
    async with backend.world(max_events_per_run=None) as world:
        created = await world.events.create(None, e.run_created())
        assert created.run is not None
        assert created.max_events is None
        await e.write(world, created.run.run_id, *[e.attr_set({"a": str(i)}) for i in range(5)])


# -- optional parameters -------------------------------------------------------------------


# Contract: 5.since_cursor
async def test_events_since_a_cursor_come_with_every_success(world: RedisWorld) -> None:
    holder = await e.new_run(world)
    await world.events.create(holder, e.hook_created("h", "taken"))
    run_id = await e.new_run(world, "pending")
    seen, cursor = 1, f"eid:{e.event_id(1)}"
    for wire in (
        e.event("run_started"),
        e.event("run_started"),
        e.step_created(),
        e.lazy_start("step_2"),
        e.step_completed(),
        e.hook_created(),
        e.hook_received(),
        e.hook_created("hook_2", "taken"),
        e.hook_disposed(),
        e.wait_created(),
        e.wait_completed(),
        e.attr_set({"a": "b"}),
        e.run_ended("cancelled"),
        e.run_ended("cancelled"),
    ):
        result = await world.events.create(run_id, wire, since_cursor=cursor)
        events = await e.log(world, run_id)
        assert result.events == events[seen:], wire["eventType"]
        assert result.has_more is False
        assert result.cursor is not None
        # The second start finds the run running, and answers what has started it.
        assert result.event == (events[-1] if len(events) > seen else events[1])
        seen, cursor = len(events), result.cursor
        assert (await world.events.list(run_id, cursor=cursor)).data == []
    types = [each.event_type for each in events]
    assert "hook_conflict" in types


# Contract: 5.since_cursor
async def test_events_since_a_cursor_hold_what_others_wrote(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    cursor = (await world.events.list(run_id)).cursor
    await e.write(world, run_id, *[e.attr_set({"i": str(i)}) for i in range(100)])
    result = await world.events.create(
        run_id, e.step_created(), since_cursor=cursor, resolve_data="none"
    )
    assert result.events is not None
    page = list(result.events)
    if result.has_more:
        page += (await world.events.list(run_id, cursor=result.cursor, resolve_data="none")).data
    assert page == (await world.events.list(run_id, cursor=cursor, resolve_data="none")).data
    assert len(page) == 101


# Contract: 5.since_cursor
async def test_events_since_a_cursor_come_with_a_repeated_resume(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created())
    first = await world.events.create(run_id, e.hook_received(), resume_id="r")
    cursor = f"eid:{e.event_id(2)}"
    again = await world.events.create(
        run_id, e.hook_received(), resume_id="r", since_cursor=cursor
    )
    assert again.event == first.event
    assert again.events == (await e.log(world, run_id))[2:]


# Contract: 5.since_cursor, 4.bad input
@pytest.mark.parametrize(
    "cursor", ["", "eid:", "eid:evnt_1", "steps:1", "eid:wrun_" + "0" * 26, "eid:evnt_" + "x" * 26]
)
async def test_a_bad_cursor_is_refused_and_nothing_stored(
    world: RedisWorld, backend: Backend, cursor: str
) -> None:
    run_id = await e.new_run(world)
    before = backend.dump()
    with pytest.raises(InvalidCursorError):
        await world.events.create(run_id, e.step_created(), since_cursor=cursor)
    assert backend.dump() == before


# Contract: 5.since_cursor
async def test_a_cursor_beyond_every_slot_either_works_or_is_refused_first(
    world: RedisWorld,
) -> None:
    """An error after the event was committed would be taken for a refusal."""
    run_id = await e.new_run(world)
    cursor = "eid:evnt_" + "9" * 26
    outcome = await e.attempt(world, run_id, e.step_created(), since_cursor=cursor)
    if isinstance(outcome, EventResult):
        assert outcome.events == []
        assert len(await e.log(world, run_id)) == 3
    else:
        assert isinstance(outcome, InvalidCursorError)
        assert len(await e.log(world, run_id)) == 2


# Contract: 5.event_count
@pytest.mark.parametrize("seen", [1, 2, 4, 5, 6, 50])
async def test_an_event_count_brings_the_events_that_the_writer_had_not_seen(
    world: RedisWorld, seen: int
) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, *[e.attr_set({"i": str(i)}) for i in range(3)])
    result = await world.events.create(run_id, e.step_created(), event_count=seen)
    assert result.event is not None
    assert result.event.event_id == e.event_id(6)
    between = (await e.log(world, run_id))[seen:5]
    assert (result.events or []) == between
    assert result.cursor is None
    assert not result.has_more


# Contract: 5.event_count
async def test_an_event_count_spans_more_than_a_page(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, *[e.attr_set({"i": str(i)}) for i in range(130)])
    result = await world.events.create(run_id, e.step_created(), event_count=2)
    assert result.events is not None
    between = (await e.log(world, run_id))[2:-1]
    assert result.events == between[: len(result.events)]
    assert result.has_more is (len(result.events) < len(between))
    assert result.cursor is None


# Contract: 5.event_count
async def test_a_huge_event_count_is_no_error_after_the_write(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    outcome = await e.attempt(world, run_id, e.step_created(), event_count=2**70)
    stored = len(await e.log(world, run_id)) == 3
    assert isinstance(outcome, EventResult) is stored, outcome


# Contract: 5.since_cursor, 5.event_count
async def test_a_cursor_wins_over_an_event_count(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, *[e.attr_set({"i": str(i)}) for i in range(3)])
    result = await world.events.create(
        run_id, e.step_created(), since_cursor=f"eid:{e.event_id(4)}", event_count=2
    )
    assert result.events == (await e.log(world, run_id))[4:]
    assert result.cursor is not None


# Contract: 5.event_count, 5.run_started
@pytest.mark.parametrize("status", ["pending", "running"])
async def test_a_start_with_an_event_count_still_preloads(world: RedisWorld, status: str) -> None:
    """A writer that has seen everything is owed no report, but the log that it asks for."""
    run_id = await e.new_run(world, status)
    seen = len(await e.log(world, run_id))
    result = await world.events.create(run_id, e.event("run_started"), event_count=seen)
    assert result.events == await e.log(world, run_id)
    assert result.cursor is not None


# Contract: 5.preload_events
async def test_a_resume_can_preload_the_run_and_its_log(backend: Backend) -> None:
    async with backend.world(max_events_per_run=500) as world:
        run_id = await e.new_run(world)
        await world.events.create(run_id, e.hook_created())
        await e.write(world, run_id, *[e.attr_set({"i": str(i)}) for i in range(100)])
        result = await world.events.create(run_id, e.hook_received(), preload_events=True)
        assert result.run == await world.runs.get(run_id)
        assert result.events == await e.log(world, run_id)
        assert result.events[-1] == result.event
        assert (result.has_more, result.max_events) == (False, 500)
        assert (await world.events.list(run_id, cursor=result.cursor)).data == []
        plain = await world.events.create(run_id, e.hook_received())
        assert (plain.run, plain.events) == (None, None)


# Contract: 5.preload_events, 5.resume dedupe
async def test_a_repeated_resume_can_preload_too(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created())
    first = await world.events.create(run_id, e.hook_received(), resume_id="r")
    again = await world.events.create(
        run_id, e.hook_received(), resume_id="r", preload_events=True
    )
    assert again.event == first.event
    assert again.run == await world.runs.get(run_id)
    assert again.events == await e.log(world, run_id)


# Contract: 3.resolve_data
async def test_payloads_are_left_out_on_demand(world: RedisWorld) -> None:
    payloads = {"input", "output", "error", "result", "payload", "metadata"}
    run_id = e.new_run_id()
    for wire in (
        e.run_created(),
        e.event("run_started"),
        e.step_created(),
        e.lazy_start("step_2"),
        e.step_retrying("step_2"),
        e.step_completed(),
        e.step_failed("step_2"),
        e.hook_created(metadata=b"m"),
        e.hook_received(token="token_1"),
        e.run_ended("failed"),
    ):
        result = await world.events.create(run_id, wire, resolve_data="none")
        assert result.event is not None
        data = result.event.to_wire().get("eventData") or {}
        assert not payloads & set(data), wire["eventType"]
        kept = {k: v for k, v in wire.get("eventData", {}).items() if k not in payloads}
        if kept and wire["eventType"] != "run_started":
            assert data == kept, wire["eventType"]
        for entity in (result.run, result.step, result.hook):
            assert entity is None or not payloads & set(entity.to_wire())
        for each in result.events or []:
            assert not payloads & set(each.to_wire().get("eventData") or {})
        read = await world.events.get(run_id, result.event.event_id or "", resolve_data="none")
        assert read == result.event
    assert (await world.runs.get(run_id)).error == b"err"


# Contract: 5.occurred_at
async def test_when_it_happened_is_stored_beside_when_it_was_written(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created("holder", "taken"))
    happened = clock.now - timedelta(hours=3, microseconds=1)
    for wire in (
        e.step_created(),
        e.lazy_start("step_2"),
        e.hook_created(),
        e.hook_received(),
        e.hook_created("hook_2", "taken"),
        e.wait_created(),
        e.attr_set({"a": "b"}),
        e.run_ended("cancelled"),
        e.run_ended("cancelled"),
    ):
        result = await world.events.create(run_id, wire, occurred_at=happened)
        assert result.event is not None
        assert result.event.occurred_at == clock.now - timedelta(hours=3, milliseconds=1)
        assert result.event.created_at == clock.now
        assert result.event == (await e.log(world, run_id))[-1]
    assert (await world.steps.get(run_id, "step_1")).created_at == clock.now


# Contract: 5.ignored parameters
async def test_what_is_of_no_use_here_is_accepted(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    result = await world.events.create(
        run_id,
        e.step_created(),
        compute_instance_id="i-1",
        replay_divergence_count=3,
        via_step_dispatch=True,
        v1_compat=False,
        request_id="req_1",
        resume_id="only for hook_received",
        payload_digest="d",
        preload_events=True,
        skip_preload=True,
    )
    assert result.event == (await e.log(world, run_id))[-1]
    assert result.event.resume_id is None
    assert result.events is None


# Contract: 5.ignored parameters
async def test_a_legacy_run_is_not_created(world: RedisWorld, backend: Backend) -> None:
    before = backend.dump()
    with pytest.raises(InvalidEventError):
        await world.events.create(None, e.run_created(), v1_compat=True)
    assert backend.dump() == before


# Contract: 5.event ceiling
async def test_every_result_with_a_run_has_the_ceiling(backend: Backend) -> None:
    async with backend.world(max_events_per_run=77) as world:
        run_id = e.new_run_id()
        for wire in (
            e.run_created(),
            e.event("run_started"),
            e.event("run_started"),
            e.attr_set({"a": "b"}),
            e.run_ended("cancelled"),
            e.run_ended("cancelled"),
        ):
            result = await world.events.create(run_id, wire)
            assert result.run is not None
            assert result.max_events == 77
        for status in ("completed", "failed"):
            run_id = await e.new_run(world)
            assert (await world.events.create(run_id, e.run_ended(status))).max_events == 77
