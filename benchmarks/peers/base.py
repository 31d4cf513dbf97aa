"""What a backend has to offer to be measured beside others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

PAYLOAD = b"x" * 256
"""Input and output of each run, input and result of each step."""
STEPS = 10
"""Of one run, whose log has 33 events: created, started, three of each step, completed."""


class MissingError(Exception):
    """What a backend needs is not there, and can't be installed; the text says what."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one round of a backend has measured.

    Attributes:
        count: how many runs, steps or messages there were.
        seconds: that they took together, at the wall clock.
        latencies: seconds of each of them, where they are known.
        server: seconds of processors that the backend's server took for them, where it has one
            and they are known.
        commands: that its server ran for them, those inside scripts among them, likewise.
    """

    count: int
    seconds: float
    latencies: list[float] = field(default_factory=list)
    server: float | None = None
    commands: float | None = None

    @property
    def rate(self) -> float:
        """How many of them a second."""
        return self.count / self.seconds


def event(kind: str, correlation_id: str | None = None, /, **data: Any) -> dict[str, Any]:
    """An event as the wire has it; without any data, `eventData` is absent."""
    wire: dict[str, Any] = {"eventType": kind}
    if correlation_id is not None:
        wire["correlationId"] = correlation_id
    if data:
        wire["eventData"] = data
    return wire


Round = Callable[[int], Sample]
"""Measures so many runs, steps or messages, once, on a backend that is warm."""


class Peer(Protocol):
    """A backend.

    Attributes:
        name: as the tables show it, such as `@workflow-worlds/redis`.
    """

    name: str

    def start(self) -> AbstractContextManager[Round]:
        """Start whatever it needs, and end it with the block.

        Raises:
            MissingError: it can't be had here.
        """

    def version(self) -> str:
        """Of the backend and its server, such as `0.3.1, Redis 7.0.15`; asked while it runs."""
