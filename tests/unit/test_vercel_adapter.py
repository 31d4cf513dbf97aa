"""The adapter of the official Python SDK, call by call; the whole of it is in tests/sdk."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import secrets
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

import pytest
import pytest_asyncio
import redis
from ulid import ULID
from vercel import workflow as sdk
from vercel.queue import DuplicateSubscriptionError
from vercel.workflow._internal import core, py_sandbox, runtime
from vercel.workflow._internal import run as sdk_run
from vercel.workflow._internal import serialization as ser
from vercel.workflow._internal import world as w
from vercel.workflow._internal.worlds.local import LocalWorld

from redis_world import RedisWorld, errors
from redis_world.testing import memory_world
from redis_world.vercel import VercelWorld, use_redis_world
from redis_world.vercel.outbox import delivery
from redis_world.vercel.translation import ENDED_AS_CONFLICT, ENDED_AS_EXPIRED, translate
from support.backends import Backend
from support.events import (
    attr_set,
    new_run,
    new_run_id,
    run_created,
    run_ended,
    step_created,
)
from support.sdk import kept_world, until

Make: TypeAlias = Callable[[], w.Event]

TOPIC: Final = "__wkf_workflow_"
NAME: Final = "__wkf_workflow_workflow//m//w"


@pytest.fixture(autouse=True)
def same_world_afterwards() -> Iterator[None]:
    with kept_world():
        yield


@pytest.fixture
def adapter(world: RedisWorld) -> VercelWorld:
    return VercelWorld(world)


@pytest_asyncio.fixture
async def embedded() -> AsyncIterator[VercelWorld]:
    """An adapter for what no server has a part in."""
    async with memory_world() as world:
        yield VercelWorld(world)


# -- events of the SDK ---------------------------------------------------------------------


def resilient_start() -> w.Event:
    data = w.RunStartedEventData(input=b"in", deployment_id="d", workflow_name="w")
    return w.RunStartedEvent(event_data=data)


def completion() -> w.Event:
    return w.RunCompletedEventData(output=b"out").into_event()


def failure() -> w.Event:
    return w.RunFailedEventData(error=b"err", error_code="E").into_event()


def attributes(
    *keys: str, correlation_id: str | None = "attr_new", step: str | None = None
) -> w.Event:
    writer: w.AttributeWriter = w.WorkflowAttributeWriter()
    if step is not None:
        writer, correlation_id = w.StepAttributeWriter(step_id=step, attempt=1), None
    changes = [w.AttributeChange(key=key, value="v") for key in keys or ("key",)]
    return w.AttrSetEventData(changes=changes, writer=writer).into_event(correlation_id)


def hook(hook_id: str = "hook_new", token: str = "token_new") -> w.Event:
    return w.HookCreatedEventData(token=token).into_event(hook_id)


def cancellation_hook(hook_id: str = "hook_new") -> w.Event:
    return w.HookCreatedEventData(token="abrt_x", is_system=True).into_event(hook_id)


def resume(hook_id: str, token: str | None = None) -> w.Event:
    return w.HookReceivedEventData(payload=b"sent", token=token).into_event(hook_id)


def disposal(hook_id: str) -> w.Event:
    return w.HookDisposedEvent(correlation_id=hook_id)


def step(step_id: str = "step_new") -> w.Event:
    return w.StepCreatedEventData(step_name="s", input=b"in").into_event(step_id)


def step_start(step_id: str) -> w.Event:
    return w.StepStartedEvent(correlation_id=step_id)


def step_end(step_id: str) -> w.Event:
    return w.StepCompletedEventData(result=b"res").into_event(step_id)


def step_failure(step_id: str) -> w.Event:
    return w.StepFailedEventData(error=b"err").into_event(step_id)


def step_retry(step_id: str, retry_after: datetime | None = None) -> w.Event:
    return w.StepRetryingEventData(error=b"err", retry_after=retry_after).into_event(step_id)


def wait(wait_id: str = "wait_new") -> w.Event:
    return w.WaitCreatedEventData(resume_at=datetime(2040, 1, 1, tzinfo=UTC)).into_event(wait_id)


def wait_end(wait_id: str) -> w.Event:
    return w.WaitCompletedEvent(correlation_id=wait_id)


async def full_run(adapter: VercelWorld, status: str = "running") -> str:
    """A run with a step in every state, a hook, a cancellation hook and two waits."""
    run_id = await new_run(adapter.world)
    for name in ("pending", "running", "done"):
        await adapter.events_create(run_id, step(f"step_{name}"))
    for name in ("running", "done"):
        await adapter.events_create(run_id, step_start(f"step_{name}"))
    await adapter.events_create(run_id, step_end("step_done"))
    token = secrets.token_hex(8)
    await adapter.events_create(run_id, hook("hook_live", token))
    await adapter.events_create(run_id, hook("hook_gone", f"{token}x"))
    await adapter.events_create(run_id, disposal("hook_gone"))
    await adapter.events_create(
        run_id, w.HookCreatedEventData(token=f"abrt_{token}").into_event("hook_abort")
    )
    await adapter.events_create(run_id, wait("wait_live"))
    await adapter.events_create(run_id, wait("wait_done"))
    await adapter.events_create(run_id, wait_end("wait_done"))
    if status != "running":
        await adapter.world.events.create(run_id, run_ended(status))
    return run_id


async def count_events(adapter: VercelWorld, run_id: str) -> int:
    return len((await adapter.world.events.list(run_id)).data)


# -- the run has ended ---------------------------------------------------------------------

AFTER_THE_END: Final[dict[str, tuple[Make, type[Exception]]]] = {
    "run_started": (w.RunStartedEvent, w.RunExpiredError),
    "run_started, resilient": (resilient_start, w.RunExpiredError),
    "run_completed": (completion, w.EntityConflictError),
    "run_failed": (failure, w.EntityConflictError),
    "attr_set": (attributes, w.RunExpiredError),
    "attr_set of a step": (lambda: attributes(step="step_running"), w.RunExpiredError),
    "hook_created": (hook, w.RunExpiredError),
    "hook_created, known": (lambda: hook("hook_live"), w.RunExpiredError),
    "hook_created, cancellation": (cancellation_hook, w.EntityConflictError),
    "hook_disposed": (lambda: disposal("hook_live"), w.RunExpiredError),
    "hook_disposed, disposed": (lambda: disposal("hook_gone"), w.RunExpiredError),
    "hook_disposed, unknown": (lambda: disposal("hook_x"), w.RunExpiredError),
    "hook_received": (lambda: resume("hook_live"), w.RunExpiredError),
    "hook_received, disposed": (lambda: resume("hook_gone"), w.RunExpiredError),
    "hook_received, unknown": (lambda: resume("hook_x"), w.RunExpiredError),
    "hook_received, cancellation": (
        lambda: resume("hook_abort", "abrt_x"),
        w.EntityConflictError,
    ),
    "hook_received, unknown cancellation": (
        lambda: resume("hook_x", "abrt_y"),
        w.EntityConflictError,
    ),
    "step_created": (step, w.EntityConflictError),
    "step_started, pending": (lambda: step_start("step_pending"), w.EntityConflictError),
    "step_started, running": (lambda: step_start("step_running"), w.EntityConflictError),
    "step_started, done": (lambda: step_start("step_done"), w.EntityConflictError),
    "step_started, unknown": (lambda: step_start("step_x"), w.EntityConflictError),
    "step_completed, pending": (lambda: step_end("step_pending"), w.EntityConflictError),
    "step_completed, done": (lambda: step_end("step_done"), w.EntityConflictError),
    "step_completed, unknown": (lambda: step_end("step_x"), w.EntityConflictError),
    "step_failed, pending": (lambda: step_failure("step_pending"), w.EntityConflictError),
    "step_failed, unknown": (lambda: step_failure("step_x"), w.EntityConflictError),
    "step_retrying, pending": (lambda: step_retry("step_pending"), w.EntityConflictError),
    "step_retrying, unknown": (lambda: step_retry("step_x"), w.EntityConflictError),
    "wait_created": (wait, w.EntityConflictError),
    "wait_completed, waiting": (lambda: wait_end("wait_live"), w.EntityConflictError),
    "wait_completed, completed": (lambda: wait_end("wait_done"), w.EntityConflictError),
    "wait_completed, unknown": (lambda: wait_end("wait_x"), w.EntityConflictError),
}


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
async def test_errors_on_a_run_that_has_ended(adapter: VercelWorld, status: str) -> None:
    run_id = await full_run(adapter, status)
    before = await count_events(adapter, run_id)
    raised = {}
    for name, (make, _) in AFTER_THE_END.items():
        try:
            await adapter.events_create(run_id, make())
        except Exception as error:  # noqa: BLE001 - which one it is, is what is tested
            raised[name] = type(error)
    assert raised == {name: expected for name, (_, expected) in AFTER_THE_END.items()}
    assert await count_events(adapter, run_id) == before


@pytest.mark.parametrize(
    "make", [step_end, step_failure, step_retry], ids=["completed", "failed", "retrying"]
)
async def test_a_running_step_outlives_its_run(adapter: VercelWorld, make: Any) -> None:
    run_id = await full_run(adapter, "cancelled")
    result = await adapter.events_create(run_id, make("step_running"))
    assert result.step is not None
    with pytest.raises(w.EntityConflictError):
        await adapter.events_create(run_id, make("step_running"))


async def test_termination_of_a_run_that_has_ended(adapter: VercelWorld) -> None:
    completed = await new_run(adapter.world, "completed")
    with pytest.raises(w.EntityConflictError):
        await adapter.events_create(completed, w.RunCancelledEvent())
    cancelled = await new_run(adapter.world, "cancelled")
    result = await adapter.events_create(cancelled, w.RunCancelledEvent())
    assert result.run is not None
    assert result.run.status == "cancelled"


def test_every_event_type_knows_what_the_end_of_its_run_is() -> None:
    assert not ENDED_AS_EXPIRED & ENDED_AS_CONFLICT
    types = {
        member.model_fields["event_type"].default for member in get_args(w.CreateEventRequest)
    }
    # `run_cancelled` is asked for by a user, who is told the plain truth.
    assert types - ENDED_AS_EXPIRED - ENDED_AS_CONFLICT == {"run_cancelled"}


# -- everything else keeps its kind --------------------------------------------------------


@dataclass(frozen=True)
class NotFound:
    status: int = 404


ON_A_LIVE_RUN: Final[dict[str, tuple[Make, type[Exception] | NotFound]]] = {
    "attr_set, again": (lambda: attributes(correlation_id="attr_1"), w.EntityConflictError),
    "step_created, again": (lambda: step("step_done"), w.EntityConflictError),
    "step_started, done": (lambda: step_start("step_done"), w.EntityConflictError),
    "step_started, too early": (lambda: step_start("step_early"), w.TooEarlyError),
    "step_started, unknown": (lambda: step_start("step_x"), NotFound()),
    "step_completed, done": (lambda: step_end("step_done"), w.EntityConflictError),
    "step_completed, unknown": (lambda: step_end("step_x"), NotFound()),
    "step_failed, unknown": (lambda: step_failure("step_x"), NotFound()),
    "step_retrying, unknown": (lambda: step_retry("step_x"), NotFound()),
    "hook_created, again": (lambda: hook("hook_live"), w.EntityConflictError),
    "hook_created, disposed": (lambda: hook("hook_gone"), w.EntityConflictError),
    "hook_created, cancellation again": (
        lambda: cancellation_hook("hook_abort"),
        w.EntityConflictError,
    ),
    "hook_disposed, again": (lambda: disposal("hook_gone"), w.HookNotFoundError),
    "hook_disposed, unknown": (lambda: disposal("hook_x"), w.HookNotFoundError),
    "hook_received, disposed": (lambda: resume("hook_gone"), w.HookNotFoundError),
    "hook_received, unknown": (lambda: resume("hook_x"), w.HookNotFoundError),
    "wait_created, again": (lambda: wait("wait_live"), w.EntityConflictError),
    "wait_completed, again": (lambda: wait_end("wait_done"), w.EntityConflictError),
    "wait_completed, unknown": (lambda: wait_end("wait_x"), NotFound()),
}


async def test_errors_on_a_live_run(adapter: VercelWorld) -> None:
    run_id = await full_run(adapter)
    await adapter.events_create(run_id, attributes(correlation_id="attr_1"))
    await adapter.events_create(run_id, step("step_early"))
    later = datetime.now(UTC) + timedelta(hours=1)
    await adapter.events_create(run_id, step_retry("step_early", later))
    raised: dict[str, object] = {}
    for name, (make, _) in ON_A_LIVE_RUN.items():
        try:
            await adapter.events_create(run_id, make())
        except w.WorkflowWorldError as error:
            raised[name] = NotFound(error.status)
        except Exception as error:  # noqa: BLE001 - which one it is, is what is tested
            raised[name] = type(error)
    assert raised == {name: expected for name, (_, expected) in ON_A_LIVE_RUN.items()}
    assert (await adapter.runs_get(run_id)).status == "running"


async def test_too_early_tells_how_long_to_wait(adapter: VercelWorld) -> None:
    run_id = await full_run(adapter)
    later = datetime.now(UTC) + timedelta(hours=1)
    await adapter.events_create(run_id, step_retry("step_pending", later))
    with pytest.raises(w.TooEarlyError) as caught:
        await adapter.events_create(run_id, step_start("step_pending"))
    assert type(caught.value.retry_after) is int
    assert 3500 < caught.value.retry_after <= 3600


@pytest.mark.parametrize("make", [w.RunStartedEvent, attributes, step, completion, hook, wait])
async def test_events_of_an_unknown_run(adapter: VercelWorld, make: Make) -> None:
    with pytest.raises(w.WorkflowWorldError) as caught:
        await adapter.events_create(new_run_id(), make())
    assert (caught.value.status, caught.value.code) == (404, "WorkflowRunNotFoundError")


async def test_look_ups(adapter: VercelWorld) -> None:
    run_id = await full_run(adapter)
    for call in (adapter.runs_get(new_run_id()), adapter.steps_get(run_id, "step_x")):
        with pytest.raises(w.WorkflowWorldError) as caught:
            await call
        assert caught.value.status == 404
    with pytest.raises(w.HookNotFoundError) as missing:
        await adapter.hooks_get_by_token("no such token")
    assert missing.value.token == "no such token"
    assert str(missing.value) == "Hook not found", "a token is a secret"
    found = await adapter.steps_get(run_id, "step_done")
    assert (found.status, found.output, found.attempt) == ("completed", b"res", 1)
    await adapter.events_create(run_id, hook("hook_other", "a token"))
    assert (await adapter.hooks_get_by_token("a token")).hook_id == "hook_other"


async def test_a_hook_event_names_the_hook_that_is_missing(adapter: VercelWorld) -> None:
    run_id = await new_run(adapter.world)
    with pytest.raises(w.HookNotFoundError) as caught:
        await adapter.events_create(run_id, resume("hook_x"))
    assert caught.value.hook_id == "hook_x"


async def test_a_taken_token_is_an_event(adapter: VercelWorld) -> None:
    first, second = await new_run(adapter.world), await new_run(adapter.world)
    result = await adapter.events_create(first, hook("hook_1", "wanted"))
    assert isinstance(result.event, w.HookCreatedEvent)
    result = await adapter.events_create(second, hook("hook_1", "wanted"))
    assert isinstance(result.event, w.HookConflictEvent)
    assert result.event.event_data.conflicting_run_id == first
    assert result.event.event_data.token == "wanted"
    assert result.hook is None


async def test_bad_input_is_400(adapter: VercelWorld) -> None:
    with pytest.raises(w.WorkflowWorldError) as caught:
        await adapter.events_create("wrun_x", w.EventAdaptor.from_wire(run_created_wire()))
    assert caught.value.status == 400
    with pytest.raises(w.WorkflowWorldError) as caught:
        await adapter.queue("no queue name", w.WorkflowInvokePayload(run_id="r"))
    assert caught.value.status == 400
    with pytest.raises(w.WorkflowWorldError) as caught:
        await adapter.events_list("wrun_x", pagination=w.PaginationOptions(cursor="?"))
    assert caught.value.status == 400
    with pytest.raises(w.WorkflowWorldError) as caught:
        await adapter.streams_get_chunks("wrun_x", "s", cursor="?")
    assert caught.value.status == 400


def run_created_wire() -> dict[str, Any]:
    return {**run_created(), "eventData": {"deploymentId": "d", "workflowName": "w", "input": b""}}


ERRORS: Final = [
    errors.WorldError("text"),
    errors.EntityConflictError("text", reason="step_terminal"),
    errors.TooEarlyError("text", retry_after=7),
    errors.ThrottleError("text", retry_after=3),
    errors.ThrottleError("text"),
    *(
        kind("text")
        for kind in (
            errors.AttributeValidationError,
            errors.ConfigurationError,
            errors.EventNotFoundError,
            errors.HookNotFoundError,
            errors.HookResumeConflictError,
            errors.InvalidCursorError,
            errors.InvalidEventError,
            errors.InvalidInputError,
            errors.MessageNotFoundError,
            errors.NamespaceNotFoundError,
            errors.NotDurableError,
            errors.RunExpiredError,
            errors.RunNotFoundError,
            errors.RunNotSupportedError,
            errors.ScriptError,
            errors.StepNotFoundError,
            errors.StreamClosedError,
            errors.WaitNotFoundError,
            errors.WorldClosedError,
            errors.WorldUnavailableError,
        )
    ),
]


def test_the_list_of_errors_is_complete() -> None:
    known = {name for name in errors.__all__ if issubclass(getattr(errors, name), Exception)}
    assert {type(error).__name__ for error in ERRORS} == known


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_text_status_and_code(error: errors.WorldError) -> None:
    told = translate(error)
    # The SDK tells its own errors apart by class, all others by their status.
    assert isinstance(
        told,
        w.WorkflowWorldError | w.EntityConflictError | w.HookNotFoundError | w.TooEarlyError,
    )
    assert "text" in str(told)
    if isinstance(told, w.WorkflowWorldError):
        assert type(told.status) is int
        assert (told.status, told.code) == (error.status, error.code)
    if isinstance(error, errors.TooEarlyError | errors.ThrottleError):
        assert getattr(told, "retry_after", "none") == error.retry_after
    assert isinstance(told, w.HookResumeConflictError) == isinstance(
        error, errors.HookResumeConflictError
    )


CALLS: Final[Mapping[str, Callable[[VercelWorld], Awaitable[Any]]]] = {
    "queue": lambda a: a.queue(NAME, w.WorkflowInvokePayload(run_id="r")),
    "runs_get": lambda a: a.runs_get("r"),
    "steps_get": lambda a: a.steps_get("r", "s"),
    "hooks_get_by_token": lambda a: a.hooks_get_by_token("t"),
    "events_create": lambda a: a.events_create(new_run_id(), step()),
    "events_list": lambda a: a.events_list("r"),
    "streams_write": lambda a: a.streams_write("r", "s", b""),
    "streams_write_multi": lambda a: a.streams_write_multi("r", "s", [b""]),
    "streams_close": lambda a: a.streams_close("r", "s"),
    "streams_list": lambda a: a.streams_list("r"),
    "streams_get_chunks": lambda a: a.streams_get_chunks("r", "s"),
    "streams_get_info": lambda a: a.streams_get_info("r", "s"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_server_that_is_not_there(name: str) -> None:
    adapter = VercelWorld(RedisWorld("redis://127.0.0.1:1/0"))
    with pytest.raises(w.WorkflowWorldError) as caught:
        await CALLS[name](adapter)
    assert caught.value.status == 503
    await adapter.aclose()


# -- what a workflow may not begin ---------------------------------------------------------

BEGINNINGS: Final[dict[str, Make]] = {
    "attr_set": attributes,
    "hook_created": hook,
    "hook_created, cancellation": cancellation_hook,
    "step_created": step,
    "wait_created": wait,
}


async def assert_failed_by_its_own_fault(adapter: VercelWorld, run_id: str, text: str) -> None:
    run = await adapter.runs_get(run_id)
    assert (run.status, run.error_code) == ("failed", "USER_ERROR")
    error = ser.hydrate_error(run.error, what="the error")
    assert isinstance(error, sdk.FatalError)
    assert text in str(error)
    page = await adapter.events_list(run_id)
    assert [event.event_type for event in page.data].count("run_failed") == 1


@pytest.mark.parametrize("name", BEGINNINGS)
async def test_a_workflow_at_the_event_ceiling_fails(backend: Backend, name: str) -> None:
    async with backend.world(max_events_per_run=2) as world:
        adapter = VercelWorld(world)
        run_id = await new_run(world)
        with pytest.raises(w.RunExpiredError):
            await adapter.events_create(run_id, BEGINNINGS[name]())
        await assert_failed_by_its_own_fault(adapter, run_id, "ceiling")


async def test_a_cancellation_at_the_event_ceiling_fails_the_run(backend: Backend) -> None:
    """Its hook was the last event that fitted: every replay would ask for the next one again."""
    async with backend.world(max_events_per_run=3) as world:
        adapter = VercelWorld(world)
        run_id = await new_run(world)
        await adapter.events_create(run_id, cancellation_hook("hook_1"))
        with pytest.raises((w.EntityConflictError, w.RunExpiredError)):
            await adapter.events_create(run_id, resume("hook_1", "abrt_x"))
        await assert_failed_by_its_own_fault(adapter, run_id, "ceiling")


async def test_a_resume_at_the_event_ceiling_is_its_senders_problem(backend: Backend) -> None:
    async with backend.world(max_events_per_run=3) as world:
        adapter = VercelWorld(world)
        run_id = await new_run(world)
        await adapter.events_create(run_id, hook("hook_1", "a token"))
        with pytest.raises(w.WorkflowWorldError) as caught:
            await adapter.events_create(run_id, resume("hook_1"))
        assert caught.value.status == 400
        assert (await adapter.runs_get(run_id)).status == "running"


async def test_a_workflow_with_too_many_attributes_fails(adapter: VercelWorld) -> None:
    run_id = await new_run(adapter.world)
    keys = [f"key {number}" for number in range(64)]
    await adapter.events_create(run_id, attributes(*keys, correlation_id="attr_1"))
    with pytest.raises(w.RunExpiredError):
        await adapter.events_create(run_id, attributes("more", correlation_id="attr_2"))
    await assert_failed_by_its_own_fault(adapter, run_id, "65 attributes")
    # What the redelivery will be told.
    with pytest.raises(w.RunExpiredError):
        await adapter.events_create(run_id, w.RunStartedEvent())


async def test_a_step_with_too_many_attributes_has_an_error(adapter: VercelWorld) -> None:
    run_id = await full_run(adapter)
    keys = [f"key {number}" for number in range(64)]
    await adapter.events_create(run_id, attributes(*keys, step="step_running"))
    with pytest.raises(w.WorkflowWorldError) as caught:
        await adapter.events_create(run_id, attributes("more", step="step_running"))
    assert not isinstance(caught.value, w.RunExpiredError)
    assert (caught.value.status, caught.value.code) == (400, "AttributeValidationError")
    assert (await adapter.runs_get(run_id)).status == "running"


async def test_rivals_fail_a_run_once(adapter: VercelWorld) -> None:
    run_id = await new_run(adapter.world)
    keys = [f"key {number}" for number in range(64)]
    await adapter.events_create(run_id, attributes(*keys, correlation_id="attr_0"))
    calls = [
        adapter.events_create(run_id, attributes("more", correlation_id=f"attr_{number}"))
        for number in range(1, 6)
    ]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in found] == [w.RunExpiredError] * 5
    await assert_failed_by_its_own_fault(adapter, run_id, "65 attributes")


async def test_a_run_that_cannot_be_failed_now(
    embedded: VercelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the delivery has to come again: nothing has ended the run."""
    run_id = await new_run(embedded.world)

    async def create(_run_id: str, event: Any, **_: Any) -> Any:
        if event["eventType"] == "attr_set":
            raise errors.AttributeValidationError("too many")
        raise errors.WorldUnavailableError("no server")

    monkeypatch.setattr(embedded.world.events, "create", create)
    with pytest.raises(w.WorkflowWorldError) as caught:
        await embedded.events_create(run_id, attributes())
    assert caught.value.status == 503


async def test_an_end_that_cannot_be_looked_up(
    embedded: VercelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the run has ended is not known, so the error keeps its kind."""
    run_id = await new_run(embedded.world, "completed")

    async def get(*_: Any, **__: Any) -> Any:
        raise errors.WorldUnavailableError("no server")

    monkeypatch.setattr(embedded.world.runs, "get", get)
    with pytest.raises(w.WorkflowWorldError) as caught:
        await embedded.events_create(run_id, wait_end("wait_x"))
    assert caught.value.status == 404


# -- events --------------------------------------------------------------------------------


@pytest.mark.large
async def test_pages_of_events_are_large_and_all_have_a_cursor(adapter: VercelWorld) -> None:
    run_id = await new_run(adapter.world)
    wires = [step_created(f"step_{number}") for number in range(1020)]
    await asyncio.gather(*(adapter.world.events.create(run_id, wire) for wire in wires))
    first = await adapter.events_list(run_id)
    assert (len(first.data), first.has_more) == (1000, True)
    second = await adapter.events_list(
        run_id, pagination=w.PaginationOptions(cursor=first.cursor, sort_order="asc")
    )
    assert (len(second.data), second.has_more) == (22, False)
    ids = [event.server_props.event_id for event in first.data + second.data if event.server_props]
    assert ids == sorted(set(ids))
    assert len(ids) == 1022
    # A reload asks only for what came later.
    assert second.cursor is not None
    more = w.PaginationOptions(cursor=second.cursor, sort_order="asc")
    empty = await adapter.events_list(run_id, pagination=more)
    assert (empty.data, empty.cursor, empty.has_more) == ([], second.cursor, False)
    await adapter.events_create(run_id, wait())
    assert [e.event_type for e in (await adapter.events_list(run_id, pagination=more)).data] == [
        "wait_created"
    ]
    latest = w.PaginationOptions(limit=1, sort_order="desc")
    (last,) = (await adapter.events_list(run_id, pagination=latest)).data
    assert last.correlation_id == "wait_new"


async def test_events_come_back_as_they_were_given(adapter: VercelWorld) -> None:
    run_id = await full_run(adapter)
    started = w.StepStartedEventData(attempt=2).into_event("step_pending")
    given: list[w.Event] = [
        w.AttrSetEventData(
            changes=[w.AttributeChange(key="$k", value=None)],
            writer=w.WorkflowAttributeWriter(),
            allow_reserved_attributes=True,
        ).into_event("attr_9"),
        w.HookCreatedEventData(token="tok", metadata=b"\x00\xff", is_system=True).into_event("h9"),
        resume("h9", "tok"),
        started,
        step_retry("step_pending", datetime(2040, 1, 1, 1, 2, 3, 4000, tzinfo=UTC)),
        step_failure("step_pending"),
        w.RunCancelledEventData(cancel_reason="why").into_event(),
    ]
    made = [(await adapter.events_create(run_id, event)).event for event in given]
    listed = (await adapter.events_list(run_id)).data[-len(given) :]
    for event, answer, stored in zip(given, made, listed, strict=True):
        assert stored.model_dump() == event.model_dump()
        assert answer is not None
        assert answer.server_props == stored.server_props
        assert stored.server_props is not None
        created_at = stored.server_props.created_at
        assert created_at.tzinfo is not None
        assert created_at.microsecond % 1000 == 0


async def test_started_at_stays_the_same_to_the_millisecond(adapter: VercelWorld) -> None:
    """It is the seed of all correlation ids."""
    created = await adapter.world.events.create(None, run_created())
    assert created.run is not None
    run_id = created.run.run_id
    seen = set()
    for _ in range(3):
        result = await adapter.events_create(run_id, w.RunStartedEvent())
        assert result.run is not None
        assert result.run.input == created.run.input
        seen.add(result.run.started_at)
        await asyncio.sleep(0.002)
    seen.add((await adapter.runs_get(run_id)).started_at)
    (started_at,) = seen
    assert started_at is not None
    assert started_at.microsecond % 1000 == 0
    assert started_at.utcoffset() == timedelta(0)


async def test_a_start_creates_a_run_whose_creation_was_lost(adapter: VercelWorld) -> None:
    run_id = new_run_id()
    data = w.RunStartedEventData(
        input=b"\x00in", deployment_id="d", workflow_name="w", attributes={"a": "b"}
    )
    result = await adapter.events_create(run_id, data.into_event())
    assert result.run is not None
    assert (result.run.status, result.run.input) == ("running", b"\x00in")
    assert result.run.attributes == {"a": "b"}


async def test_a_step_start_gives_the_step(adapter: VercelWorld) -> None:
    run_id = await full_run(adapter)
    result = await adapter.events_create(run_id, step_start("step_pending"))
    assert result.step is not None
    assert (result.step.input, result.step.attempt) == (b"in", 1)
    await adapter.events_create(run_id, step_retry("step_pending"))
    result = await adapter.events_create(run_id, step_start("step_pending"))
    assert result.step is not None
    assert (result.step.error, result.step.attempt) == (b"err", 2)


@pytest.mark.parametrize("status", ["pending", "running", "completed", "failed", "cancelled"])
async def test_runs_of_every_status_can_be_read(adapter: VercelWorld, status: str) -> None:
    run = await adapter.runs_get(await new_run(adapter.world, status))
    assert run.status == status
    expected = {"completed": (b"out", None), "failed": (None, b"err")}.get(status, (None, None))
    assert (run.output, run.error) == expected


# -- the resume of a hook by a message -----------------------------------------------------


def queued(hook_id: str, resume_id: str, digest: str = "digest") -> w.HookReceivedEvent:
    event = w.HookReceivedEventData(payload=b"sent", token="t").into_event(hook_id)
    event._queue_input = w.HookResumeInput(
        resume_id=resume_id, hook_id=hook_id, token="t", payload=b"sent", payload_digest=digest
    )
    return event


async def test_a_resume_carries_its_claim(adapter: VercelWorld) -> None:
    run_id = await new_run(adapter.world)
    await adapter.events_create(run_id, hook("hook_1", "t"))
    moment = datetime.now(UTC) - timedelta(minutes=5)
    resume_id = str(ULID.from_datetime(moment))
    first = await adapter.events_create(run_id, queued("hook_1", resume_id))
    again = await adapter.events_create(run_id, queued("hook_1", resume_id))
    assert first.event is not None
    assert again.event is not None
    assert first.event.server_props == again.event.server_props
    stored = (await adapter.world.events.list(run_id)).data
    assert [event.event_type for event in stored].count("hook_received") == 1
    assert stored[-1].resume_id == resume_id
    assert stored[-1].occurred_at is not None
    assert abs(stored[-1].occurred_at - moment) < timedelta(milliseconds=1)
    listed = (await adapter.events_list(run_id)).data[-1]
    assert listed.server_props is not None
    assert listed.server_props.resume_id == resume_id
    with pytest.raises(w.HookResumeConflictError):
        await adapter.events_create(run_id, queued("hook_1", resume_id, "another"))


async def test_a_resume_id_need_not_have_a_time(adapter: VercelWorld) -> None:
    run_id = await new_run(adapter.world)
    await adapter.events_create(run_id, hook("hook_1", "t"))
    await adapter.events_create(run_id, queued("hook_1", "resume 1"))
    await adapter.events_create(run_id, queued("hook_1", "resume 2"))
    stored = (await adapter.world.events.list(run_id)).data[-2:]
    assert [event.resume_id for event in stored] == ["resume 1", "resume 2"]
    assert [event.occurred_at for event in stored] == [None, None]


async def test_a_claimed_resume_of_an_ended_run(adapter: VercelWorld) -> None:
    run_id = await new_run(adapter.world)
    await adapter.events_create(run_id, hook("hook_1", "t"))
    await adapter.events_create(run_id, queued("hook_1", "resume 1"))
    await adapter.events_create(run_id, completion())
    # The same one again has its event; another one came too late.
    result = await adapter.events_create(run_id, queued("hook_1", "resume 1"))
    assert result.event is not None
    with pytest.raises(w.RunExpiredError):
        await adapter.events_create(run_id, queued("hook_1", "resume 2"))


# -- queue ---------------------------------------------------------------------------------


async def test_a_message_travels_as_it_is(adapter: VercelWorld) -> None:
    run_input = w.RunInput(input=b"\x00\xff", deployment_id="d", workflow_name="w", spec_version=5)
    resume_input = w.HookResumeInput(
        resume_id="r", hook_id="h", token="t", payload=b"\x00", payload_digest="x"
    )
    sent = w.WorkflowInvokePayload(
        run_id=new_run_id(),
        run_input=run_input,
        hook_input=resume_input,
        trace_carrier={"traceparent": "00"},
        requested_at=datetime.now(UTC),
    )
    message_id = await adapter.queue(
        NAME, sent, deployment_id="dep", headers={"h": "1"}, idempotency_key="key"
    )
    (message,) = await adapter.world.queue.claim(TOPIC)
    assert (message.message_id, message.queue_name) == (message_id, NAME)
    assert (message.deployment_id, message.headers) == ("dep", {"h": "1"})
    assert message.idempotency_key == "key"
    assert message.payload["runInput"]["input"] == b"\x00\xff"
    assert w.WorkflowInvokePayload.from_wire(message.payload) == sent


async def test_a_delayed_message(clocked: tuple[RedisWorld, Any]) -> None:
    world, clock = clocked
    adapter = VercelWorld(world)
    await adapter.queue(NAME, w.WorkflowInvokePayload(run_id=new_run_id()), delay_seconds=1.5)
    await clock.advance(1.499)
    assert await world.queue.claim(TOPIC) == []
    await clock.advance(0.001)
    assert len(await world.queue.claim(TOPIC)) == 1


async def test_a_message_for_a_step_that_is_over(adapter: VercelWorld) -> None:
    run_id = await full_run(adapter)
    over = w.WorkflowInvokePayload(run_id=run_id, step_id="step_done", step_name="s")
    assert await adapter.queue(NAME, over, idempotency_key="step_done") == "msg_not_needed"
    assert (await adapter.world.queue.stats(TOPIC)).ready == 0
    wanted = w.WorkflowInvokePayload(run_id=run_id, step_id="step_pending", step_name="s")
    first = await adapter.queue(NAME, wanted, idempotency_key="step_pending")
    assert await adapter.queue(NAME, wanted) == first
    assert (await adapter.world.queue.stats(TOPIC)).ready == 1


# -- registries ----------------------------------------------------------------------------


async def test_two_registries_on_one_topic(embedded: VercelWorld) -> None:
    w.set_world(embedded)
    first = sdk.Workflows()
    with pytest.raises(DuplicateSubscriptionError, match="namespace"):
        sdk.Workflows()
    other = sdk.Workflows(namespace="other")
    with pytest.raises(DuplicateSubscriptionError):
        sdk.Workflows(namespace="other")
    assert sorted(embedded.handlers) == ["__other_wkf_workflow_", "__wkf_workflow_"]
    # The same one again is no second one.
    runtime.workflow_entrypoint(first)
    runtime.workflow_entrypoint(other)
    assert len(embedded.handlers) == 2


async def test_plain_handlers_on_one_topic(embedded: VercelWorld) -> None:
    async def handler(*_: Any, **__: Any) -> None: ...

    async def another(*_: Any, **__: Any) -> None: ...

    embedded.create_queue_handler(TOPIC, handler)
    embedded.create_queue_handler(TOPIC, handler)
    with pytest.raises(DuplicateSubscriptionError):
        embedded.create_queue_handler(TOPIC, another)
    (kept,) = embedded.handlers.values()
    assert getattr(kept, "handler", None) is handler


async def test_a_worker_needs_a_registry(embedded: VercelWorld) -> None:
    with pytest.raises(errors.ConfigurationError, match="handler"):
        embedded.worker()


@dataclass(frozen=True)
class Request:
    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        yield b""


async def test_deliveries_by_http_are_refused(embedded: VercelWorld) -> None:
    w.set_world(embedded)
    handler = sdk.Workflows().http_handler
    response = await handler(Request("/.well-known/workflow/v1/flow"))
    assert response.status == 501
    assert b"redis-world worker" in response.body
    health = await handler(Request("/.well-known/workflow/v1/flow?__health"))
    assert health.status == 200


# -- becoming the process's World ----------------------------------------------------------


async def test_use_redis_world(monkeypatch: pytest.MonkeyPatch) -> None:
    first = use_redis_world("memory://first", namespace="one", deployment_id="dep")
    assert w.get_world() is first
    assert first.world.config.namespace == "one"
    assert await first.get_deployment_id() == "dep"
    assert first.get_environment() is None
    second = use_redis_world("memory://second", environment="production")
    assert w.get_world() is second
    assert second.get_environment() == "production"
    async with memory_world() as world:
        assert use_redis_world(world=world).world is world
    monkeypatch.setenv("REDIS_WORLD_URL", "memory://third")
    monkeypatch.setenv("REDIS_WORLD_NAMESPACE", "three")
    third = use_redis_world()
    assert third.world.config.namespace == "three"
    for adapter in (first, second, third):
        await adapter.aclose()


async def test_a_second_world_takes_the_registries_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are started where they are worked on, whichever World came first."""
    name = f"flows_{secrets.token_hex(4)}"
    text = """
        from vercel import workflow as sdk

        app = sdk.Workflows(
            sandbox_policy=sdk.SandboxPolicy(
                passthrough_modules=frozenset({"redis", "redis_world"})
            )
        )

        @app.workflow
        async def flow(value: int) -> int:
            return 2 * value
    """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    first = use_redis_world(f"memory://{name}-first")
    module: Any = importlib.import_module(name)
    for number in range(3):
        adapter = use_redis_world(f"memory://{name}-{number}")
        worker = adapter.worker()
        working = asyncio.create_task(worker.run())
        run = await sdk.start(module.flow, number)
        assert (await adapter.world.runs.wait_for_terminal(run.run_id)).status == "completed"
        assert await run.return_value() == 2 * number
        worker.stop()
        await working
        await adapter.aclose()
    with pytest.raises(errors.ConfigurationError, match=r"a later use_redis_world\(\) took over"):
        first.worker()
    await first.aclose()
    del sys.modules[name]


def test_a_registry_made_anew_takes_the_place_of_a_moved_one() -> None:
    """As in a notebook whose cells are run again, and in the modules of a test suite."""
    use_redis_world("memory://first")
    sdk.Workflows()
    second = use_redis_world("memory://second")
    (moved,) = second.handlers.values()
    sdk.Workflows()
    (present,) = second.handlers.values()
    assert present is not moved
    with pytest.raises(DuplicateSubscriptionError):
        sdk.Workflows()


def test_bad_options_leave_the_world_as_it_is() -> None:
    present = w.the_world
    bad: list[tuple[str, dict[str, Any]]] = [
        ("no url", {}),
        ("memory://x", {"namespace": "{}"}),
        ("memory://x", {"colour": "red"}),
    ]
    for url, options in bad:
        with pytest.raises(errors.ConfigurationError):
            use_redis_world(url, **options)
    assert w.the_world is present


@pytest.mark.parametrize("share", [True, False])
async def test_a_workflow_module_that_chooses_its_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: bool
) -> None:
    """Every replay executes the module again: the host keeps the World that it has."""
    name = f"flows_{secrets.token_hex(4)}"
    text = f"""
        from vercel import workflow as sdk
        from redis_world.vercel import use_redis_world

        adapter = use_redis_world("memory://{name}")
        app = sdk.Workflows(
            sandbox_policy=sdk.SandboxPolicy(
                passthrough_modules=frozenset({{"redis", "redis_world"}}),
                share_sandboxes={share},
            )
        )

        @app.step
        async def double(value: int) -> int:
            return 2 * value

        @app.workflow
        async def flow(value: int) -> int:
            return await double(await double(value))
    """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module(name)
    adapter: VercelWorld = module.adapter
    assert w.the_world is adapter
    worker = adapter.worker()
    working = asyncio.create_task(worker.run())
    run = await sdk.start(module.flow, 3)
    stored = await adapter.world.runs.wait_for_terminal(run.run_id)
    assert stored.status == "completed"
    assert await run.return_value() == 12
    assert w.the_world is adapter
    worker.stop()
    await working
    await adapter.aclose()
    del sys.modules[name]


def test_in_a_replay_the_world_of_the_host_stays() -> None:
    present = use_redis_world("memory://host")
    policy = sdk.SandboxPolicy(passthrough_modules=frozenset({"redis", "redis_world"}))
    with py_sandbox.Sandbox(policy=policy).enter():
        assert use_redis_world("memory://other", namespace="other") is present
        # Not even the options are looked at: the host's World was chosen by others.
        assert use_redis_world("no url") is present
    assert w.the_world is present


def test_in_a_replay_another_world_stays_too() -> None:
    """Somebody else's World runs the replay: it can't be changed in the middle of it."""

    other = LocalWorld()
    w.set_world(other)
    policy = sdk.SandboxPolicy(passthrough_modules=frozenset({"redis", "redis_world"}))
    with py_sandbox.Sandbox(policy=policy).enter():
        use_redis_world("memory://other")
    assert w.the_world is other


async def test_a_replay_reads_what_the_steps_of_the_sdk_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their codecs are built at the first use; in a replay that fails, once and for all.

    A process that replays a body which waited for another run, before it executes such a step
    itself, would fail the run.
    """
    for builtin in core._builtin_steps.values():
        monkeypatch.setattr(builtin.codec, "_codecs", {})
        monkeypatch.setattr(builtin.codec, "_hints", None)
    adapter = use_redis_world("memory://codecs")
    sdk.Workflows()
    adapter.worker()
    codec = sdk_run._get_return_value.codec
    with py_sandbox.Sandbox(policy=sdk.SandboxPolicy()).enter():
        value = codec.validate_return({"status": "completed", "value": 3})
    assert value == sdk_run.ReturnValueResult(status="completed", value=3)
    await adapter.aclose()


async def test_aclose_closes_the_world_below(real_backend: Backend) -> None:
    name = secrets.token_hex(8)
    client = real_backend.client()
    world = real_backend.world()
    adapter = VercelWorld(world)
    await adapter.world.connection.execute(("CLIENT", "SETNAME", name))
    with contextlib.closing(client):

        async def is_connected() -> bool:
            return any(each["name"] == name for each in client.client_list())

        assert await is_connected()
        await adapter.aclose()

        async def is_gone() -> bool:
            return not await is_connected()

        await until(is_gone, what="the end of the connection")
    await adapter.aclose()


# -- streams -------------------------------------------------------------------------------


async def test_streams(adapter: VercelWorld) -> None:
    run_id = await new_run(adapter.world)
    info = await adapter.streams_get_info(run_id, "s")
    assert (info.tail_index, info.done) == (-1, False)
    await adapter.streams_write(run_id, "s", b"\x00")
    await adapter.streams_write_multi(run_id, "s", [b"1", b"", b"3"])
    await adapter.streams_write_multi(run_id, "s", [])
    page = await adapter.streams_get_chunks(run_id, "s", limit=3)
    assert [(chunk.index, chunk.data) for chunk in page.data] == [
        (0, b"\x00"),
        (1, b"1"),
        (2, b""),
    ]
    assert (page.has_more, page.done) == (True, False)
    page = await adapter.streams_get_chunks(run_id, "s", cursor=page.cursor)
    assert [(chunk.index, chunk.data) for chunk in page.data] == [(3, b"3")]
    assert (page.has_more, page.cursor) == (False, None)
    await adapter.streams_close(run_id, "s")
    await adapter.streams_close(run_id, "s")
    info = await adapter.streams_get_info(run_id, "s")
    assert (info.tail_index, info.done) == (3, True)
    assert await adapter.streams_list(run_id) == ["s"]
    assert [chunk async for chunk in adapter.streams_get(run_id, "s")] == [b"\x00", b"1", b"3"]
    assert [chunk async for chunk in adapter.streams_get(run_id, "s", 1)] == [b"1", b"3"]
    assert [chunk async for chunk in adapter.streams_get(run_id, "s", -1)] == [b"3"]


@pytest.mark.parametrize("call", ["streams_write", "streams_write_multi"])
async def test_a_write_to_a_closed_stream_is_409(adapter: VercelWorld, call: str) -> None:
    """The SDK takes this status for a cancellation that another replay has sent."""
    run_id = f"wrun_hc_{secrets.token_hex(4)}"
    await adapter.streams_close(run_id, "s")
    with pytest.raises(w.WorkflowWorldError) as caught:
        await getattr(adapter, call)(run_id, "s", b"late" if call == "streams_write" else [b"x"])
    assert caught.value.status == 409
    assert (await adapter.streams_get_info(run_id, "s")).tail_index == -1


async def test_a_live_read_can_be_given_up(adapter: VercelWorld) -> None:
    run_id = await new_run(adapter.world)
    await adapter.streams_write(run_id, "s", b"first")
    source = adapter.streams_get(run_id, "s")
    assert inspect.isasyncgen(source)
    assert await anext(source) == b"first"
    waiting = asyncio.ensure_future(anext(source))
    await asyncio.sleep(0)
    await adapter.streams_write(run_id, "s", b"second")
    assert await waiting == b"second"
    await source.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(source)


async def test_a_broken_connection_is_not_told_to_a_reader(real_backend: Backend) -> None:
    """To the SDK an error means: open it again, at once, fifty times; then it gives up."""
    async with real_backend.world() as world:
        adapter = VercelWorld(world)
        run_id = await new_run(world)
        source = adapter.streams_get(run_id, "s")
        reading = asyncio.create_task(anext(source))
        with contextlib.closing(real_backend.client()) as client:
            await until(lambda: subscribed(client), what="the reader")
            for kind in ("normal", "pubsub"):
                client.client_kill_filter(_type=kind, skipme=True)
        await write_until_it_works(adapter, run_id, b"chunk")
        assert await reading == b"chunk"
        await source.aclose()


async def subscribed(client: redis.Redis) -> bool:
    return bool(client.client_list(_type="pubsub"))


async def write_until_it_works(adapter: VercelWorld, run_id: str, chunk: bytes) -> None:
    async def write() -> bool:
        with contextlib.suppress(w.WorkflowWorldError):
            await adapter.streams_write(run_id, "s", chunk)
            return True
        return False

    await until(write)


# -- logs ----------------------------------------------------------------------------------


async def replay(adapter: VercelWorld, run_id: str) -> list[w.Event]:
    """The log, as a replay reads it."""
    with delivery(NAME, is_replay=True):
        await adapter.events_create(run_id, w.RunStartedEvent())
        return (await adapter.events_list(run_id)).data


async def test_a_replay_reads_a_kept_log_and_what_came_since(adapter: VercelWorld) -> None:
    run_id = await new_run(adapter.world)
    first = await replay(adapter, run_id)
    await adapter.world.events.create(run_id, step_created("a"))
    second = await replay(adapter, run_id)
    assert [event.event_type for event in second[len(first) :]] == ["step_created"]
    assert all(one is other for one, other in zip(first, second, strict=False))
    # The runtime may do with its list what it likes.
    second.clear()
    assert len(await replay(adapter, run_id)) == len(first) + 1


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_the_log_of_a_run_that_is_over_is_forgotten(adapter: VercelWorld, end: str) -> None:
    """Also when somebody else has ended it, once its next replay is refused."""
    run_id = await new_run(adapter.world)
    await replay(adapter, run_id)
    assert adapter.logs.get(run_id) is not None
    await adapter.world.events.create(run_id, run_ended(end))
    with pytest.raises((w.EntityConflictError, w.RunExpiredError)):
        await replay(adapter, run_id)
    assert adapter.logs.get(run_id) is None


# Contract: 5.run retention
async def test_user_data_that_goes_with_the_end_is_not_kept(adapter: VercelWorld) -> None:
    run_id = await new_run(adapter.world)
    await replay(adapter, run_id)
    attributes = attr_set({"$retention": "0"}, allowReservedAttributes=True)
    await adapter.world.events.create(run_id, attributes)
    assert len(await replay(adapter, run_id)) == 3
    assert adapter.logs.get(run_id) is None
    assert len(await replay(adapter, run_id)) == 3
