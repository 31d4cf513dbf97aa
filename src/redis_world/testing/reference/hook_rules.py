"""What the events of a hook do (contract, section 5)."""

from __future__ import annotations

from redis_world.codec import encode_data
from redis_world.errors import (
    EntityConflictError,
    HookNotFoundError,
    HookResumeConflictError,
    RunExpiredError,
)
from redis_world.models import HookCreatedEvent
from redis_world.testing.reference.debts import restart_idle
from redis_world.testing.reference.state import Entity, Fields, StoredEvent
from redis_world.testing.reference.write import (
    Outcome,
    Write,
    refuse_at_ceiling,
    refuse_on_ended,
    the_run,
)

__all__ = ["hook_created", "hook_disposed", "hook_received"]


def hook_created(write: Write) -> Outcome:
    """Create a hook, or record that its token is another's; either of them happens once."""
    assert isinstance(write.event, HookCreatedEvent)
    data = write.event.event_data
    assert data is not None
    run = the_run(write)
    refuse_on_ended(write, run)
    if write.correlation_id in run.decided_hooks:
        raise EntityConflictError(
            f"hook {write.correlation_id!r} already exists or already had a hook_created"
        )
    refuse_at_ceiling(write, run)

    run.decided_hooks.add(write.correlation_id)
    for other in write.state.hooks():
        if other.fields["token"] == data.token:
            conflict = {"token": data.token, "conflictingRunId": other.fields["run_id"]}
            event = write.append(
                run,
                event_type="hook_conflict",
                data=encode_data(conflict, "the conflict"),
                payload=None,
            )
            return Outcome(event)

    event = write.append(run)
    fields: Fields = {
        "run_id": write.run_id,
        "hook_id": write.correlation_id,
        "token": data.token,
        "created_at": write.at,
        "spec_version": write.spec_version,
        "is_webhook": data.is_webhook is True,
        "is_system": data.is_system is True,
    }
    if data.token_retention_until is not None:
        fields["token_retention_until"] = data.token_retention_until
    if write.payload is not None:
        fields["metadata"] = write.payload
    run.hooks[write.correlation_id] = Entity(event.slot, fields)
    return Outcome(event, shows="hook")


def hook_received(write: Write) -> Outcome:
    """Record what was sent to a live hook.

    A resume that was recorded once is answered by its event whatever has happened since.
    """
    run = the_run(write)
    first = None if write.resume_id is None else run.resumes.get(write.resume_id)
    if first is not None:
        _refuse_another_resume(write, first)
        return Outcome(first, is_new=False)
    if write.correlation_id not in run.live_hooks(write.at):
        raise HookNotFoundError(write.correlation_id)
    if not run.is_live:
        raise RunExpiredError(f"run {write.run_id} is {run.fields['status']}")
    refuse_at_ceiling(write, run)
    event = write.append(run, resume_id=write.resume_id, payload_digest=write.payload_digest)
    if write.resume_id is not None:
        run.resumes[write.resume_id] = event
    return Outcome(event)


def hook_disposed(write: Write) -> Outcome:
    """Remove a hook, and free its token in the same instant."""
    run = the_run(write)
    if write.correlation_id not in run.live_hooks(write.at):
        if not run.is_live:
            raise RunExpiredError(f"run {write.run_id} is {run.fields['status']}")
        raise HookNotFoundError(write.correlation_id)
    del run.hooks[write.correlation_id]
    restart_idle(write.state, write.run_id)
    return Outcome(write.append(run))


def _refuse_another_resume(write: Write, first: StoredEvent) -> None:
    """A resume id stands for one hook and one payload; a missing digest matches any."""
    if first.correlation_id != write.correlation_id:
        raise HookResumeConflictError(
            f"resume id {write.resume_id!r} was already used for another hook"
        )
    digests = {write.payload_digest, first.payload_digest} - {None}
    if len(digests) > 1:
        raise HookResumeConflictError(
            f"resume id {write.resume_id!r} was already used for another payload"
        )
