"""Reads: entities, events, look-ups, resolve_data (contract, sections 3 and 6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
import pytest_asyncio

from redis_world import RedisWorld
from redis_world.errors import (
    EventNotFoundError,
    HookNotFoundError,
    RunNotFoundError,
    StepNotFoundError,
    WaitNotFoundError,
    WorldError,
)
from redis_world.models import EventResult, Model, ResolveData, Run, Step
from redis_world.testing import ManualClock
from support.backends import Backend
from support.events import (
    Wire,
    attr_set,
    data_of,
    event,
    event_id,
    hook_created,
    hook_disposed,
    hook_received,
    lazy_start,
    new_run,
    new_run_id,
    run_created,
    run_ended,
    step_completed,
    step_created,
    step_failed,
    step_retrying,
    step_started,
    wait_completed,
    wait_created,
    write,
)

PAYLOAD_NAMES: Final = {"input", "output", "error", "result", "payload", "metadata"}


def wires(models: list[Any]) -> list[Wire]:
    """The wire forms: they tell an absent field from None, which `==` of models need not."""
    return [model.to_wire() for model in models]


async def make_run(world: RedisWorld) -> str:
    """A running run with steps in several states, hooks and waits."""
    run_id = await new_run(
        world,
        executionContext={"workflowCoreVersion": "5.0", "traceCarrier": {"t": "1"}},
        attributes={"a": "1"},
        encryptionPublicKey="key",
    )
    await write(
        world,
        run_id,
        step_created("done", stepName="first"),
        step_started("done"),
        step_completed("done"),
        lazy_start("failed"),
        step_failed("failed"),
        step_created("pending"),
        step_started("pending"),
        step_retrying("pending", retryAfter=datetime(2040, 1, 1, tzinfo=UTC)),
        lazy_start("running"),
        hook_created("hook_1", "token_1", metadata=b"meta", isWebhook=True),
        hook_created("hook_2", "token_2", isSystem=True),
        hook_received("hook_1", token="token_1"),
        hook_created("taken", "token_1"),
        wait_created("wait_1"),
        wait_created("wait_2"),
        wait_completed("wait_1"),
        attr_set({"b": "2"}, "attr_1"),
    )
    return run_id


@pytest_asyncio.fixture
async def made(world: RedisWorld) -> AsyncIterator[tuple[RedisWorld, str]]:
    yield world, await make_run(world)


# -- entities ------------------------------------------------------------------------------


# Contract: 3.event, 3.run, 3.step, 3.hook, 3.wait
async def test_what_create_answers_is_what_a_read_gives(world: RedisWorld) -> None:
    """Entities and events of every answer, against the reads right behind it."""
    run_id = new_run_id()
    sequence: list[Wire] = [
        run_created(attributes={"a": "1"}, executionContext={"n": 2**53 + 1}, unknown=[1]),
        event("run_started"),
        step_created("s", unknown={"k": b"v"}),
        step_started("s"),
        step_retrying("s", retryAfter=datetime(2020, 1, 1, tzinfo=UTC)),
        step_started("s", attempt=2),
        step_completed("s", stepName="s"),
        lazy_start("lazy", ownerMessageId="msg_1"),
        step_failed("lazy"),
        hook_created("h", "t", metadata=b"m"),
        hook_received("h"),
        hook_created("conflict", "t"),
        hook_disposed("h", token="t"),
        wait_created("w"),
        wait_completed("w"),
        attr_set({"b": "2"}, "attr_1"),
        run_ended("failed"),
    ]
    for wire in sequence:
        result = await world.events.create(run_id, wire, skip_preload=True)
        assert result.event is not None
        read = await world.events.get(run_id, result.event.event_id or "")
        assert result.event.to_wire() == read.to_wire()
        await check_entities(world, run_id, result, read.correlation_id or "")


async def check_entities(
    world: RedisWorld, run_id: str, result: EventResult, correlation_id: str
) -> None:
    pairs: list[tuple[Model | None, Callable[[], Awaitable[Model]]]] = [
        (result.run, lambda: world.runs.get(run_id)),
        (result.step, lambda: world.steps.get(run_id, correlation_id)),
        (result.hook, lambda: world.hooks.get(correlation_id, run_id=run_id)),
        (result.wait, lambda: world.waits.get(run_id, correlation_id)),
    ]
    for answered, read in pairs:
        if answered is not None:
            assert answered.to_wire() == (await read()).to_wire()


# Contract: 3.run
async def test_a_run_reads_as_it_was_made(clocked: tuple[RedisWorld, ManualClock]) -> None:
    world, clock = clocked
    context = {"workflowCoreVersion": "5.0", "deep": [{"n": 2**53 + 1, "b": b"\x00"}, None]}
    created_at = clock.now
    run_id = await new_run(
        world,
        "pending",
        executionContext=context,
        attributes={"a": "1", "ü": ""},
        encryptionPublicKey="key",
    )
    await clock.advance(1)
    await write(world, run_id, event("run_started"))
    started_at = clock.now
    await clock.advance(1)
    await write(world, run_id, event("run_failed", error=b"e", errorCode="E1"))
    run = await world.runs.get(run_id)
    assert run.to_wire() == {
        "runId": run_id,
        "deploymentId": "dpl_1",
        "workflowName": "workflow//w",
        "specVersion": 7,
        "status": "failed",
        "input": b"in",
        "error": b"e",
        "errorCode": "E1",
        "executionContext": context,
        "attributes": {"a": "1", "ü": ""},
        "encryptionPublicKey": "key",
        "createdAt": created_at,
        "startedAt": started_at,
        "completedAt": clock.now,
        "updatedAt": clock.now,
    }


# Contract: 3.step
async def test_a_step_reads_as_it_went(clocked: tuple[RedisWorld, ManualClock]) -> None:
    world, clock = clocked
    run_id = await new_run(world)
    created_at = clock.now
    await write(world, run_id, step_created("s", stepName="name"))
    await clock.advance(1)
    started_at = clock.now
    retry_after = clock.now + timedelta(seconds=5)
    await write(world, run_id, step_started("s"), step_retrying("s", retryAfter=retry_after))
    waiting = (await world.steps.get(run_id, "s")).to_wire()
    expected: Wire = {
        "runId": run_id,
        "stepId": "s",
        "stepName": "name",
        "status": "pending",
        "input": b"in",
        "error": b"again",
        "attempt": 1,
        "createdAt": created_at,
        "startedAt": started_at,
        "updatedAt": clock.now,
        "retryAfter": retry_after,
        "specVersion": 7,
    }
    assert waiting == expected
    await clock.advance(5)
    await write(world, run_id, step_started("s"), step_completed("s"))
    del expected["retryAfter"]
    changes = {"status": "completed", "output": b"res", "attempt": 2}
    times = {"completedAt": clock.now, "updatedAt": clock.now}
    done = (await world.steps.get(run_id, "s")).to_wire()
    # The contract leaves open whether a success clears the last error.
    assert {**done, "error": b"again"} == {**expected, **changes, **times}


# Contract: 3.hook, 3.wait
async def test_a_hook_and_a_wait_read_as_they_were_made(
    clocked: tuple[RedisWorld, ManualClock],
) -> None:
    world, clock = clocked
    run_id = await new_run(world)
    await write(world, run_id, hook_created("h", "t", metadata=b"m", isWebhook=True))
    assert (await world.hooks.get("h")).to_wire() == {
        "runId": run_id,
        "hookId": "h",
        "token": "t",
        "metadata": b"m",
        "ownerId": "",
        "projectId": "",
        "environment": "",
        "createdAt": clock.now,
        "specVersion": 7,
        "isWebhook": True,
        "isSystem": False,
        "resumeContext": {
            "deploymentId": "dpl_1",
            "workflowName": "workflow//w",
            "runSpecVersion": 7,
        },
    }
    created_at, resume_at = clock.now, datetime(2040, 1, 1, tzinfo=UTC)
    await write(world, run_id, wait_created("w", resume_at))
    await clock.advance(1)
    expected: Wire = {
        "waitId": f"{run_id}-w",
        "runId": run_id,
        "status": "waiting",
        "resumeAt": resume_at,
        "createdAt": created_at,
        "updatedAt": created_at,
        "specVersion": 7,
    }
    assert (await world.waits.get(run_id, "w")).to_wire() == expected
    await write(world, run_id, wait_completed("w"))
    ended = {"status": "completed", "completedAt": clock.now, "updatedAt": clock.now}
    assert (await world.waits.get(run_id, "w")).to_wire() == {**expected, **ended}


# Contract: 3.times
async def test_times_of_entities_are_those_of_their_events(world: RedisWorld) -> None:
    """A client may rebuild the entity from the log."""
    run_id = await make_run(world)
    await write(world, run_id, run_ended("completed"))
    first: dict[tuple[str, str | None], datetime | None] = {}
    for each in (await world.events.list(run_id)).data:
        first.setdefault((each.event_type, each.correlation_id), each.created_at)
    run = await world.runs.get(run_id)
    assert run.created_at == first["run_created", None]
    assert run.started_at == first["run_started", None]
    assert run.completed_at == first["run_completed", None]
    for step in (await world.steps.list(run_id)).data:
        assert step.created_at == first["step_created", step.step_id]
        assert step.started_at == first["step_started", step.step_id]
        ended = first.get(
            ("step_completed", step.step_id), first.get(("step_failed", step.step_id))
        )
        assert step.completed_at == ended


# Contract: 3.hook
async def test_the_environment_is_the_configured_one(backend: Backend) -> None:
    async with backend.world(environment="production") as world:
        run_id = await new_run(world)
        made = (await world.events.create(run_id, hook_created())).hook
        assert made is not None
        assert made.environment == "production"
        for hook in (await world.hooks.get("hook_1"), *(await world.hooks.list()).data):
            assert hook.environment == "production"


# Contract: 3.mirrored
@pytest.mark.parametrize(
    ("context", "mirrored"),
    [
        (None, {}),
        ({}, {}),
        (
            {
                "workflowCoreVersion": "5.0",
                "traceCarrier": {"traceparent": "00-1"},
                "hookResumeInputVersion": 1,
            },
            {
                "workflowCoreVersion": "5.0",
                "traceCarrier": {"traceparent": "00-1"},
                "hookResumeInputVersion": 1,
            },
        ),
        ({"workflowCoreVersion": 5, "traceCarrier": "x", "hookResumeInputVersion": "1"}, {}),
        ({"workflowCoreVersion": None, "traceCarrier": ["x"], "hookResumeInputVersion": True}, {}),
    ],
)
async def test_a_hook_mirrors_its_run(
    context: Wire | None, mirrored: Wire, world: RedisWorld
) -> None:
    """Only what has the right type is taken over."""
    data: Wire = {"encryptionPublicKey": "key"}
    if context is not None:
        data["executionContext"] = context
    result = await world.events.create(None, {**run_created(**data), "specVersion": 5})
    assert result.run is not None
    await write(world, result.run.run_id, hook_created())
    expected = {
        "deploymentId": "dpl_1",
        "workflowName": "workflow//w",
        "runSpecVersion": 5,
        "encryptionPublicKey": "key",
        **mirrored,
    }
    for hook in (await world.hooks.get("hook_1"), await world.hooks.get_by_token("token_1")):
        assert hook.resume_context is not None
        assert hook.resume_context.to_wire() == expected


# -- several -------------------------------------------------------------------------------


# Contract: 6.runs, 6.steps and waits, 6.events, 6.hooks
async def test_lists_give_what_gets_give(made: tuple[RedisWorld, str]) -> None:
    world, run_id = made
    steps = (await world.steps.list(run_id)).data
    assert [step.step_id for step in steps] == ["done", "failed", "pending", "running"]
    assert wires(steps) == wires([await world.steps.get(run_id, s.step_id) for s in steps])
    hooks = (await world.hooks.list(run_id)).data
    assert [hook.hook_id for hook in hooks] == ["hook_1", "hook_2"]
    assert wires(hooks) == wires([await world.hooks.get(h.hook_id) for h in hooks])
    assert wires((await world.hooks.list()).data) == wires(hooks)
    waits = (await world.waits.list(run_id)).data
    assert [wait.wait_id for wait in waits] == [f"{run_id}-wait_1", f"{run_id}-wait_2"]
    assert wires(waits) == wires([await world.waits.get(run_id, f"wait_{n}") for n in (1, 2)])
    events = (await world.events.list(run_id)).data
    assert [each.event_id for each in events] == [event_id(n + 1) for n in range(len(events))]
    assert wires(events) == wires(
        [await world.events.get(run_id, each.event_id or "") for each in events]
    )
    runs = (await world.runs.list()).data
    assert wires(runs) == wires([await world.runs.get(run_id)])


# Contract: 6.runs
async def test_get_many_keeps_the_order(world: RedisWorld) -> None:
    first, second = await new_run(world), await new_run(world, "completed")
    missing = new_run_id()
    runs = await world.runs.get_many([second, missing, first, second])
    assert [run and run.run_id for run in runs] == [second, None, first, second]
    found = [run for run in runs if run is not None]
    assert wires(found) == wires([await world.runs.get(run.run_id) for run in found])
    bare = await world.runs.get_many([first, missing], resolve_data="none")
    assert bare[0] is not None
    assert "input" not in bare[0].to_wire()
    assert bare[1] is None
    assert await world.runs.get_many([]) == []


# Contract: 6.runs
async def test_runs_are_listed_newest_first_by_default(world: RedisWorld) -> None:
    ids = [await new_run(world, "pending") for _ in range(21)]
    page = await world.runs.list()
    assert [run.run_id for run in page.data] == ids[:0:-1]
    assert page.has_more
    assert [run.run_id for run in (await world.runs.list(sort_order="asc")).data] == ids[:20]


# Contract: 6.runs
async def test_runs_are_listed_by_status_and_workflow(world: RedisWorld) -> None:
    statuses = ("pending", "running", "completed", "failed", "cancelled")
    ids = {}
    for workflow in ("a", "b"):
        for status in statuses:
            ids[workflow, status] = await new_run(world, status, workflowName=workflow)

    async def listed(**filters: Any) -> set[tuple[str, str]]:
        runs = (await world.runs.list(**filters)).data
        found = {(run.workflow_name, run.status) for run in runs}
        assert len(found) == len(runs)
        assert {run.run_id for run in runs} == {ids[key] for key in found}
        return {(name, str(status)) for name, status in found}

    assert await listed() == set(ids)
    assert await listed(workflow_name="a") == {("a", status) for status in statuses}
    assert await listed(workflow_name="") == set()
    assert await listed(workflow_name="c") == set()
    for status in statuses:
        assert await listed(status=status) == {("a", status), ("b", status)}
        assert await listed(status=[status, status]) == {("a", status), ("b", status)}
        assert await listed(status=status, workflow_name="b") == {("b", status)}
    assert await listed(status=["failed", "pending"]) == {
        (name, status) for name in "ab" for status in ("failed", "pending")
    }
    assert await listed(status=["failed", "pending"], workflow_name="a") == {
        ("a", "failed"),
        ("a", "pending"),
    }
    assert await listed(status=[]) == set()
    assert await listed(status=[], workflow_name="a") == set()


# Contract: 6.runs
async def test_a_run_is_listed_under_its_status_of_now(world: RedisWorld) -> None:
    run_id = await new_run(world, "pending", workflowName="a")
    for wire, status in ((event("run_started"), "running"), (run_ended("completed"), "completed")):
        await write(world, run_id, wire)
        for name in (None, "a"):
            for asked in ("pending", "running", "completed"):
                page = await world.runs.list(status=asked, workflow_name=name)
                assert [run.run_id for run in page.data] == ([run_id] if asked == status else [])


# Contract: 6.runs
async def test_an_unknown_status_is_refused(world: RedisWorld) -> None:
    with pytest.raises(ValueError, match="done"):
        await world.runs.list(status="done")  # type: ignore[arg-type]


# -- events --------------------------------------------------------------------------------


# Contract: 6.events
async def test_events_by_correlation_id(made: tuple[RedisWorld, str]) -> None:
    world, run_id = made
    other = await new_run(world)
    await write(world, other, step_created("done"))
    log = (await world.events.list(run_id)).data
    for correlation_id in ("done", "pending", "hook_1", "taken", "wait_1", "attr_1"):
        expected = [each for each in log if each.correlation_id == correlation_id]
        assert expected
        page = await world.events.list_by_correlation_id(run_id, correlation_id)
        assert wires(page.data) == wires(expected)
        assert not page.has_more
        page = await world.events.list_by_correlation_id(run_id, correlation_id, sort_order="desc")
        assert wires(page.data) == wires(expected[::-1])
    one = await world.events.list_by_correlation_id(other, "done")
    assert [each.run_id for each in one.data] == [other]


# Contract: 6.events
@pytest.mark.slow
async def test_a_long_log_reads_whole(world: RedisWorld) -> None:
    """Lengths around the sizes in which a reader may fetch it."""
    run_id = await new_run(world, "pending")
    length = 1070
    for number in range(1, length):
        wire = {**attr_set({"n": str(number)}, step="s"), "correlationId": f"c{number % 7}"}
        await world.events.create(run_id, wire)
    ids = [event_id(slot) for slot in range(1, length + 1)]
    whole = await world.events.list(run_id)
    assert [each.event_id for each in whole.data] == ids
    assert data_of(whole.data[0])["input"] == b"in"
    for rest in (1, 63, 64, 65, 66, 999, 1000, 1001, 1063, 1064, 1065, 1066):
        place = length - rest
        page = await world.events.list(run_id, cursor=f"eid:{event_id(place)}")
        assert [each.event_id for each in page.data] == ids[place:]
        assert not page.has_more
        page = await world.events.list(
            run_id, cursor=f"eid:{event_id(rest + 1)}", sort_order="desc"
        )
        assert [each.event_id for each in page.data] == ids[:rest][::-1]
        assert not page.has_more
    desc = await world.events.list(run_id, sort_order="desc")
    assert [each.event_id for each in desc.data] == ids[::-1]
    found = await world.events.list_by_correlation_id(run_id, "c3")
    assert [each.event_id for each in found.data] == [
        event_id(number + 1) for number in range(1, length) if number % 7 == 3
    ]


# -- hooks ---------------------------------------------------------------------------------


# Contract: 6.hooks, 1.ids of a run
async def test_one_hook_id_in_two_runs(clocked: tuple[RedisWorld, ManualClock]) -> None:
    """Without a run it is the newest live one."""
    world, clock = clocked
    older, newer = await new_run(world), await new_run(world)
    await write(world, older, hook_created("h", "t1"))
    assert (await world.hooks.get("h")).run_id == older
    await clock.advance(1)
    await write(world, newer, hook_created("h", "t2"))
    assert (await world.hooks.get("h")).run_id == newer
    assert (await world.hooks.get("h", run_id=older)).token == "t1"
    assert (await world.hooks.get("h", run_id=newer)).token == "t2"
    await write(world, newer, hook_disposed("h"))
    assert (await world.hooks.get("h")).run_id == older
    with pytest.raises(HookNotFoundError):
        await world.hooks.get("h", run_id=newer)
    await write(world, older, run_ended("completed"))
    with pytest.raises(HookNotFoundError):
        await world.hooks.get("h")


# Contract: 3.resume capabilities
async def test_only_a_look_up_by_token_tells_capabilities(made: tuple[RedisWorld, str]) -> None:
    world, run_id = made
    found = await world.hooks.get_by_token("token_1")
    assert found.run_id == run_id
    wire = found.to_wire()
    assert wire.pop("resumeCapabilities") == {"hookResumeDedupVersion": 1}
    plain = (await world.hooks.get("hook_1")).to_wire()
    assert wire == plain
    listed = wires((await world.hooks.list()).data + (await world.hooks.list(run_id)).data)
    assert all("resumeCapabilities" not in hook for hook in listed)
    made_hook = (await world.events.create(run_id, hook_created("h3", "t3"))).hook
    assert made_hook is not None
    assert "resumeCapabilities" not in made_hook.to_wire()


# Contract: 6.hooks, 6.steps and waits
async def test_hooks_and_waits_go_with_their_run(made: tuple[RedisWorld, str]) -> None:
    world, run_id = made
    other = await new_run(world)
    await write(world, other, hook_created("other", "other"))
    await write(world, run_id, run_ended("cancelled"))
    assert (await world.hooks.list(run_id)).data == []
    assert [hook.run_id for hook in (await world.hooks.list()).data] == [other]
    assert (await world.waits.list(run_id)).data == []
    for token in ("token_1", "token_2"):
        with pytest.raises(HookNotFoundError):
            await world.hooks.get_by_token(token)
    with pytest.raises(WaitNotFoundError):
        await world.waits.get(run_id, "wait_1")


# -- nothing there -------------------------------------------------------------------------


# Contract: 6.nothing there
async def test_lists_of_an_unknown_run_are_empty(world: RedisWorld) -> None:
    run_id = new_run_id()
    for order in ("asc", "desc"):
        for limit in (1, 1000):
            options: dict[str, Any] = {"limit": limit, "sort_order": order}
            for page in (
                await world.steps.list(run_id, **options),
                await world.waits.list(run_id, **options),
                await world.hooks.list(run_id, **options),
                await world.hooks.list(**options),
                await world.events.list(run_id, **options),
                await world.events.list_by_correlation_id(run_id, "step_1", **options),
                await world.runs.list(**options),
                await world.runs.list(workflow_name="w", status=["failed"], **options),
            ):
                assert (page.data, page.cursor, page.has_more) == ([], None, False)
        everything = await world.events.list(run_id, sort_order=order)
        assert (everything.data, everything.cursor, everything.has_more) == ([], None, False)


MISSING_EVENTS: Final = (
    event_id(0),
    event_id(10**6),
    event_id(2**63),
    event_id(2**64 - 1),
    event_id(2**64),
    "evnt_" + "9" * 26,
    "evnt_1",
    "evnt_",
    "",
    "1",
    "wrun_" + "0" * 26,
    "evnt_" + "0" * 25 + "١",  # noqa: RUF001 - a digit, but none that an event id has
    " " + event_id(1),
    event_id(1) + "\n",
)


# Contract: 6.nothing there, 4.missing
async def test_gets_of_what_is_not_there_raise(made: tuple[RedisWorld, str]) -> None:
    world, run_id = made
    unknown = new_run_id()
    cases: list[tuple[type[WorldError], str, Callable[[], Awaitable[Any]]]] = [
        (RunNotFoundError, unknown, lambda: world.runs.get(unknown)),
        (RunNotFoundError, "no id", lambda: world.runs.get("no id")),
        (StepNotFoundError, 'Step "x" not found', lambda: world.steps.get(run_id, "x")),
        (StepNotFoundError, 'Step "done" not found', lambda: world.steps.get(unknown, "done")),
        (WaitNotFoundError, 'Wait "x" not found', lambda: world.waits.get(run_id, "x")),
        (WaitNotFoundError, 'Wait "wait_1" not found', lambda: world.waits.get(unknown, "wait_1")),
        (HookNotFoundError, "x", lambda: world.hooks.get("x")),
        (HookNotFoundError, "hook_1", lambda: world.hooks.get("hook_1", run_id=unknown)),
        (HookNotFoundError, "taken", lambda: world.hooks.get("taken")),
        (HookNotFoundError, "no live hook", lambda: world.hooks.get_by_token("x")),
        (EventNotFoundError, "not found", lambda: world.events.get(unknown, event_id(1))),
    ]
    for error, text, read in cases:
        with pytest.raises(error) as caught:
            await read()
        assert text in str(caught.value)
        assert caught.value.status == 404


# Contract: 6.nothing there, 6.events
async def test_there_is_no_event_of_a_strange_id(world: RedisWorld) -> None:
    run_id = await new_run(world)
    answers: dict[str, str] = {}
    for missing in MISSING_EVENTS:
        try:
            answers[missing] = (await world.events.get(run_id, missing)).event_type
        except WorldError as error:
            answers[missing] = type(error).__name__
    assert answers == dict.fromkeys(MISSING_EVENTS, "EventNotFoundError")


# -- resolve_data --------------------------------------------------------------------------


def without_payloads(wire: Wire) -> Wire:
    return {name: value for name, value in wire.items() if name not in PAYLOAD_NAMES}


def bare_event(wire: Wire) -> Wire:
    """An event without payload fields; data that held nothing else counts as absent."""
    data = without_payloads(wire.get("eventData") or {})
    rest = {name: value for name, value in wire.items() if name != "eventData"}
    return {**rest, "eventData": data} if data else rest


# Contract: 3.resolve_data
async def test_resolve_data_none_leaves_payloads_out(made: tuple[RedisWorld, str]) -> None:
    world, run_id = made
    failed = await new_run(world, "failed")

    async def both(read: Callable[[ResolveData], Awaitable[list[Any]]]) -> None:
        full, bare = wires(await read("all")), wires(await read("none"))
        assert any(PAYLOAD_NAMES & set(wire) for wire in full)
        assert bare == [without_payloads(wire) for wire in full]

    async def one(entity: Awaitable[Any]) -> list[Any]:
        return [await entity]

    await both(lambda mode: one(world.runs.get(failed, resolve_data=mode)))
    await both(lambda mode: one(world.steps.get(run_id, "failed", resolve_data=mode)))
    await both(lambda mode: one(world.hooks.get("hook_1", resolve_data=mode)))
    await both(lambda mode: one(world.hooks.get_by_token("token_1", resolve_data=mode)))

    async def runs(mode: ResolveData) -> list[Run]:
        return (await world.runs.list(resolve_data=mode)).data

    async def steps(mode: ResolveData) -> list[Step]:
        return (await world.steps.list(run_id, resolve_data=mode)).data

    async def hooks(mode: ResolveData) -> list[Any]:
        page = await world.hooks.list(run_id, resolve_data=mode)
        return page.data + (await world.hooks.list(resolve_data=mode)).data

    await both(runs)
    await both(steps)
    await both(hooks)


# Contract: 3.resolve_data
async def test_resolve_data_none_leaves_payloads_out_of_events(
    made: tuple[RedisWorld, str],
) -> None:
    world, run_id = made
    await write(world, run_id, run_ended("failed"))
    full = wires((await world.events.list(run_id)).data)
    expected = [bare_event(wire) for wire in full]
    assert expected != full
    bare = wires((await world.events.list(run_id, resolve_data="none")).data)
    assert [bare_event(wire) for wire in bare] == bare == expected
    for wire in expected:
        one = await world.events.get(run_id, wire["eventId"], resolve_data="none")
        assert one.to_wire() == wire
    for correlation_id in ("done", "hook_1"):
        page = await world.events.list_by_correlation_id(
            run_id, correlation_id, resolve_data="none"
        )
        assert wires(page.data) == [
            wire for wire in expected if wire.get("correlationId") == correlation_id
        ]


# Contract: 3.resolve_data
async def test_resolve_data_none_holds_for_answers_too(world: RedisWorld) -> None:
    run_id = new_run_id()
    for wire in (
        run_created(),
        step_created(),
        step_started(),
        step_retrying(),
        step_started(),
        step_completed(),
        lazy_start("lazy"),
        step_failed("lazy"),
        hook_created(metadata=b"m"),
        hook_received(),
        run_ended("failed"),
    ):
        result = await world.events.create(run_id, wire, resolve_data="none")
        assert result.event is not None
        read = await world.events.get(run_id, result.event.event_id or "", resolve_data="none")
        assert result.event.to_wire() == read.to_wire()
        for entity in (result.run, result.step, result.hook):
            assert entity is None or not PAYLOAD_NAMES & set(entity.to_wire())


# Contract: 3.resolve_data, 3.event data
async def test_unknown_keys_stay_without_payloads(world: RedisWorld) -> None:
    run_id = await new_run(world)
    await write(world, run_id, step_created("s", ownerMessageId="msg_1", order=[3, 1, 2]))
    (one,) = (await world.events.list_by_correlation_id(run_id, "s", resolve_data="none")).data
    assert data_of(one) == {"stepName": "s", "ownerMessageId": "msg_1", "order": [3, 1, 2]}
