"""Wrappers of the scripts of a wait's events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_world.codec import to_ms
from redis_world.events.request import Call, Request, result_of
from redis_world.models import EventResult, WaitCreatedEvent
from redis_world.rows import wait_from

__all__ = ["wait_completed", "wait_created"]


def _wait_result(request: Request, reply: Sequence[Any]) -> EventResult:
    return result_of(
        event=request.stored_event(reply[1], reply[2]),
        wait=wait_from(request.run_id, request.correlation_id, reply[4]),
    )


def _wait_call(request: Request, keys: dict[str, str], args: dict[str, Any]) -> Call:
    run = request.run
    stored, _ = request.split(request.event.event_data)
    return Call(
        script=f"events/{request.event.event_type}",
        keys={
            "run": run.run,
            "events": run.events,
            "payloads": run.payloads,
            "ops": run.ops,
            "wait_states": run.wait_states,
            **keys,
        },
        args={**request.common(), "run_id": request.run_id, "data": stored, **args},
        read=lambda reply: _wait_result(request, reply),
        entity_id=request.correlation_id,
    )


def wait_created(request: Request) -> Call:
    """Create a wait."""
    assert isinstance(request.event, WaitCreatedEvent)
    data = request.event.event_data
    assert data is not None
    return _wait_call(
        request,
        {"waits": request.run.waits},
        {"resume_at": str(to_ms(data.resume_at)), "max_events": request.max_events},
    )


def wait_completed(request: Request) -> Call:
    """Complete a wait."""
    return _wait_call(request, {}, {})
