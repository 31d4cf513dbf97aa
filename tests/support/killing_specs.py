"""Random workflows, and what must come of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from support.killing_points import RESUMER_DEATHS, STARTER_DEATHS, Death

__all__ = ["Flow", "Part", "make_flow"]

Part = dict[str, Any]
End = Literal["return", "raise", "hang", "race"]

_KINDS: Final = (
    "sequence", "hook", "fan_out", "retried", "attribute", "sleep", "give_up", "busy", "together",
)  # fmt: skip

_ENDS: Final[Sequence[End]] = (
    "return", "return", "race", "raise", "return", "return", "hang", "raise",
)  # fmt: skip


@dataclass(frozen=True)
class Flow:
    """One run: what its workflow is told, and what is done to it from outside.

    Attributes:
        parts: what its workflow does, one after another.
        end: what it does then: it returns, fails, or hangs until it is cancelled; in a race it
            is cancelled when it is about to return.
        start: how the process dies that starts it; None: it does not.
        resume: how the process dies that resumes its first hook; None: it does not.
        cancel_at: how many events are in its log when it is cancelled, if it is.
    """

    number: int
    parts: list[Part]
    end: End
    start: Death | None
    resume: Death | None
    cancel_at: int

    @property
    def arguments(self) -> tuple[int, list[Part], str]:
        return self.number, self.parts, self.end

    @property
    def is_cancelled(self) -> bool:
        """Whether it may end before all that it does was done."""
        return self.end in {"hang", "race"}

    @property
    def statuses(self) -> tuple[str, ...]:
        """The one that it may have in the end, or those."""
        return {
            "return": ("completed",),
            "raise": ("failed",),
            "hang": ("cancelled",),
            "race": ("completed", "cancelled"),
        }[self.end]

    @property
    def results(self) -> list[Any]:
        """What the workflow returns."""
        return [_result_of(part) for part in self.parts]

    @property
    def leaves(self) -> list[Part]:
        """All parts, those that run together one by one."""
        return [leaf for part in self.parts for leaf in _leaves_of(part)]

    @property
    def hooks(self) -> list[Part]:
        return [part for part in self.leaves if part["kind"] == "hook"]

    @property
    def attributes(self) -> dict[str, str]:
        found = [part for part in self.leaves if part["kind"] == "attribute"]
        return {part["key"]: part["value"] for part in found}

    def count(self, what: Literal["steps", "waits", "hooks", "disposals"]) -> int:
        """How many of them a run makes that goes to its end."""
        return sum(_COUNTS[what](part) for part in self.leaves)


def make_flow(seed: int, number: int) -> Flow:
    """The flow of this number: every kind of part, end and death comes again and again."""
    chance = random.Random(f"{seed}/{number}")
    ids = (f"{number}-{place}" for place in range(1000))
    kinds = [_KINDS[number % len(_KINDS)], *chance.choices(_KINDS, k=chance.randint(0, 2))]
    parts = [_part(chance, kind, ids) for kind in kinds]
    end = _ENDS[number % len(_ENDS)]
    flow = Flow(
        number,
        parts,
        end,
        start=STARTER_DEATHS[number // 5 % len(STARTER_DEATHS)] if number % 5 == 4 else None,
        # What is cancelled at any moment may have ended before it is resumed.
        resume=(
            RESUMER_DEATHS[number // 2 % len(RESUMER_DEATHS)]
            if number % 2 and end not in {"hang", "race"}
            else None
        ),
        cancel_at=chance.randint(1, 3 + len(parts)),
    )
    if end == "race":
        return replace(flow, cancel_at=_least_events(flow) - chance.randint(0, 2))
    return flow


def _least_events(flow: Flow) -> int:
    """How many events are in its log before its end, where no step is tried again."""
    attributes = len(flow.attributes)
    per_entity = 3 * flow.count("steps") + 2 * flow.count("waits") + 2 * flow.count("hooks")
    return 2 + per_entity + flow.count("disposals") + attributes


def _part(chance: random.Random, kind: str, ids: Iterator[str]) -> Part:
    part: Part = {"kind": kind}
    match kind:
        case "sequence":
            part["count"] = chance.randint(1, 4)
        case "fan_out":
            part["count"] = chance.randint(2, 6)
        case "busy":
            part["seconds"] = chance.choice([0.05, 0.5, 1.2])
        case "give_up":
            part["text"] = f"no {next(ids)}"
        case "hook":
            part |= {"token": f"token {next(ids)}", "dispose": chance.random() < 0.7}
        case "sleep":
            part["seconds"] = chance.choice([0.01, 0.3, 1.0])
        case "attribute":
            key = f"key {next(ids)}"
            part |= {"key": key, "value": f"of {key}", "in_step": chance.random() < 0.3}
        case "together":
            kinds = chance.choices(_KINDS[:-1], k=chance.randint(2, 3))
            part["parts"] = [_part(chance, each, ids) for each in kinds]
    return part


def _leaves_of(part: Part) -> list[Part]:
    if part["kind"] == "together":
        return [leaf for each in part["parts"] for leaf in _leaves_of(each)]
    return [part]


def _result_of(part: Part) -> Any:
    match part["kind"]:
        case "sequence":
            return part["count"]
        case "fan_out":
            return list(range(1, part["count"] + 1))
        case "retried":
            return "lucky"
        case "busy":
            return "free"
        case "give_up":
            return part["text"]
        case "hook":
            return f"by {part['token']}"
        case "sleep":
            return "slept"
        case "attribute":
            return part["key"]
        case _:
            return [_result_of(each) for each in part["parts"]]


def _steps_of(part: Part) -> int:
    match part["kind"]:
        case "sequence" | "fan_out":
            return int(part["count"])
        case "retried" | "busy" | "give_up":
            return 1
        case "attribute":
            return int(part["in_step"])
        case _:
            return 0


_COUNTS: Final[Mapping[str, Callable[[Part], int]]] = {
    "steps": _steps_of,
    "waits": lambda part: part["kind"] == "sleep",
    "hooks": lambda part: part["kind"] == "hook",
    "disposals": lambda part: part["kind"] == "hook" and part["dispose"],
}
