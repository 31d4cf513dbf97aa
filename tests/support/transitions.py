"""What every event does to a run, step, hook and wait in every state (contract, section 5).

The tests drive each cell through the public API; ARCHITECTURE.md shows the same tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from redis_world.errors import (
    ConflictReason,
    EntityConflictError,
    HookNotFoundError,
    RunExpiredError,
    RunNotFoundError,
    RunNotSupportedError,
    StepNotFoundError,
    TooEarlyError,
    WaitNotFoundError,
    WorldError,
)


@dataclass(frozen=True)
class Outcome:
    """What comes of one event in one state."""

    error: type[WorldError] | None = None
    reason: ConflictReason | None = None
    state: str | None = None
    """The new state; None: the same as before."""
    events: int = 1
    """How many events are added."""

    def __str__(self) -> str:
        """`**new state**`, `ok`, the reason of a conflict, or the error's name without its end."""
        if self.error is not None:
            return self.reason or self.error.__name__.removesuffix("Error")
        text = "ok" if self.state is None else f"**{self.state}**"
        return text if self.events == 1 else f"{text} ({self.events or 'no'} events)"


@dataclass(frozen=True)
class Table:
    """Events down, states across."""

    states: tuple[str, ...]
    rows: dict[str, tuple[Outcome, ...]]

    def cells(self) -> list[tuple[str, str, Outcome]]:
        """(event, state, outcome) of every cell."""
        return [
            (event, state, outcome)
            for event, outcomes in self.rows.items()
            for state, outcome in zip(self.states, outcomes, strict=True)
        ]

    def markdown(self) -> str:
        lines = [["event", *self.states], ["---"] * (len(self.states) + 1)]
        lines += [[event, *map(str, outcomes)] for event, outcomes in self.rows.items()]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _to(state: str, events: int = 1) -> Outcome:
    return Outcome(state=state, events=events)


def _no(error: type[WorldError]) -> Outcome:
    return Outcome(error, events=0)


def _conflict(reason: ConflictReason) -> Outcome:
    return Outcome(EntityConflictError, reason, events=0)


OK: Final = Outcome()
SAME: Final = Outcome(events=0)
DUPLICATE: Final = _conflict("duplicate")
STEP_TERMINAL: Final = _conflict("step_terminal")
RUN_TERMINAL: Final = _conflict("run_terminal")
EXPIRED: Final = _no(RunExpiredError)
NO_RUN: Final = _no(RunNotFoundError)
NO_STEP: Final = _no(StepNotFoundError)
NO_HOOK: Final = _no(HookNotFoundError)
NO_WAIT: Final = _no(WaitNotFoundError)
EARLY: Final = _no(TooEarlyError)
UNSUPPORTED: Final = _no(RunNotSupportedError)


def _run_row(
    missing: Outcome,
    pending: Outcome,
    running: Outcome,
    ended: Outcome,
    *,
    cancelled: Outcome | None = None,
) -> tuple[Outcome, ...]:
    """A row of the run table for an event that checks the run before all else."""
    last = cancelled or ended
    return (missing, pending, running, ended, ended, last, UNSUPPORTED, UNSUPPORTED)


def _ends(status: str, *, cancelled: Outcome | None = None) -> tuple[Outcome, ...]:
    return _run_row(NO_RUN, _to(status), _to(status), RUN_TERMINAL, cancelled=cancelled)


_BEGINS: Final = _run_row(NO_RUN, OK, OK, RUN_TERMINAL)
_BEGINS_TWO: Final = _run_row(NO_RUN, Outcome(events=2), Outcome(events=2), RUN_TERMINAL)

RUN: Final = Table(
    states=(
        "missing",
        "pending",
        "running",
        "completed",
        "failed",
        "cancelled",
        "version 1",
        "version 8",
    ),
    rows={
        "run_created": (_to("pending"), *[DUPLICATE] * 7),
        "run_started": _run_row(NO_RUN, _to("running"), SAME, EXPIRED),
        "run_started, resilient": _run_row(_to("running", 2), _to("running"), SAME, EXPIRED),
        "run_completed": _ends("completed"),
        "run_failed": _ends("failed"),
        "run_cancelled": _ends("cancelled", cancelled=Outcome(state="cancelled")),
        "attr_set": _BEGINS,
        "step_created": _BEGINS,
        "step_started, lazy": _BEGINS_TWO,
        "step_started": _run_row(NO_RUN, NO_STEP, NO_STEP, EXPIRED),
        # These two never look at a run whose step they do not find.
        "step_completed": (NO_STEP,) * 8,
        "step_retrying": (NO_STEP,) * 8,
        "step_failed": _run_row(NO_RUN, NO_STEP, NO_STEP, NO_STEP),
        "hook_created": _BEGINS,
        "hook_received": _run_row(NO_RUN, NO_HOOK, NO_HOOK, NO_HOOK),
        "hook_disposed": _run_row(NO_RUN, NO_HOOK, NO_HOOK, EXPIRED),
        "wait_created": _BEGINS,
        "wait_completed": _run_row(NO_RUN, NO_WAIT, NO_WAIT, NO_WAIT),
    },
)
"""Steps, hooks and waits that an event needs are missing here; versions are of the run."""

_STEP_STATES: Final = ("missing", "pending", "too early", "running", "completed", "failed")

STEP: Final = Table(
    states=_STEP_STATES + tuple(f"{state}; run ended" for state in _STEP_STATES),
    rows={
        "step_created": (_to("pending"), *[DUPLICATE] * 5, *[RUN_TERMINAL] * 6),
        "step_started, lazy": (_to("running", 2), *[DUPLICATE] * 5, *[RUN_TERMINAL] * 6),
        "step_started": (
            NO_STEP, _to("running"), EARLY, _to("running"), STEP_TERMINAL, STEP_TERMINAL,
            *[EXPIRED] * 6,
        ),
        **{
            event: (
                NO_STEP, *[_to(state)] * 3, STEP_TERMINAL, STEP_TERMINAL,
                NO_STEP, EXPIRED, EXPIRED, _to(state), STEP_TERMINAL, STEP_TERMINAL,
            )
            for event, state in {
                "step_completed": "completed",
                "step_failed": "failed",
                "step_retrying": "pending",
            }.items()
        },
    },
)  # fmt: skip
"""`too early` is pending with a retryAfter that lies ahead; this step_retrying has none."""

HOOK: Final = Table(
    states=(
        "missing", "missing; token taken", "live", "disposed", "conflicted",
        "conflicted; token free", "missing; run ended", "live; run ended", "conflicted; run ended",
        "retained; run ended",
    ),
    rows={
        "hook_created": (
            _to("live"), _to("conflicted"), *[DUPLICATE] * 4, *[RUN_TERMINAL] * 4,
        ),
        "hook_received": (NO_HOOK, NO_HOOK, _to("live"), *[NO_HOOK] * 6, EXPIRED),
        "hook_disposed": (
            NO_HOOK, NO_HOOK, _to("disposed"), NO_HOOK, NO_HOOK, NO_HOOK, *[EXPIRED] * 3,
            _to("disposed"),
        ),
    },
)  # fmt: skip
"""`conflicted`: the hook's token was another's when it was to be created. `retained`: its
`tokenRetentionUntil` lies ahead."""

WAIT: Final = Table(
    states=(
        "missing", "waiting", "completed", "missing; run ended", "waiting; run ended",
        "completed; run ended",
    ),
    rows={
        "wait_created": (_to("waiting"), DUPLICATE, DUPLICATE, *[RUN_TERMINAL] * 3),
        "wait_completed": (NO_WAIT, _to("completed"), DUPLICATE, *[NO_WAIT] * 3),
    },
)  # fmt: skip

TABLES: Final = {"run": RUN, "step": STEP, "hook": HOOK, "wait": WAIT}


def tables() -> dict[str, str]:
    """The tables as markdown, by name."""
    return {name: table.markdown() for name, table in TABLES.items()}
