"""Payloads are opaque bytes, numbers are exact, names are any text (contract, section 3)."""

# Contract: 3.payloads

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidEventError, InvalidInputError, WorldError
from redis_world.models import EventResult
from support.backends import Backend
from support.events import (
    ALL_BYTES,
    CREATION,
    Wire,
    attr_set,
    data_of,
    event,
    hook_created,
    hook_received,
    lazy_start,
    log,
    new_run,
    new_run_id,
    resilient_start,
    run_created,
    run_ended,
    step_completed,
    step_created,
    step_started,
    wait_created,
    write,
)
from support.private_servers import ONE

ABSENT: Final = object()
"""The field is not there at all."""

VALUES: Final[tuple[Any, ...]] = (
    ABSENT,
    None,
    "",
    b"",
    ALL_BYTES,
    "\x00",
    b"\x00",
    b"\x01",
    0,
    [],
)


@dataclass(frozen=True)
class Field:
    """One payload field: its event, what precedes it, and where it shows."""

    kind: str
    name: str
    """On the event."""
    entity: str = ""
    """`run`, `step` or `hook`, where it shows on one."""
    as_name: str = ""
    before: tuple[Wire, ...] = ()
    data: Wire | None = None


STARTED: Final = (step_created("x"), step_started("x"))

FIELDS: Final = (
    Field("run_completed", "output", "run", "output"),
    Field("run_failed", "error", "run", "error"),
    Field("step_created", "input", "step", "input", data={"stepName": "s"}),
    Field("step_completed", "result", "step", "output", before=STARTED),
    Field("step_failed", "error", "step", "error", before=STARTED),
    Field("step_retrying", "error", "step", "error", before=STARTED),
    Field("hook_created", "metadata", "hook", "metadata", data={"token": "t"}),
    Field("hook_received", "payload", before=(hook_created("x", "t"),)),
)


def same(left: Any, right: Any) -> bool:
    """Equal, and of one type: b"" and bytearray, 0 and False are not the same."""
    return type(left) is type(right) and bool(left == right)


def shows(wire: Wire, name: str, value: Any) -> bool:
    if value is ABSENT:
        return name not in wire
    return name in wire and same(wire[name], value)


@pytest.mark.large
@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.kind}.{field.name}")
async def test_absent_none_text_and_bytes_stay_apart(field: Field, world: RedisWorld) -> None:
    for value in VALUES:
        run_id = await new_run(world)
        if field.before:
            await write(world, run_id, *field.before)
        data = dict(field.data or {})
        if value is not ABSENT:
            data[field.name] = value
        correlation_id = None if field.kind.startswith("run") else "x"
        wire = {**event(field.kind, correlation_id), "eventData": data}
        result = await world.events.create(run_id, wire)
        assert shows(data_of(result.event), field.name, value), value
        assert shows(data_of((await log(world, run_id))[-1]), field.name, value), value
        if field.entity:
            answered = getattr(result, field.entity).to_wire()
            assert shows(answered, field.as_name, value), value
            assert shows(await entity_of(world, field.entity, run_id), field.as_name, value), value
        if field.kind.startswith("hook"):
            await write(world, run_id, run_ended("completed"))


async def entity_of(world: RedisWorld, kind: str, run_id: str) -> Wire:
    reads: dict[str, Callable[[], Awaitable[Any]]] = {
        "run": lambda: world.runs.get(run_id),
        "step": lambda: world.steps.get(run_id, "x"),
        "hook": lambda: world.hooks.get("x", run_id=run_id),
    }
    found: Wire = (await reads[kind]()).to_wire()
    return found


async def test_the_input_of_a_run_stays_as_it_is(world: RedisWorld) -> None:
    for value in VALUES:
        data = dict(CREATION)
        del data["input"]
        if value is not ABSENT:
            data["input"] = value
        run_id = new_run_id()
        made = await world.events.create(run_id, event("run_created", **data))
        assert made.run is not None
        assert shows(made.run.to_wire(), "input", value), value
        started = await world.events.create(run_id, event("run_started"))
        assert started.run is not None
        assert shows(started.run.to_wire(), "input", value), value
        assert shows((await world.runs.get(run_id)).to_wire(), "input", value), value
        assert shows(data_of((await log(world, run_id))[0]), "input", value), value
        if value is not ABSENT:
            run_id = new_run_id()
            made = await world.events.create(run_id, resilient_start(input=value))
            assert made.run is not None
            assert shows(made.run.to_wire(), "input", value), value
            assert shows(data_of((await log(world, run_id))[0]), "input", value), value
            await write(world, run_id, lazy_start("lazy", input=value))
            step = await world.steps.get(run_id, "lazy")
            assert shows(step.to_wire(), "input", value), value
            created, begun = (await log(world, run_id))[-2:]
            assert shows(data_of(created), "input", value), value
            assert "input" not in data_of(begun)


async def test_payloads_that_are_bytes_by_another_name(world: RedisWorld) -> None:
    run_id = await new_run(world)
    for number, value in enumerate((bytearray(ALL_BYTES), memoryview(ALL_BYTES))):
        step_id = f"s{number}"
        await write(world, run_id, step_created(step_id, input=value))
        assert same((await world.steps.get(run_id, step_id)).input, ALL_BYTES)


@pytest.mark.parametrize("kind", ["memory", ONE])
async def test_ten_megabytes(kind: str, request: pytest.FixtureRequest) -> None:
    backend = request.getfixturevalue("servers").backend(kind)
    blob = bytes(range(256)) * (10 * 1024 * 1024 // 256)
    digest = hashlib.sha256(blob).digest()
    async with backend.world() as world:
        run_id = await new_run(world, input=blob)
        await write(world, run_id, step_created(), step_started(), step_completed(result=blob))
        run = await world.runs.get(run_id)
        step = await world.steps.get(run_id, "step_1")
        last = (await log(world, run_id))[-1]
        for found in (run.input, step.output, data_of(last)["result"]):
            assert hashlib.sha256(found).digest() == digest
        await world.queue.send("__wkf_workflow_w", {"blob": blob})
        (message,) = await world.queue.claim("__wkf_workflow_")
        assert message.payload == {"blob": blob}
        assert await world.queue.ack(message)
    assert not backend.clear()


# -- numbers and structures ----------------------------------------------------------------

STRUCTURE: Final[Wire] = {
    "2^53+1": 2**53 + 1,
    "2^63": 2**63,
    "2^64": 2**64,
    "-2^70": -(2**70),
    "zero": 0,
    "float": 0.1,
    "whole float": 1.0,
    "tiny": 5e-324,
    "true": True,
    "none": None,
    "empty": [[], {}, "", b""],
    "bytes": ALL_BYTES,
    "text": "\x00\u00e9\U0001f600\u2028",
    "nested": {"a": [{"b": [1, [2, [3]]]}]},
    "order": ["b", "a", "c", "a"],
    "time": datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "key with \x00 and \u00e9": 1,
}


def exact(left: Any, right: Any) -> bool:
    """Equal all the way down, in type too."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(exact(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(exact, left, right))
    return bool(left == right)


# Contract: 3.event data
async def test_structured_data_is_exact(world: RedisWorld) -> None:
    run_id = await new_run(world, executionContext=STRUCTURE, input=STRUCTURE)
    run = await world.runs.get(run_id)
    assert exact(run.execution_context, STRUCTURE)
    assert exact(run.input, STRUCTURE)
    first = data_of((await log(world, run_id))[0])
    assert exact(first["executionContext"], STRUCTURE)
    await write(world, run_id, step_created("s", unknown=STRUCTURE, attempt=2**53 + 1))
    made = data_of((await log(world, run_id))[-1])
    assert exact(made["unknown"], STRUCTURE)
    assert exact(made["attempt"], 2**53 + 1)


# Contract: 7.sending
async def test_messages_are_exact(world: RedisWorld) -> None:
    await world.queue.send("__wkf_workflow_w", STRUCTURE, headers={"h\x00\u00e9": "v:{}*\n"})
    (message,) = await world.queue.claim("__wkf_workflow_")
    assert exact(message.payload, STRUCTURE)
    assert message.headers == {"h\x00\u00e9": "v:{}*\n"}


# Contract: 3.dates
async def test_dates_have_milliseconds_in_utc(world: RedisWorld) -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2)))
    stored = datetime(2030, 1, 2, 1, 4, 5, 678000, tzinfo=UTC)
    run_id = await new_run(world)
    result = await world.events.create(run_id, wait_created("w", moment), occurred_at=moment)
    assert result.wait is not None
    assert result.event is not None
    wait = await world.waits.get(run_id, "w")
    last = (await log(world, run_id))[-1]
    found = (
        result.wait.resume_at,
        result.event.occurred_at,
        wait.resume_at,
        last.occurred_at,
        data_of(last)["resumeAt"],
    )
    for date in found:
        assert date == stored
        assert date.utcoffset() == timedelta(0)
        assert date.microsecond == stored.microsecond
    for date in (last.created_at, wait.created_at, (await world.runs.get(run_id)).created_at):
        assert date is not None
        assert date.utcoffset() == timedelta(0)
        assert date.microsecond % 1000 == 0


# -- names ---------------------------------------------------------------------------------

NAMES: Final = (
    ":",
    "a:b",
    "a%3Ab",
    "{tag}",
    "}{",
    "*",
    "?[a-z]",
    "a b",
    " ",
    "\t\r\n",
    "line\nline",
    "\x00",
    "a\x00b",
    "a",
    "A",
    "a/b",
    "../a",
    "%",
    "%%s",
    "'\"\\",
    "é",
    "e\u0301",
    "\U0001f600\u2028",
    "0",
    "-1",
    "steps",
    "events:payloads",
    "None",
    "x" * 4096,
    "é" * 2048,
)
"""Any two of them stay apart, whatever a key, a pattern or a command makes of them."""


# Contract: 3.step
async def test_any_text_names_a_step(world: RedisWorld) -> None:
    run_id = await new_run(world)
    for name in NAMES:
        await write(world, run_id, step_created(name, stepName=name, input=name))
    steps = (await world.steps.list(run_id)).data
    assert [(step.step_id, step.step_name, step.input) for step in steps] == [
        (name, name, name) for name in NAMES
    ]
    for name in NAMES:
        await write(world, run_id, step_started(name), step_completed(name, result=name))
        step = await world.steps.get(run_id, name)
        assert (step.step_id, step.output, step.attempt) == (name, name, 1)
        found = await world.events.list_by_correlation_id(run_id, name)
        assert len(found.data) == 3


# Contract: 3.hook
async def test_any_text_names_a_hook_and_its_token(world: RedisWorld) -> None:
    run_id = await new_run(world)
    for name in NAMES:
        result = await world.events.create(run_id, hook_created(name, name, metadata=name))
        assert result.hook is not None, name
    listed = (await world.hooks.list(run_id)).data
    assert [(hook.hook_id, hook.token) for hook in listed] == [(name, name) for name in NAMES]
    everywhere = (await world.hooks.list()).data
    assert {hook.hook_id for hook in everywhere} == set(NAMES)
    for name in NAMES:
        assert (await world.hooks.get(name)).metadata == name
        assert (await world.hooks.get_by_token(name)).hook_id == name
        received = await world.events.create(run_id, hook_received(name), resume_id=name)
        assert received.event is not None
        assert received.event.resume_id == name
        again = await world.events.create(run_id, hook_received(name), resume_id=name)
        assert again.event == received.event
    first = await world.hooks.list(limit=1, sort_order="asc")
    rest = await world.hooks.list(limit=1000, sort_order="asc", cursor=first.cursor)
    assert len(rest.data) == len(NAMES) - 1
    other = await new_run(world)
    conflict = await world.events.create(other, hook_created("h", NAMES[0]))
    assert data_of(conflict.event) == {"token": NAMES[0], "conflictingRunId": run_id}
    await write(world, run_id, run_ended("completed"))
    assert (await world.hooks.list()).data == []
    for number, name in enumerate(NAMES):
        freed = await world.events.create(other, hook_created(f"h{number}", name))
        assert freed.hook is not None, name


# Contract: 3.wait
async def test_any_text_names_a_wait(world: RedisWorld) -> None:
    run_id = await new_run(world)
    moment = datetime(2040, 1, 1, tzinfo=UTC)
    for number, name in enumerate(NAMES):
        await write(world, run_id, wait_created(name, moment + timedelta(seconds=number)))
    waits = (await world.waits.list(run_id)).data
    assert [wait.wait_id for wait in waits] == [f"{run_id}-{name}" for name in NAMES]
    for number, name in enumerate(NAMES):
        wait = await world.waits.get(run_id, name)
        assert wait.resume_at == moment + timedelta(seconds=number)


# Contract: 3.run
async def test_any_text_names_a_workflow(world: RedisWorld) -> None:
    names = (*NAMES, "")
    ids = {}
    for name in names:
        ids[name] = await new_run(
            world, "pending", workflowName=name, deploymentId=name, encryptionPublicKey=name
        )
    for name in names:
        for filters in ({}, {"status": "pending"}, {"status": ["pending", "failed"]}):
            page = await world.runs.list(workflow_name=name, **filters)
            assert [run.run_id for run in page.data] == [ids[name]], name
        run = await world.runs.get(ids[name])
        assert (run.workflow_name, run.deployment_id) == (name, name)
    assert (await world.runs.get(ids["\x00"])).encryption_public_key == "\x00"


# Contract: 5.attributes
async def test_any_text_is_an_attribute(world: RedisWorld) -> None:
    names = [name for name in NAMES if len(name) <= 256]
    run_id = await new_run(world, attributes={name: name for name in names[:10]})
    await write(world, run_id, attr_set({name: name for name in names[10:]}, "attr_1"))
    assert (await world.runs.get(run_id)).attributes == {name: name for name in names}
    await write(world, run_id, attr_set(dict.fromkeys(names), "attr_2"))
    assert (await world.runs.get(run_id)).attributes == {}


# Contract: 8.listing
async def test_any_text_names_a_stream(world: RedisWorld) -> None:
    run_id = await new_run(world)
    for name in NAMES:
        await world.streams.write(run_id, name, name.encode())
        await world.streams.close(run_id, name)
    assert sorted(await world.streams.list(run_id)) == sorted(NAMES)
    for name in NAMES:
        assert [chunk async for chunk in world.streams.read(run_id, name)] == [name.encode()]


# Contract: 7.idempotency keys
async def test_any_text_is_an_idempotency_key(world: RedisWorld) -> None:
    """Of one run, and of runs whose ids are any text too."""
    runs = [await new_run(world), "no:run", "no%3Arun", "\x00{}*"]
    sent = {}
    for run_id in runs:
        for key in NAMES:
            payload = {"runId": run_id, "key": key}
            sent[run_id, key] = await world.queue.send(
                "__wkf_workflow_w", payload, idempotency_key=key
            )
            again = await world.queue.send("__wkf_workflow_w", payload, idempotency_key=key)
            assert again == sent[run_id, key]
    assert len(set(sent.values())) == len(runs) * len(NAMES)


# Contract: 7.sending
async def test_any_text_names_a_queue(world: RedisWorld) -> None:
    for name in NAMES:
        queue_name = f"__wkf_workflow_{name}"
        await world.queue.send(queue_name, {"n": name}, deployment_id=name)
    messages = await world.queue.claim("__wkf_workflow_", limit=100)
    found = [(m.queue_name, m.payload["n"], m.deployment_id) for m in messages]
    assert sorted(found) == sorted((f"__wkf_workflow_{name}", name, name) for name in NAMES)
    assert all([await world.queue.ack(message) for message in messages])


# -- what is refused -----------------------------------------------------------------------

LONE: Final = "a\ud800b"


def lone_surrogate_calls(world: RedisWorld, run_id: str) -> dict[str, Awaitable[Any]]:
    def make(wire: Wire, **params: Any) -> Awaitable[EventResult]:
        return world.events.create(run_id, wire, **params)

    queue, streams = world.queue, world.streams
    return {
        "run id": world.runs.get(LONE),
        "workflow name": world.events.create(None, run_created(workflowName=LONE)),
        "deployment id": world.events.create(None, run_created(deploymentId=LONE)),
        "public key": world.events.create(None, run_created(encryptionPublicKey=LONE)),
        "run attribute key": world.events.create(None, run_created(attributes={LONE: "v"})),
        "run attribute value": world.events.create(None, run_created(attributes={"k": LONE})),
        "context": world.events.create(None, run_created(executionContext={"k": LONE})),
        "context key": world.events.create(None, run_created(executionContext={LONE: 1})),
        "input": world.events.create(None, run_created(input=LONE)),
        "step id": make(step_created(LONE)),
        "step name": make(step_created("s", stepName=LONE)),
        "payload": make(step_created("s", input={"deep": [LONE]})),
        "unknown key": make(step_created("s", **{LONE: 1})),
        "unknown value": make(step_created("s", unknown=LONE)),
        "bare start": make(step_started(LONE)),
        "hook id": make(hook_created(LONE, "t")),
        "token": make(hook_created("h", LONE)),
        "resume id": make(hook_received("hook_1"), resume_id=LONE),
        "digest": make(hook_received("hook_1"), resume_id="r", payload_digest=LONE),
        "request id": make(step_created("s"), request_id=LONE),
        "wait id": make(wait_created(LONE)),
        "attribute": make(attr_set({LONE: "v"}, "attr_1")),
        "attribute value": make(attr_set({"k": LONE}, "attr_1")),
        "attribute id": make(attr_set({"k": "v"}, LONE)),
        "error code": make(event("run_failed", error=b"", errorCode=LONE)),
        "cancel reason": make(event("run_cancelled", cancelReason=LONE)),
        "read of a step": world.steps.get(run_id, LONE),
        "read of a hook": world.hooks.get(LONE),
        "read of a token": world.hooks.get_by_token(LONE),
        "read of a wait": world.waits.get(run_id, LONE),
        "filter": world.runs.list(workflow_name=LONE),
        "stream name": streams.write(run_id, LONE, b""),
        "queue name": queue.send(f"__wkf_workflow_{LONE}", {"runId": run_id}),
        "message": queue.send("__wkf_workflow_w", {"runId": LONE}),
        "key": queue.send("__wkf_workflow_w", {}, idempotency_key=LONE),
        "header": queue.send("__wkf_workflow_w", {}, headers={"h": LONE}),
        "deployment": queue.send("__wkf_workflow_w", {}, deployment_id=LONE),
    }


# Contract: 4.bad input
async def test_lone_surrogates_are_refused_alone(world: RedisWorld, backend: Backend) -> None:
    """UTF-8 does not carry them. The error is the caller's, not that of the others of its tick."""
    run_id = await new_run(world)
    await write(world, run_id, hook_created())
    before = backend.dump()
    bad = lone_surrogate_calls(world, run_id)
    good = [world.runs.get(run_id) for _ in bad]
    both = [call for pair in zip(bad.values(), good, strict=True) for call in pair]
    answers = await asyncio.gather(*both, return_exceptions=True)
    for name, refused, run in zip(bad, answers[::2], answers[1::2], strict=True):
        assert isinstance(refused, WorldError), (name, refused)
        assert isinstance(refused, InvalidInputError), (name, refused)
        assert not isinstance(run, BaseException), (name, run)
    assert backend.dump() == before


# Contract: 4.bad input
async def test_what_has_no_encoding_is_refused(world: RedisWorld, backend: Backend) -> None:
    run_id = await new_run(world)
    before = backend.dump()
    loop: list[Any] = []
    loop.append(loop)
    for value in (object(), {1: object()}, datetime(2030, 1, 1), loop, lambda: None):
        with pytest.raises(InvalidEventError):
            await world.events.create(run_id, step_created("s", input=value))
        with pytest.raises(InvalidEventError):
            await world.events.create(run_id, step_created("s", unknown=value))
        with pytest.raises(InvalidInputError):
            await world.queue.send("__wkf_workflow_w", {"value": value})
    assert backend.dump() == before


# Contract: 4.bad input
async def test_what_could_not_be_read_back_is_refused(world: RedisWorld, backend: Backend) -> None:
    """A structure of more levels than the decoder takes would spoil its log, or its topic."""
    run_id = await new_run(world)
    before = backend.dump()
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    for wire in (step_created("s", input=deep), step_created("s", unknown=deep)):
        with pytest.raises(InvalidEventError):
            await world.events.create(run_id, wire)
    with pytest.raises(InvalidEventError):
        await world.events.create(None, run_created(executionContext={"deep": deep}))
    with pytest.raises(InvalidInputError):
        await world.queue.send("__wkf_workflow_w", {"deep": deep})
    assert backend.dump() == before


async def test_payloads_have_a_limit(backend: Backend) -> None:
    limit = 1000
    async with backend.world(max_payload_bytes=limit) as world:
        run_id = await new_run(world)
        await write(world, run_id, step_created("fits", input=bytes(limit)))
        assert (await world.steps.get(run_id, "fits")).input == bytes(limit)
        await write(world, run_id, hook_created("h", "t"))
        await world.streams.write(run_id, "out", bytes(limit))
        before = backend.dump()
        big = bytes(limit + 1)
        for wire in (
            step_created("s", input=big),
            step_created("s", input="x" * (limit + 1)),
            step_created("s", input=["x" * 100] * 11),
            lazy_start("s", input=big),
            step_completed("fits", result=big),
            hook_created("h2", "t2", metadata=big),
            hook_received("h", payload=big),
            event("run_completed", output=big),
            event("run_failed", error=big),
        ):
            with pytest.raises(InvalidEventError, match="1000"):
                await world.events.create(run_id, wire)
        with pytest.raises(InvalidEventError, match="1000"):
            await world.events.create(None, run_created(input=big))
        with pytest.raises(InvalidEventError, match="1000"):
            await world.events.create(new_run_id(), resilient_start(input=big))
        with pytest.raises(InvalidInputError, match="1000"):
            await world.streams.write(run_id, "out", big)
        with pytest.raises(InvalidInputError, match="1000"):
            await world.queue.send("__wkf_workflow_w", {"blob": big + bytes(64 * 1024)})
        assert backend.dump() == before
