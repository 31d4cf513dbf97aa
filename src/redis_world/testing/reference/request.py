"""What can be judged of a request without any state, and what is stored of it."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import TypeAdapter, ValidationError

from redis_world.codec import encode_data, encode_payload
from redis_world.errors import InvalidEventError
from redis_world.events.validation import check_retention_limit, creates_run
from redis_world.ids import run_id_time
from redis_world.models import (
    CreateEvent,
    HookCreatedEvent,
    RunCreatedEvent,
    RunStartedEvent,
    Timestamp,
)
from redis_world.testing.reference.state import State
from redis_world.testing.reference.write import Write
from redis_world.text import utf8

__all__ = ["check_text", "prepare"]

_TIMESTAMP: Final[TypeAdapter[datetime]] = TypeAdapter(Timestamp)


def check_text(*values: str | None) -> None:
    """Check what names something.

    Raises:
        InvalidInputError: one is no text, or has lone surrogates, which UTF-8 does not carry.
    """
    for value in values:
        if value is not None:
            utf8(value)


def prepare(
    state: State,
    run_id: str | None,
    event: CreateEvent,
    *,
    resume_id: str | None,
    payload_digest: str | None,
    request_id: str | None,
    occurred_at: datetime | None,
) -> Write:
    """Check the rest of a request, and encode what is stored.

    Raises:
        InvalidInputError: it is not valid, whatever the state.
    """
    made_id = not run_id and isinstance(event, RunCreatedEvent)
    if made_id:
        run_id = state.ids.run_id(state.now_ms())
    if not run_id:
        raise InvalidEventError(f"{event.event_type} needs a run id")
    if isinstance(event, RunCreatedEvent) or (
        isinstance(event, RunStartedEvent) and creates_run(event)
    ):
        run_id_time(run_id)
    if isinstance(event, HookCreatedEvent):
        check_retention_limit(event, state.now(), state.config.hook_retention_limit)
    if occurred_at is not None:
        try:
            occurred_at = _TIMESTAMP.validate_python(occurred_at)
        except ValidationError as error:
            raise InvalidEventError(f"occurred_at: {error.errors()[0]['msg']}") from None
    check_text(run_id, event.correlation_id, resume_id, payload_digest, request_id)
    is_resume = event.event_type == "hook_received"
    data, payload = _encode(event, state.config.max_payload_bytes)
    return Write(
        state=state,
        run_id=run_id,
        event=event,
        at=state.now(),
        data=data,
        payload=payload,
        occurred_at=occurred_at,
        resume_id=(resume_id or None) if is_resume else None,
        payload_digest=(payload_digest or None) if is_resume else None,
        made_id=made_id,
    )


def _encode(event: CreateEvent, limit: int) -> tuple[bytes | None, bytes | None]:
    """The event data as it is stored, and the payload apart from it."""
    data = event.event_data
    if data is None:
        return None, None
    wire, payload = data.to_wire(), None
    name = data.payload_field
    if name is not None and name in wire:
        payload = encode_payload(wire.pop(name), limit, f"{name} of {event.event_type}")
    rest = encode_data(wire, f"eventData of {event.event_type}", max(limit, 256))
    return rest, payload
