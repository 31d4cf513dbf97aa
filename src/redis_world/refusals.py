"""What the scripts refuse, as errors (contract, section 4): a table of their statuses.

A script that refuses answers a status and at most one detail. Its header tells which statuses it
has, behind `Returns:`; what an event's script says besides is that it was accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from redis_world.errors import (
    AttributeValidationError,
    EntityConflictError,
    HookNotFoundError,
    HookResumeConflictError,
    InvalidEventError,
    RunExpiredError,
    RunNotFoundError,
    RunNotSupportedError,
    ScriptError,
    StepNotFoundError,
    TooEarlyError,
    WaitNotFoundError,
    WorldError,
    shown_id,
)
from redis_world.values import shown

__all__ = [
    "MAX_ATTRIBUTES",
    "MIN_SPEC_VERSION",
    "REFUSALS",
    "SPEC_VERSION",
    "not_supported",
    "raise_refusal",
    "refusal",
]

SPEC_VERSION: Final = 7
"""Newest spec version that this World reads, and the one of events that name none."""
MIN_SPEC_VERSION: Final = 2
"""Older runs were legacy ones, without an event log."""
MAX_ATTRIBUTES: Final = 64
"""Of a run, after a write of attributes."""


def raise_refusal(reply: Sequence[Any], *, run_id: str = "", entity_id: str = "") -> NoReturn:
    """Raise the error that a script's refusal stands for."""
    raise refusal(reply, run_id=run_id, entity_id=entity_id)


def refusal(reply: Sequence[Any], *, run_id: str = "", entity_id: str = "") -> WorldError:
    """The error that a script's refusal stands for.

    Args:
        reply: a status that is a refusal, and its detail.
        run_id: the run that was asked for.
        entity_id: the step, hook or wait that was; empty for none.
    """
    status = reply[0].decode()
    detail = reply[1].decode() if len(reply) > 1 and isinstance(reply[1], bytes) else ""
    refused = _Refused(status, detail, run_id, entity_id)
    return REFUSALS.get(status, _unexpected)(refused)


class _Refused(NamedTuple):
    """A refusal, and whom it concerns."""

    status: str
    detail: str
    run_id: str
    entity_id: str

    @property
    def run(self) -> str:
        """The run, as a text shows it."""
        return f"run {shown_id(self.run_id)}"

    @property
    def what(self) -> str:
        """The step, hook or wait, or else the run."""
        return f"{shown_id(self.entity_id)!r} of {self.run}" if self.entity_id else self.run


def _run_not_supported(refused: _Refused) -> WorldError:
    return RunNotSupportedError(not_supported(int(refused.detail)))


def _conflict(refused: _Refused) -> WorldError:
    text = f"{refused.what} already exists or already has this event"
    return EntityConflictError(text, reason="duplicate")


def _step_terminal(refused: _Refused) -> WorldError:
    text = f"step {refused.what} is {refused.detail}"
    return EntityConflictError(text, reason="step_terminal")


def _run_terminal(refused: _Refused) -> WorldError:
    text = f"{refused.run} is {refused.detail}"
    return EntityConflictError(text, reason="run_terminal")


def _run_expired(refused: _Refused) -> WorldError:
    return RunExpiredError(f"{refused.run} is {refused.detail}: it accepts nothing new")


def _too_early(refused: _Refused) -> WorldError:
    seconds = max(1, math.ceil(int(refused.detail) / 1000))
    text = f"step {refused.what} can't start yet: try again in {seconds} s"
    return TooEarlyError(text, retry_after=seconds)


def _resume_conflict(refused: _Refused) -> WorldError:
    return HookResumeConflictError(
        f"the resume id for hook {refused.what} was already used for another {refused.detail}"
    )


def _too_many_attributes(refused: _Refused) -> WorldError:
    return AttributeValidationError(
        f"{refused.run} would have {refused.detail} attributes; the limit is {MAX_ATTRIBUTES}"
    )


def _log_full(refused: _Refused) -> WorldError:
    return InvalidEventError(
        f"the log of {refused.run} is at the event ceiling (option max_events_per_run): "
        "it accepts only events that end something"
    )


def _run_id_age(refused: _Refused) -> WorldError:
    return InvalidEventError(
        f"the time in run id {shown_id(refused.run_id)} must be at most 24 hours in the past "
        "and 5 minutes in the future"
    )


def _unexpected(refused: _Refused) -> WorldError:
    """A status of the scripts of another release."""
    return ScriptError(f"unexpected status {refused.status} for {refused.what}")


REFUSALS: Final[dict[str, Callable[[_Refused], WorldError]]] = {
    "RUN_NOT_FOUND": lambda refused: RunNotFoundError(refused.run_id),
    "STEP_NOT_FOUND": lambda refused: StepNotFoundError(refused.entity_id),
    "WAIT_NOT_FOUND": lambda refused: WaitNotFoundError(refused.entity_id),
    "HOOK_NOT_FOUND": lambda refused: HookNotFoundError(refused.entity_id),
    "RUN_NOT_SUPPORTED": _run_not_supported,
    "CONFLICT": _conflict,
    "STEP_TERMINAL": _step_terminal,
    "RUN_TERMINAL": _run_terminal,
    "RUN_EXPIRED": _run_expired,
    "TOO_EARLY": _too_early,
    "RESUME_CONFLICT": _resume_conflict,
    "TOO_MANY_ATTRIBUTES": _too_many_attributes,
    "LOG_FULL": _log_full,
    "RUN_ID_AGE": _run_id_age,
}
"""Status -> the error that it stands for."""


def not_supported(version: int) -> str:
    """What to tell about a run of a spec version that this World does not read."""
    if version < MIN_SPEC_VERSION:
        return (
            f"spec version {shown(version)} belongs to legacy runs without event logs: this World "
            "does not support them"
        )
    return (
        f"spec version {shown(version)} is newer than {SPEC_VERSION}, the newest that this World "
        "reads: upgrade redis-world"
    )
