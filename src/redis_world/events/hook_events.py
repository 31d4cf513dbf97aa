"""The events of a hook. Each has its page below `lua/events`."""

from __future__ import annotations

from redis_world.codec import from_ms, to_ms
from redis_world.events import scripts
from redis_world.events.plan import Plan, Reply, answer
from redis_world.events.request import Request
from redis_world.events.scripts import Row
from redis_world.events.validation import check_retention_limit
from redis_world.ids import event_id
from redis_world.keys import token_hash
from redis_world.models import (
    EventResult,
    HookConflictData,
    HookConflictEvent,
    HookCreatedData,
    HookCreatedEvent,
)
from redis_world.rows import event_from, hook_from, pairs

__all__ = ["HookCreated", "HookDisposed", "HookReceived"]


class HookCreated(Plan):
    """Create a hook and claim its token.

    With several partitions the words `phase` to `token_partition` are those of `tokens`.
    """

    script = "events/hook_created"
    accepted = (b"OK", b"TOKEN_TAKEN")

    def row(self, request: Request) -> Row:
        keys, run, event, data = request.keys, request.run, request.event, request.data
        assert isinstance(event, HookCreatedEvent)
        assert isinstance(data, HookCreatedData)
        now = from_ms(request.server_time())
        check_retention_limit(event, now, request.config.hook_retention_limit)
        stored, payload = request.split()
        until = data.token_retention_until
        return scripts.hook_created(
            run=run.run,
            events=run.events,
            payloads=run.payloads,
            claims=run.claims,
            hooks=run.hooks,
            hook=run.hook(request.correlation_id),
            hook_runs=keys.hook_runs(request.correlation_id),
            token=keys.token(data.token),
            all_hooks=keys.all_hooks,
            base=keys.base,
            outbox=request.outbox,
            op=request.op,
            run_id=request.run_id,
            spec_version=request.version,
            occurred_at=request.occurred,
            correlation_id=request.correlation_id,
            data=stored,
            payload=payload,
            token_text=data.token,
            token_hash=token_hash(data.token),
            is_webhook="1" if data.is_webhook else "0",
            is_system="1" if data.is_system else "0",
            retention_until="" if until is None else str(to_ms(until)),
            max_events=request.max_events,
            phase="",
            detail="",
            identity="",
            token_partition="",
        )

    def result(self, request: Request, reply: Reply) -> EventResult:
        status, slot, at, told, *found = reply
        if status == b"TOKEN_TAKEN":
            (owner,) = found
            return answer(told, event=_conflict(request, slot, at, owner))
        row, context = found
        hook = hook_from(
            row,
            context,
            request.config.environment,
            request.resolve_data,
            request.own_payload(slot),
        )
        return answer(told, event=request.stored(slot, at, data=request.data), hook=hook)


def _conflict(request: Request, slot: bytes, at: bytes, owner: bytes) -> HookConflictEvent:
    """The event that stands in the log in place of the one that was asked for."""
    data = request.data
    assert isinstance(data, HookCreatedData)
    event = HookConflictEvent(
        correlation_id=request.correlation_id,
        spec_version=request.spec_version,
        event_data=HookConflictData(token=data.token, conflicting_run_id=owner.decode()),
        run_id=request.run_id,
        event_id=event_id(slot),
        created_at=from_ms(int(at)),
    )
    if request.occurred_at is None:
        return event
    return event.changed({"occurred_at": request.occurred_at})


class HookReceived(Plan):
    """Record what was sent to a hook."""

    script = "events/hook_received"
    accepted = (b"OK", b"REPEATED")

    def row(self, request: Request) -> Row:
        run = request.run
        stored, payload = request.split()
        return scripts.hook_received(
            run=run.run,
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
            payload=payload,
            resume_id=request.resume_id or "",
            payload_digest=request.payload_digest or "",
            resolve_data=request.resolve_data,
            max_events=request.max_events,
        )

    def result(self, request: Request, reply: Reply) -> EventResult:
        status, slot, at, told, *found = reply
        if status == b"REPEATED":
            entry, payloads = found
            payload = payloads[1] if payloads else None
            run_id, resolve_data = request.run_id, request.resolve_data
            return answer(
                told, event=event_from(run_id, slot, pairs(entry), payload, resolve_data)
            )
        return answer(
            told, event=request.stored(slot, at, data=request.data, resume_id=request.resume_id)
        )

    def payloads(self, reply: Reply) -> list[bytes]:
        """Those of an event that is answered again."""
        status, _, _, _, *found = reply
        return found[1] if status == b"REPEATED" else []


class HookDisposed(Plan):
    """Remove a hook and free its token."""

    script = "events/hook_disposed"

    def row(self, request: Request) -> Row:
        run = request.run
        stored, _ = request.split()
        return scripts.hook_disposed(
            run=run.run,
            events=run.events,
            payloads=run.payloads,
            claims=run.claims,
            base=request.keys.base,
            outbox=request.outbox,
            op=request.op,
            run_id=request.run_id,
            spec_version=request.version,
            occurred_at=request.occurred,
            correlation_id=request.correlation_id,
            data=stored,
        )

    def result(self, request: Request, reply: Reply) -> EventResult:
        _, slot, at, told = reply
        return answer(told, event=request.stored(slot, at, data=request.data))
