"""Wrappers of the scripts of a hook's events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_world.codec import from_ms, to_ms
from redis_world.events.request import Call, Request, result_of
from redis_world.events.validation import check_retention_limit
from redis_world.ids import event_id
from redis_world.keys import token_hash
from redis_world.models import (
    EventResult,
    HookConflictData,
    HookConflictEvent,
    HookCreatedEvent,
    HookReceivedEvent,
)
from redis_world.rows import event_from, hook_from, pairs

__all__ = ["hook_created", "hook_disposed", "hook_received"]


def _hook_keys(request: Request) -> dict[str, str]:
    run = request.run
    return {
        "run": run.run,
        "events": run.events,
        "payloads": run.payloads,
        "claims": run.claims,
    }


def hook_created(request: Request) -> Call:
    """Create a hook and claim its token."""
    assert isinstance(request.event, HookCreatedEvent)
    data = request.event.event_data
    assert data is not None
    check_retention_limit(
        request.event, from_ms(request.server_time), request.config.hook_retention_limit
    )
    keys, run, hook_id = request.keys, request.run, request.correlation_id
    stored, payload = request.split(data)
    until = data.token_retention_until

    def read(reply: Sequence[Any]) -> EventResult:
        slot, at = reply[1], reply[2]
        if reply[0] == b"TOKEN_TAKEN":
            conflict = HookConflictEvent(
                correlation_id=hook_id,
                spec_version=request.spec_version,
                event_data=HookConflictData(
                    token=data.token, conflicting_run_id=reply[4].decode()
                ),
                run_id=request.run_id,
                event_id=event_id(slot),
                created_at=from_ms(at),
            )
            if request.occurred_at is not None:
                conflict = conflict.model_copy(update={"occurred_at": request.occurred_at})
            return result_of(event=conflict)
        return result_of(
            event=request.stored_event(slot, at),
            hook=hook_from(
                reply[4],
                reply[5],
                request.config.environment,
                request.resolve_data,
                request.own_payload(slot),
            ),
        )

    return Call(
        script="events/hook_created",
        keys={
            **_hook_keys(request),
            "hooks": run.hooks,
            "hook": run.hook(hook_id),
            "hook_runs": keys.hook_runs(hook_id),
            "token": keys.token(data.token),
            "all_hooks": keys.all_hooks,
        },
        args={
            **request.common(),
            "run_id": request.run_id,
            "data": stored,
            "payload": payload,
            "token_text": data.token,
            "token_hash": token_hash(data.token),
            "is_webhook": "1" if data.is_webhook else "0",
            "is_system": "1" if data.is_system else "0",
            "retention_until": "" if until is None else str(to_ms(until)),
            "max_events": request.max_events,
            "phase": "",
            "detail": "",
            "identity": "",
            "token_partition": "",
        },
        read=read,
        accepted=(b"OK", b"TOKEN_TAKEN"),
        entity_id=hook_id,
    )


def hook_received(request: Request) -> Call:
    """Record what was sent to a hook."""
    assert isinstance(request.event, HookReceivedEvent)
    stored, payload = request.split(request.event.event_data)

    def read(reply: Sequence[Any]) -> EventResult:
        if reply[0] == b"REPEATED":
            return result_of(
                event=event_from(
                    request.run_id,
                    reply[1],
                    pairs(reply[4]),
                    reply[5][1] if reply[5] else None,
                    request.resolve_data,
                )
            )
        changes = {} if request.resume_id is None else {"resume_id": request.resume_id}
        return result_of(event=request.stored_event(reply[1], reply[2], **changes))

    return Call(
        script="events/hook_received",
        keys={**_hook_keys(request), "ops": request.run.ops},
        args={
            **request.common(),
            "run_id": request.run_id,
            "data": stored,
            "payload": payload,
            "resume_id": request.resume_id or "",
            "payload_digest": request.payload_digest or "",
            "resolve_data": request.resolve_data,
            "max_events": request.max_events,
        },
        read=read,
        accepted=(b"OK", b"REPEATED"),
        payloads=lambda reply: reply[5] if reply[0] == b"REPEATED" else [],
        entity_id=request.correlation_id,
    )


def hook_disposed(request: Request) -> Call:
    """Remove a hook and free its token."""
    stored, _ = request.split(request.event.event_data)
    return Call(
        script="events/hook_disposed",
        keys=_hook_keys(request),
        args={
            **request.common(),
            "run_id": request.run_id,
            "data": stored,
        },
        read=lambda reply: result_of(event=request.stored_event(reply[1], reply[2])),
        entity_id=request.correlation_id,
    )
