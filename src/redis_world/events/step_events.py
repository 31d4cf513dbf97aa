"""The events of a step. Each has its page below `lua/events`."""

from __future__ import annotations

from typing import Any, Final

from redis_world.codec import encode_data, from_ms, to_ms
from redis_world.events import scripts
from redis_world.events.plan import Plan, Reply, answer
from redis_world.events.request import Request, without_field
from redis_world.events.scripts import Row
from redis_world.models import (
    EventResult,
    Step,
    StepCreatedData,
    StepRetryingData,
    StepStartedData,
)
from redis_world.models.base import assemble, blank
from redis_world.rows import step_from

__all__ = ["StepCompleted", "StepCreated", "StepFailed", "StepRetrying", "StepStarted"]

_BLANK: Final = blank(Step)


class StepCreated(Plan):
    """Create a step."""

    script = "events/step_created"

    def row(self, request: Request) -> Row:
        run, data = request.run, request.data
        assert isinstance(data, StepCreatedData)
        stored, payload = request.split()
        return scripts.step_created(
            run=run.run,
            events=run.events,
            payloads=run.payloads,
            base=request.keys.base,
            outbox=request.outbox,
            op=request.op,
            run_id=request.run_id,
            spec_version=request.version,
            occurred_at=request.occurred,
            correlation_id=request.correlation_id,
            data=stored,
            payload=payload,
            step_name=data.step_name,
            max_events=request.max_events,
        )

    def result(self, request: Request, reply: Reply) -> EventResult:
        _, slot, at, told = reply
        data = request.data
        assert isinstance(data, StepCreatedData)
        # The reply has no row: all of a new step is known, but the time.
        created_at = from_ms(int(at))
        step: dict[str, Any] = {
            "run_id": request.run_id,
            "step_id": request.correlation_id,
            "step_name": data.step_name,
            "status": "pending",
            "attempt": 0,
            "created_at": created_at,
            "updated_at": created_at,
            "spec_version": request.spec_version,
        }
        if request.resolve_data == "all" and "input" in data.__pydantic_fields_set__:
            step["input"] = data.input
        return answer(
            told,
            event=request.stored(slot, at, data=request.data),
            step=assemble(Step, {**_BLANK, **step}, set(step)),
        )


class _Changed(Plan):
    """What the events of a step that is there have in common: they answer it."""

    def result(self, request: Request, reply: Reply) -> EventResult:
        _, slot, at, told, row = reply
        return answer(
            told,
            event=request.stored(slot, at, data=request.data),
            step=_step_of(request, slot, row),
        )

    def payloads(self, reply: Reply) -> list[bytes]:
        _, _, _, _, (_, found, _) = reply
        return found  # type: ignore[no-any-return]


def _step_of(request: Request, slot: bytes, row: Reply) -> Step:
    """The step behind the event in a slot."""
    run_id, step_id = request.run_id, request.correlation_id
    return step_from(run_id, step_id, row, request.resolve_data, request.own_payload(slot))


def _is_lazy(data: StepStartedData | None) -> bool:
    """Whether a step_started creates its step."""
    return (
        data is not None and data.step_name is not None and "input" in data.__pydantic_fields_set__
    )


class StepStarted(_Changed):
    """Start an attempt of a step; a lazy start creates the step first."""

    script = "events/step_started"

    def row(self, request: Request) -> Row:
        run, data = request.run, request.data
        assert data is None or isinstance(data, StepStartedData)
        is_lazy = _is_lazy(data)
        name = (data.step_name if data is not None else None) or ""
        stored, payload = request.split()
        return scripts.step_started(
            run=run.run,
            events=run.events,
            payloads=run.payloads,
            ops=run.ops,
            base=request.keys.base,
            outbox=request.outbox,
            op=request.op,
            run_id=request.run_id,
            spec_version=request.version,
            occurred_at=request.occurred,
            correlation_id=request.correlation_id,
            data=stored if not is_lazy or _rest_of(data) is not None else b"",
            resolve_data=request.resolve_data,
            max_events=request.max_events,
            creates="1" if is_lazy else "",
            created_data=encode_data({"stepName": name}, "stepName") if is_lazy else b"",
            payload=payload,
            step_name=name,
        )

    def result(self, request: Request, reply: Reply) -> EventResult:
        _, slot, at, told, row = reply
        data = request.data
        assert data is None or isinstance(data, StepStartedData)
        is_lazy = _is_lazy(data)
        return answer(
            told,
            event=request.stored(slot, at, data=_rest_of(data) if is_lazy else data),
            step=_step_of(request, slot, row),
            step_created=True if is_lazy else None,
        )


def _rest_of(data: StepStartedData | None) -> StepStartedData | None:
    """The data of a lazy start without the input, which belongs to the step_created."""
    return None if data is None else without_field(data, "input")


class StepCompleted(_Changed):
    """End a step with its result."""

    script = "events/step_completed"

    def row(self, request: Request) -> Row:
        run = request.run
        stored, payload = request.split()
        return scripts.step_completed(
            run=run.run,
            events=run.events,
            payloads=run.payloads,
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


class StepFailed(_Changed):
    """End a step with its error."""

    script = "events/step_failed"

    def row(self, request: Request) -> Row:
        run = request.run
        stored, payload = request.split()
        return scripts.step_failed(
            run=run.run,
            events=run.events,
            payloads=run.payloads,
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


class StepRetrying(_Changed):
    """Send a step back to pending."""

    script = "events/step_retrying"

    def row(self, request: Request) -> Row:
        run, data = request.run, request.data
        assert isinstance(data, StepRetryingData)
        stored, payload = request.split()
        return scripts.step_retrying(
            run=run.run,
            events=run.events,
            payloads=run.payloads,
            ops=run.ops,
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
            retry_after="" if data.retry_after is None else str(to_ms(data.retry_after)),
        )
