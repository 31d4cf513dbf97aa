"""The events of a wait. Each has its page below `lua/events`."""

from __future__ import annotations

from redis_world.codec import to_ms
from redis_world.events import scripts
from redis_world.events.plan import Plan, Reply, answer
from redis_world.events.request import Request
from redis_world.events.scripts import Row
from redis_world.models import EventResult, WaitCreatedData
from redis_world.rows import wait_from

__all__ = ["WaitCompleted", "WaitCreated"]


class _Changed(Plan):
    """What both have in common: they answer the wait."""

    def result(self, request: Request, reply: Reply) -> EventResult:
        _, slot, at, told, state = reply
        wait = wait_from(request.run_id, request.correlation_id, state)
        return answer(told, event=request.stored(slot, at, data=request.data), wait=wait)


class WaitCreated(_Changed):
    """Create a wait."""

    script = "events/wait_created"

    def row(self, request: Request) -> Row:
        run, data = request.run, request.data
        assert isinstance(data, WaitCreatedData)
        stored, _ = request.split()
        return scripts.wait_created(
            run=run.run,
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
            resume_at=str(to_ms(data.resume_at)),
            max_events=request.max_events,
        )


class WaitCompleted(_Changed):
    """Complete a wait."""

    script = "events/wait_completed"

    def row(self, request: Request) -> Row:
        run = request.run
        stored, _ = request.split()
        return scripts.wait_completed(
            run=run.run,
            events=run.events,
            payloads=run.payloads,
            ops=run.ops,
            wait_states=run.wait_states,
            base=request.keys.base,
            outbox=request.outbox,
            op=request.op,
            run_id=request.run_id,
            spec_version=request.version,
            occurred_at=request.occurred,
            correlation_id=request.correlation_id,
            data=stored,
        )
