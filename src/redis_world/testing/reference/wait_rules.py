"""What the events of a wait do (contract, section 5)."""

from __future__ import annotations

from redis_world.errors import EntityConflictError, WaitNotFoundError
from redis_world.models import WaitCreatedEvent
from redis_world.testing.reference.state import Entity
from redis_world.testing.reference.write import (
    Outcome,
    Write,
    refuse_at_ceiling,
    refuse_on_ended,
    the_run,
)

__all__ = ["wait_completed", "wait_created"]


def wait_created(write: Write) -> Outcome:
    """Create a wait. Who wakes the run when it is over is the queue's matter."""
    assert isinstance(write.event, WaitCreatedEvent)
    data = write.event.event_data
    assert data is not None
    run = the_run(write)
    refuse_on_ended(write, run)
    if write.correlation_id in run.waits:
        raise EntityConflictError(f"wait {write.correlation_id!r} already exists")
    refuse_at_ceiling(write, run)
    event = write.append(run)
    run.waits[write.correlation_id] = Entity(
        event.slot,
        {
            "wait_id": f"{write.run_id}-{write.correlation_id}",
            "run_id": write.run_id,
            "status": "waiting",
            "resume_at": data.resume_at,
            "created_at": write.at,
            "updated_at": write.at,
            "spec_version": write.spec_version,
        },
    )
    return Outcome(event, shows="wait")


def wait_completed(write: Write) -> Outcome:
    """Complete a wait; a run that has ended has none."""
    run = the_run(write)
    wait = run.waits.get(write.correlation_id)
    if wait is None:
        raise WaitNotFoundError(write.correlation_id)
    if wait.fields["status"] == "completed":
        raise EntityConflictError(f"wait {write.correlation_id!r} is already completed")
    wait.fields.update(status="completed", completed_at=write.at, updated_at=write.at)
    return Outcome(write.append(run), shows="wait")
