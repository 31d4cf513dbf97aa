"""The events of a run itself. Each has its page below `lua/events`."""

from __future__ import annotations

from redis_world.codec import encode_data
from redis_world.events import scripts
from redis_world.events.plan import Plan, Reply, answer
from redis_world.events.request import Request
from redis_world.events.scripts import Row
from redis_world.events.validation import MAX_ATTRIBUTES, creates_run
from redis_world.ids import run_id_time
from redis_world.models import (
    AttrSetData,
    EventResult,
    Run,
    RunCreatedData,
    RunFailedData,
    RunStartedData,
    RunStartedEvent,
)
from redis_world.rows import event_from, pairs, run_from
from redis_world.text import utf8

__all__ = [
    "AttrSet",
    "RunCancelled",
    "RunCompleted",
    "RunCreated",
    "RunFailed",
    "RunStarted",
]

_MAX_ATTRIBUTES = str(MAX_ATTRIBUTES)


class _Changed(Plan):
    """What the events of a run have in common: they answer it."""

    names_entity = False

    def result(self, request: Request, reply: Reply) -> EventResult:
        _, slot, at, told, row, _ = reply
        return answer(
            told,
            event=request.stored(slot, at, data=request.data),
            run=_run_of(request, slot, row),
            max_events=request.config.max_events_per_run,
        )

    def payloads(self, reply: Reply) -> list[bytes]:
        _, found, _ = reply[4]
        return found  # type: ignore[no-any-return]


def _run_of(request: Request, slot: bytes, row: Reply) -> Run:
    """The run behind the event in a slot."""
    return run_from(request.run_id, row, request.resolve_data, request.own_payload(slot))


class RunCreated(_Changed):
    """Create a run."""

    script = "events/run_created"
    goes_on = "keep"

    def row(self, request: Request) -> Row:
        run, data = request.run, request.data
        assert isinstance(data, RunCreatedData)
        id_time = run_id_time(request.run_id)
        stored, payload = request.split()
        return scripts.run_created(
            run=run.run,
            attributes=run.attributes,
            events=run.events,
            payloads=run.payloads,
            base=request.keys.base,
            outbox=request.outbox,
            op=request.op,
            run_id=request.run_id,
            id_time="" if request.made_id else str(id_time),
            spec_version=request.version,
            occurred_at=request.occurred,
            correlation_id=request.correlation_id,
            data=stored,
            payload=payload,
            deployment_id=data.deployment_id,
            workflow_name=data.workflow_name,
            execution_context=_context(data),
            encryption_public_key=_optional(data.encryption_public_key),
            resolve_data=request.resolve_data,
            attribute_pairs=_pairs(data),
        )


class RunStarted(_Changed):
    """Start a run, creating it first when it is missing and the event carries its data."""

    script = "events/run_started"
    accepted = (b"OK", b"RUNNING")
    goes_on = "keep"

    def row(self, request: Request) -> Row:
        run, event, given = request.run, request.event, request.data
        assert isinstance(event, RunStartedEvent)
        assert given is None or isinstance(given, RunStartedData)
        creates = creates_run(event)
        data = given if creates and given is not None else RunStartedData()
        if creates:
            run_id_time(request.run_id)
        stored, payload = request.split()
        return scripts.run_started(
            run=run.run,
            attributes=run.attributes,
            events=run.events,
            payloads=run.payloads,
            base=request.keys.base,
            outbox=request.outbox,
            op=request.op,
            run_id=request.run_id,
            spec_version=request.version,
            occurred_at=request.occurred,
            correlation_id=request.correlation_id,
            resolve_data=request.resolve_data,
            creates="1" if creates else "",
            data=stored,
            payload=payload,
            deployment_id=data.deployment_id or "",
            workflow_name=data.workflow_name or "",
            execution_context=_context(data),
            encryption_public_key=_optional(data.encryption_public_key),
            attribute_pairs=_pairs(data),
        )

    def result(self, request: Request, reply: Reply) -> EventResult:
        status, slot, at, told, row, rest = reply
        max_events = request.config.max_events_per_run
        if status == b"RUNNING":
            run = run_from(request.run_id, row, request.resolve_data)
            event = event_from(request.run_id, slot, pairs(rest), None, request.resolve_data)
            return answer(told, event=event, run=run, max_events=max_events)
        # What creates a run belongs to the run_created event.
        event = request.stored(slot, at, data=None)
        return answer(told, event=event, run=_run_of(request, slot, row), max_events=max_events)


def _context(data: RunCreatedData | RunStartedData) -> bytes:
    context = data.execution_context
    return _optional(None if context is None else encode_data(context, "executionContext"))


def _pairs(data: RunCreatedData | RunStartedData) -> list[str]:
    """The attributes of a new run, key and value by turns."""
    return [part for pair in (data.attributes or {}).items() for part in pair]


def _optional(value: str | bytes | None) -> bytes:
    """A value that may be absent, as an argument: empty, or the value behind a `=`."""
    if value is None:
        return b""
    return b"=" + (utf8(value) if isinstance(value, str) else value)


class RunCompleted(_Changed):
    """End a run well."""

    script = "events/run_completed"
    goes_on = "log"

    def row(self, request: Request) -> Row:
        run = request.run
        stored, payload = request.split()
        return scripts.run_completed(
            run=run.run,
            attributes=run.attributes,
            events=run.events,
            payloads=run.payloads,
            ops=run.ops,
            waits=run.waits,
            wait_states=run.wait_states,
            base=request.keys.base,
            outbox=request.outbox,
            op=request.op,
            run_id=request.run_id,
            spec_version=request.version,
            occurred_at=request.occurred,
            correlation_id=request.correlation_id,
            data=stored,
            payload=payload,
            resolve_data=request.resolve_data,
        )


class RunFailed(_Changed):
    """End a run with an error."""

    script = "events/run_failed"
    goes_on = "log"

    def row(self, request: Request) -> Row:
        run, data = request.run, request.data
        assert isinstance(data, RunFailedData)
        stored, payload = request.split()
        return scripts.run_failed(
            run=run.run,
            attributes=run.attributes,
            events=run.events,
            payloads=run.payloads,
            ops=run.ops,
            waits=run.waits,
            wait_states=run.wait_states,
            base=request.keys.base,
            outbox=request.outbox,
            op=request.op,
            run_id=request.run_id,
            spec_version=request.version,
            occurred_at=request.occurred,
            correlation_id=request.correlation_id,
            data=stored,
            payload=payload,
            resolve_data=request.resolve_data,
            error_code=_optional(data.error_code),
        )


class RunCancelled(_Changed):
    """Cancel a run."""

    script = "events/run_cancelled"
    goes_on = "log"

    def row(self, request: Request) -> Row:
        run = request.run
        stored, payload = request.split()
        return scripts.run_cancelled(
            run=run.run,
            attributes=run.attributes,
            events=run.events,
            payloads=run.payloads,
            ops=run.ops,
            waits=run.waits,
            wait_states=run.wait_states,
            base=request.keys.base,
            outbox=request.outbox,
            op=request.op,
            run_id=request.run_id,
            spec_version=request.version,
            occurred_at=request.occurred,
            correlation_id=request.correlation_id,
            data=stored,
            payload=payload,
            resolve_data=request.resolve_data,
            once="",
        )


class AttrSet(_Changed):
    """Change the attributes of a run."""

    script = "events/attr_set"
    names_entity = True

    def row(self, request: Request) -> Row:
        run, data = request.run, request.data
        assert isinstance(data, AttrSetData)
        stored, _ = request.split()
        changes: list[str] = []
        for change in data.changes:
            kind = "remove" if change.value is None else "set"
            changes += [change.key, kind, change.value or ""]
        is_once = data.writer.type == "workflow" and request.correlation_id != ""
        return scripts.attr_set(
            run=run.run,
            attributes=run.attributes,
            events=run.events,
            payloads=run.payloads,
            claims=run.claims,
            ops=run.ops,
            base=request.keys.base,
            outbox=request.outbox,
            op=request.op,
            run_id=request.run_id,
            spec_version=request.version,
            occurred_at=request.occurred,
            correlation_id=request.correlation_id,
            data=stored,
            resolve_data=request.resolve_data,
            max_events=request.max_events,
            max_attributes=_MAX_ATTRIBUTES,
            claims_once="1" if is_once else "",
            change_triples=changes,
        )

    def result(self, request: Request, reply: Reply) -> EventResult:
        _, slot, at, told, row = reply
        return answer(
            told,
            event=request.stored(slot, at, data=request.data),
            run=_run_of(request, slot, row),
            max_events=request.config.max_events_per_run,
        )
