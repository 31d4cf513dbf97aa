"""Whatever a parameter is given, only errors of the World come (contract, section 4)."""

# Contract: 4.bad input

# ruff: noqa: PT017 - which of many calls has raised has to be told, and some may succeed

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final

import pytest
import pytest_asyncio
from pydantic import BaseModel

from redis_world import RedisWorld
from redis_world.config import WorldConfig
from redis_world.errors import (
    ConfigurationError,
    InvalidCursorError,
    InvalidEventError,
    InvalidInputError,
    WorldError,
)
from redis_world.events.validation import parse_event
from redis_world.models import BatchEvent, CreateEvent
from redis_world.queue import Enqueue, FollowUp, Message
from redis_world.worker import Worker
from support.backends import Backend, Servers
from support.events import (
    Wire,
    attr_set,
    event,
    hook_created,
    hook_disposed,
    hook_received,
    lazy_start,
    new_run,
    run_created,
    run_ended,
    step_completed,
    step_created,
    step_failed,
    step_retrying,
    wait_completed,
    wait_created,
    write,
)
from support.nasty import LIMIT, values
from support.private_servers import ONE

TOPIC: Final = "__wkf_workflow_"
NAME: Final = f"{TOPIC}w"
LONGEST_TEXT: Final = 900
"""Of an error, in characters."""

Fine = Callable[[Any], bool]
"""Whether a parameter may take a value."""


@pytest.fixture(params=["memory", ONE])
def backend(request: pytest.FixtureRequest, servers: Servers) -> Any:
    with servers.backend(request.param).at_work() as backend:
        yield backend


@pytest_asyncio.fixture
async def world(backend: Backend) -> AsyncIterator[RedisWorld]:
    async with backend.world(max_payload_bytes=LIMIT) as world:
        yield world


def is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return len(value.encode()) <= LIMIT
    except UnicodeEncodeError:
        return False


def is_number(low: float, high: float) -> Fine:
    return lambda value: type(value) is int and low <= value <= high


def is_duration(value: Any) -> bool:
    if isinstance(value, timedelta):
        return timedelta(0) <= value < timedelta(days=36500)
    return type(value) in (int, float) and 0 <= value < 2**53


def optional(fine: Fine) -> Fine:
    return lambda value: value is None or fine(value)


def never(_: Any) -> bool:
    return False


FINE: Final[dict[str, Fine]] = {
    **dict.fromkeys(("run_id", "step_id", "hook_id", "correlation_id", "token", "name"), is_text),
    **dict.fromkeys(("event_id", "message_id"), is_text),
    **dict.fromkeys(("idempotency_key", "deployment_id", "request_id"), optional(is_text)),
    **dict.fromkeys(("resume_id", "payload_digest", "workflow_name"), optional(is_text)),
    **dict.fromkeys(("resolve_delta", "writer", "sequence"), optional(never)),
    "reason": optional(lambda value: is_text(value) and len(value) <= 512),
    **dict.fromkeys(("topic", "queue_name", "resolve_data", "sort_order"), never),
    **dict.fromkeys(("cursor", "since_cursor"), lambda value: value is None),
    "limit": is_number(1, 1000),
    "start_index": lambda value: type(value) is int,
    "event_count": optional(lambda value: type(value) is int and value >= 0),
    **dict.fromkeys(("delay", "timeout", "older_than"), is_duration),
    "lease": lambda value: is_duration(value) and value not in (0, timedelta(0)),
    **dict.fromkeys(
        ("include_empty", "skip_preload", "preload_events", "dry_run"), lambda v: type(v) is bool
    ),
    "v1_compat": never,
    "partitions": lambda value: value is None,
    "look": lambda value: value is None or (is_duration(value) and value not in (0, timedelta(0))),
    "after": lambda value: value is None,
    "worker": optional(lambda value: is_text(value) and value.isalnum() and len(value) <= 64),
    "occurred_at": lambda value: value is None,
    "event": never,
    "events": never,
    "payload": lambda v: (
        (isinstance(v, dict) and set(map(type, v)) <= {str} and "self" not in v) or v == {1: 2}
    ),
    "headers": optional(lambda v: v == {}),
    **dict.fromkeys(("enqueue", "ack"), lambda value: value is None),
    "follow_up": lambda value: value is None,
    "message": never,
    "chunk": lambda v: isinstance(v, bytes | memoryview) and v != b"x" * (LIMIT + 1),
    "chunks": lambda value: value in ([], ()) and not isinstance(value, str | dict | set),
    "run_ids": lambda value: type(value) in (list, tuple) and all(map(is_text, value)),
    "status": lambda value: value is None or value == [],
    "on_progress": lambda value: value is None or callable(value),
}
"""Parameter -> what may be given, of all the values."""

IGNORED: Final = {
    *("compute_instance_id", "replay_divergence_count", "via_step_dispatch"),
    # What the error of a handler said is kept, whatever it is.
    "error",
}


def wrong(parameter: str, signature: inspect.Parameter) -> dict[str, Any]:
    """The values that a parameter has to refuse."""
    fine = FINE[parameter]
    found = {}
    for name, value in values().items():
        if value is None and (signature.default is None or parameter == "run_id"):
            continue
        try:
            is_fine = fine(value)
        except Exception:  # noqa: BLE001 - hostile values
            is_fine = False
        if not is_fine:
            found[name] = value
    return found


async def stage(world: RedisWorld) -> dict[str, dict[str, Any]]:
    """Calls that are right, by the name of their method."""
    run_id = await new_run(world)
    await write(world, run_id, step_created("s"), hook_created("h", "t"), wait_created("w"))
    await world.streams.write(run_id, "out", b"x")
    await world.queue.send(NAME, {"a": 1})
    (message,) = await world.queue.claim(TOPIC)
    run = {"run_id": run_id}
    return {
        "events.create": {**run, "event": hook_received("h")},
        "events.begin_replay": {**run, "event": event("run_started")},
        "events.create_batch": {**run, "events": [step_created("batched")]},
        "events.get": {**run, "event_id": f"evnt_{1:026d}"},
        "events.list": run,
        "events.list_by_correlation_id": {**run, "correlation_id": "s"},
        "runs.get": run,
        "runs.get_many": {"run_ids": [run_id]},
        "runs.list": {},
        "runs.wait_for_terminal": {**run, "timeout": 0},
        "runs.cancel_many": {"run_ids": [run_id]},
        "steps.get": {**run, "step_id": "s"},
        "steps.list": run,
        "hooks.get": {"hook_id": "h"},
        "hooks.get_by_token": {"token": "t"},
        "hooks.list": {},
        "waits.get": {**run, "correlation_id": "w"},
        "waits.list": run,
        "queue.send": {"queue_name": NAME, "payload": {}},
        "queue.claim": {"topic": TOPIC},
        "queue.claim_batch": {"topic": TOPIC},
        "queue.ack": {"message": message},
        "queue.retry": {"message": message},
        "queue.release": {"message": message},
        "queue.extend": {"message": message},
        "queue.extension": {"message": message, "lease": 60},
        "queue.failure": {"message": message, "error": "no", "delay": 1},
        "queue.postpone": {"message": message, "delay": 1},
        "queue.returning": {"message": message},
        "queue.release_claims": {},
        "queue.stats": {"topic": TOPIC},
        "queue.topics": {},
        "queue.dead_letters": {"topic": TOPIC},
        "queue.redrive": {"message_id": "msg_1"},
        "queue.redrive_all": {"topic": TOPIC},
        "queue.purge_dead_letters": {"topic": TOPIC},
        "streams.write": {**run, "name": "out", "chunk": b"x"},
        "streams.write_many": {**run, "name": "out", "chunks": [b"x"]},
        "streams.close": {**run, "name": "out"},
        "streams.read": {**run, "name": "out"},
        "streams.list": run,
        "streams.get_info": {**run, "name": "out"},
        "streams.get_chunks": {**run, "name": "out"},
        "streams.note_run": {**run, "name": "out"},
        "streams.find_run": {"name": "out"},
        "prune": {"older_than": 3600},
        "sweep": {},
        "open": {},
        "aclose": {},
    }


def public_methods(world: RedisWorld) -> dict[str, Callable[..., Any]]:
    parts = {
        **{
            name: getattr(world, name)
            for name in ("events", "runs", "steps", "hooks", "waits", "queue", "streams")
        }
    }
    found: dict[str, Callable[..., Any]] = {
        f"{part}.{name}": method
        for part, owner in parts.items()
        for name, method in inspect.getmembers(owner, inspect.ismethod)
        if not name.startswith("_")
    }
    own = dict(inspect.getmembers(world, inspect.ismethod))
    return found | {name: own[name] for name in ("prune", "sweep", "open", "aclose")}


async def call(method: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    answer = method(**arguments)
    if inspect.isasyncgen(answer):
        try:
            return await anext(answer)
        finally:
            await answer.aclose()
    return await answer if inspect.isawaitable(answer) else answer


_TAKES: Final[dict[tuple[str, str], Fine]] = {
    ("hooks.list", "run_id"): lambda value: value is None,
    ("hooks.get", "run_id"): lambda value: value is None,
    ("runs.cancel_many", "run_ids"): is_text,
}
"""What a method takes, though others don't."""


async def refusal(method: Callable[..., Any], arguments: dict[str, Any], what: str) -> WorldError:
    try:
        answer = await call(method, arguments)
    except InvalidInputError as error:
        assert len(str(error)) <= LONGEST_TEXT, (what, len(str(error)))
        # A chain of causes is shown with it.
        assert error.__cause__ is None, what
        return error
    except BaseException as error:
        raise AssertionError(f"{what} raises {error!r}") from error
    raise AssertionError(f"{what} is taken: {answer!r:.200}")


async def test_every_parameter_of_every_method(world: RedisWorld, backend: Backend) -> None:
    calls = await stage(world)
    methods = public_methods(world)
    before = backend.dump()
    for name, method in methods.items():
        for parameter, signature in inspect.signature(method).parameters.items():
            if parameter in IGNORED:
                continue
            for kind, value in wrong(parameter, signature).items():
                if (name, parameter) in _TAKES and _TAKES[name, parameter](value):
                    continue
                what = f"{name}({parameter}={kind})"
                error = await refusal(method, {**calls[name], parameter: value}, what)
                if parameter in ("cursor", "since_cursor"):
                    assert isinstance(error, InvalidCursorError), (what, error)
                assert _names(parameter, str(error)), (what, error)
        assert backend.dump() == before, name


def _names(parameter: str, text: str) -> bool:
    singular = {"chunks": "chunk", "run_ids": "run", "queue_name": "queue name"}
    return any(each in text for each in (parameter, singular.get(parameter, parameter)))


# -- what is within ------------------------------------------------------------------------

EVENTS: Final = (
    run_created(),
    event("run_started"),
    run_ended("completed"),
    run_ended("failed"),
    event("run_cancelled", cancelReason="r"),
    attr_set({"k": "v"}, "a"),
    step_created("new"),
    lazy_start("lazy"),
    step_completed("s"),
    step_failed("s"),
    step_retrying("s"),
    hook_created("h2", "t2"),
    hook_received("h"),
    hook_disposed("h"),
    wait_created("w2"),
    wait_completed("w"),
)


@pytest.mark.large
async def test_every_field_of_every_event(backend: Backend) -> None:
    """Each is refused as an event, or stored in a way that can be read back."""
    # It is judged in this process: on a real server a few are enough.
    for wire in EVENTS if backend.is_memory else EVENTS[::5]:
        async with backend.world(max_payload_bytes=LIMIT) as world:
            await every_field_of(wire, world, backend)
        # Dumps of what others have stored would take most of the time.
        assert not backend.clear()


async def every_field_of(wire: Wire, world: RedisWorld, backend: Backend) -> None:
    model = type(parse_event(wire))
    data_model: type[BaseModel] = next(
        each
        for each in model.model_fields["event_data"].annotation.__args__  # type: ignore[union-attr]
        if isinstance(each, type) and issubclass(each, BaseModel)
    )
    places = [
        ("correlationId",),
        ("specVersion",),
        ("eventType",),
        ("eventData",),
        *(("eventData", field.alias or "") for field in data_model.model_fields.values()),
        ("eventData", "unknown"),
    ]
    for place in places:
        for kind, value in values().items():
            changed = {**wire, place[0]: value}
            if len(place) > 1:
                changed = {**wire, "eventData": {**wire.get("eventData", {}), place[1]: value}}
            what = f"{wire['eventType']}.{'.'.join(place)} = {kind}"
            before = backend.dump() if kind == "a lone surrogate" else None
            run_id = None if wire["eventType"] == "run_created" else "wrun_none"
            try:
                result = await world.events.create(run_id, changed)
            except WorldError as error:
                assert len(str(error)) <= LONGEST_TEXT, what
                assert before is None or backend.dump() == before, what
            except BaseException as error:
                raise AssertionError(f"{what} raises {error!r}") from error
            else:
                assert result.run is not None
                page = await world.events.list(result.run.run_id)
                assert result.event is not None
                # As text: nan is not equal to itself.
                stored, answered = page.data[0].event_data, result.event.event_data
                assert repr(stored) == repr(answered), what


@pytest.mark.large
@pytest.mark.parametrize("kind", values())
async def test_what_a_message_is_made_of(kind: str, world: RedisWorld, backend: Backend) -> None:
    value = values()[kind]
    run_id = await new_run(world)
    await world.queue.send(NAME, {"a": 1})
    (message,) = await world.queue.claim(TOPIC)
    before = backend.dump()
    whole = Enqueue(NAME, {"runId": run_id})
    for field in fields(Enqueue):
        signature = inspect.signature(Enqueue).parameters[field.name]
        if kind not in wrong(field.name, signature):
            continue
        with pytest.raises(InvalidInputError, match=field.name.replace("_", "[_ ]")):
            await world.events.create(
                run_id, step_created(), enqueue=replace(whole, **{field.name: value})
            )
    for field in fields(FollowUp):
        signature = inspect.signature(FollowUp).parameters[field.name]
        if kind in wrong(field.name, signature):
            with pytest.raises(InvalidInputError, match=field.name):
                await world.queue.ack(
                    message, follow_up=replace(FollowUp(), **{field.name: value})
                )
    queue = world.queue
    ends = (queue.ack, queue.retry, queue.release, queue.postpone, queue.extend)
    for field in fields(Message):
        # Whatever else the message says, its lease is lost.
        changed = replace(message, **{field.name: value})
        for end in ends:
            try:
                await end(replace(changed, receipt="lost") if field.name != "receipt" else changed)
            except InvalidInputError as error:
                assert field.name in str(error), (field.name, error)
    for batched in (value, BatchEvent.model_construct(event=value)):
        if isinstance(batched, BatchEvent) or kind != "None":
            with pytest.raises(InvalidEventError):
                await world.events.create_batch(run_id, [batched])
    assert backend.dump() == before


# -- options -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", values())
def test_every_option_of_a_world(kind: str) -> None:
    value = values()[kind]
    for option in [*WorldConfig.model_fields, "unknown", "url", "client", "library"]:
        arguments = {"url": "memory://nasty", option: value}
        if option == "client":
            arguments["url"] = None
        try:
            world = RedisWorld(**arguments)
        except ConfigurationError as error:
            assert option.replace("url", "URL") in str(error), (option, error)
            assert len(str(error)) <= LONGEST_TEXT, option
        else:
            assert isinstance(world, RedisWorld)


@pytest.mark.parametrize("kind", values())
def test_every_option_of_a_worker(kind: str) -> None:
    async def handle(*_: Any, **__: Any) -> None:
        """Do nothing."""

    world = RedisWorld("memory://nasty")
    for option in inspect.signature(Worker).parameters:
        arguments = {"world": world, "handlers": {TOPIC: handle}, option: values()[kind]}
        try:
            Worker(**arguments)
        except (ConfigurationError, InvalidInputError) as error:
            assert option in str(error) or option == "handlers", (option, error)
            assert len(str(error)) <= LONGEST_TEXT, option


def test_all_events_are_here() -> None:
    kinds = {each["eventType"] for each in EVENTS}
    assert kinds == {each.model_fields["event_type"].default for each in CreateEvent.__args__}
