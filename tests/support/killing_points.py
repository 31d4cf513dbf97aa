"""Where a process dies, and what it is told to do until then."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from redis_world.connection import Connection

__all__ = [
    "ONLY_WHERE_IT_GOES_WRONG",
    "RESUMER_DEATHS",
    "STARTER_DEATHS",
    "WORKER_POINTS",
    "Death",
    "Job",
    "Killer",
    "Point",
]

When = Literal["before", "after"]


class Point(NamedTuple):
    """Before a script is called, or after its reply has come."""

    script: str
    when: When

    def __str__(self) -> str:
        return f"{self.when} {self.script}"


def _around(*scripts: str) -> list[Point]:
    moments: tuple[When, ...] = ("before", "after")
    return [Point(script, when) for script in scripts for when in moments]


_EVENTS: Final = (
    "run_started",
    "step_created",
    "step_started",
    "step_completed",
    "step_failed",
    "step_retrying",
    "hook_created",
    "hook_disposed",
    "wait_created",
    "wait_completed",
    "run_completed",
    "run_failed",
    "attr_set",
)
"""What the SDK's runtime makes of a delivery."""

_RESCUES: Final = ("queue/pay_wake", "queue/pay_step", "queue/unpark")

WORKER_POINTS: Final = (
    Point("queue/claim", "after"),
    *_around(*(f"events/{name}" for name in _EVENTS)),
    Point("queue/send", "before"),
    *_around("queue/ack", "queue/stranded", "queue/expire", *_RESCUES),
)
"""Where workers die."""

ONLY_WHERE_IT_GOES_WRONG: Final = frozenset({Point("queue/send", "before"), *_around(*_RESCUES)})
"""What hardly anybody passes whose messages travel with their events, and are handled."""

_CREATED: Final = "events/run_created"
_RECEIVED: Final = "events/hook_received"


class Death(NamedTuple):
    """How a process dies that starts a run or resumes a hook.

    Attributes:
        has_outbox: whether its messages travel with their events; otherwise they are calls of
            their own, and what dies between an event and its message leaves a debt.
    """

    point: Point
    has_outbox: bool

    def __str__(self) -> str:
        return f"{self.point}, {'with' if self.has_outbox else 'without'} the outbox"


STARTER_DEATHS: Final[Sequence[Death]] = (
    Death(Point(_CREATED, "after"), has_outbox=True),
    Death(Point("queue/send", "before"), has_outbox=False),
    Death(Point(_CREATED, "before"), has_outbox=True),
    Death(Point(_CREATED, "after"), has_outbox=False),
    Death(Point("queue/send", "after"), has_outbox=False),
)
RESUMER_DEATHS: Final[Sequence[Death]] = (
    Death(Point(_RECEIVED, "after"), has_outbox=False),
    Death(Point(_RECEIVED, "after"), has_outbox=True),
    Death(Point(_RECEIVED, "before"), has_outbox=True),
    Death(Point("queue/send", "before"), has_outbox=False),
)


@dataclass(frozen=True)
class Job:
    """What a process is to do.

    Attributes:
        kind: work until it is told to stop, start a run, or resume a hook.
        point: where it dies; None: nowhere.
        passage: at which passage of its point it dies.
        has_outbox: whether its messages travel with their events.
        forgets: it acknowledges every n-th message without handling it; 0: none.
        details: of the run or the resumption.
    """

    kind: Literal["work", "start", "resume"]
    point: Point | None = None
    passage: int = 1
    has_outbox: bool = True
    forgets: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """Itself in JSON's values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Job:
        point = wire["point"]
        return cls(**{**wire, "point": None if point is None else Point(*point)})


class Killer:
    """Ends its own process, as `kill -9` does, at some passage of a point.

    What is asked of an ended process leaves no trace; what was answered stands.
    """

    def __init__(self, point: Point, passage: int) -> None:
        self._point = point
        self._left = passage

    def install(self) -> None:
        """Watch all scripts that this process runs from now on."""
        run = Connection.run

        async def watched(connection: Connection, name: str, *args: Any, **kwargs: Any) -> Any:
            self._pass(Point(name, "before"))
            replies = await run(connection, name, *args, **kwargs)
            if _has_done_something(name, replies[0]):
                self._pass(Point(name, "after"))
            return replies

        Connection.run = watched  # type: ignore[assignment, method-assign]

    def _pass(self, point: Point) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _has_done_something(script: str, reply: Sequence[Any]) -> bool:
    """Whether there is something to be left half-done after this reply."""
    if script == "queue/claim":
        return bool(reply[4])
    if script in _RESCUES or script.startswith("events/") or script == "queue/ack":
        return bool(reply[0] == b"OK")
    return True
