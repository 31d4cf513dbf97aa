"""The World's errors as the Python SDK's runtime expects them.

What that runtime does on an error depends on the call: on most it takes a conflict as "already
done" and goes on, which on a run that has ended would never stop. So "the run has ended" is
told apart here, call by call, and everything else keeps its kind.
"""

from __future__ import annotations

from typing import Final

from vercel.workflow._internal import world as w

from redis_world import errors

__all__ = ["ENDED_AS_CONFLICT", "ENDED_AS_EXPIRED", "conflict", "expired", "translate"]

ENDED_AS_EXPIRED: Final = frozenset(
    {"run_started", "hook_created", "hook_disposed", "hook_received", "attr_set"}
)
"""On an ended run these stop the replay by RunExpiredError; a conflict would repeat it."""

ENDED_AS_CONFLICT: Final = frozenset(
    {
        "step_created",
        "step_started",
        "step_completed",
        "step_failed",
        "step_retrying",
        "wait_created",
        "wait_completed",
        "run_completed",
        "run_failed",
    }
)
"""On an ended run these are acknowledged by EntityConflictError; anything else redelivers."""


def expired(error: errors.WorldError) -> w.RunExpiredError:
    """The run has ended: stop."""
    return w.RunExpiredError(str(error), status=410, code=errors.RunExpiredError.code)


def conflict(error: errors.WorldError) -> w.EntityConflictError:
    """Somebody else has done it, or it need not be done any more: go on."""
    return w.EntityConflictError(str(error))


def translate(error: errors.WorldError, *, token: str | None = None) -> Exception:
    """The SDK's error of the same kind.

    Args:
        error: the World's error.
        token: the token of a look-up by token.
    """
    match error:
        case errors.HookResumeConflictError():
            return w.HookResumeConflictError(str(error))
        case errors.EntityConflictError():
            return conflict(error)
        case errors.HookNotFoundError():
            if token is not None:
                found = w.HookNotFoundError(token=token)
                # Its own text quotes the token, which is a secret.
                found.args = ("Hook not found",)
                return found
            return w.HookNotFoundError(hook_id=error.entity_id)
        case errors.RunExpiredError():
            return expired(error)
        case errors.TooEarlyError():
            return w.TooEarlyError(str(error), retry_after=error.retry_after)
        case errors.ThrottleError():
            return w.ThrottleError(
                str(error), status=error.status, code=error.code, retry_after=error.retry_after
            )
        case _:
            return w.WorkflowWorldError(str(error), status=error.status, code=error.code)
