"""The records of messages: fields of the bookkeeping of their run, or of a hash of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from redis_world.keys import RunKeys
from redis_world.testing.invariants.snapshot import Hash, text

__all__ = [
    "APART",
    "CONTENTS",
    "FIELDS",
    "OUTSTANDING",
    "REPLAYS",
    "Declined",
    "Envelope",
    "State",
    "StoredMessage",
    "Text",
    "spelled",
]

CONTENTS: Final = ("headers", "body")
"""What of a message of a run lies in a hash beside the bookkeeping."""
FIELDS: Final = ("message", "state", *CONTENTS, "error", "declined")
"""What a book has of a message, each with its id behind a colon."""

OUTSTANDING: Final = {"due", "leased", "held"}
REPLAYS: Final = {"wake", "replay"}

APART: Final = 4096
"""Headers and bodies of more bytes have a field of their own."""

_NUMBER: Final = rb"(0|[1-9][0-9]*)"
_HEAD: Final = re.compile(
    rb"(\S+) %b %b %b %b (>?)%b (>?)%b %b (\S+)" % ((_NUMBER,) * 7),
)
"""Kind, bytes of step, key, queue name, deployment, headers and body, time, topic."""
_STATE: Final = re.compile(
    rb"%b %b %b %b (\S+) (\S+) %b(?: (\S+) %b)?" % ((_NUMBER,) * 6),
)
"""Attempt, failures, lost, due at, receipt, op, postponed; reason and time of the death."""
_DECLINED: Final = re.compile(rb"%b ([^\n]+)\n(.*)" % _NUMBER, re.DOTALL)


@dataclass(frozen=True, slots=True)
class Text:
    """Headers or a body, as the envelope tells of them."""

    size: int
    is_apart: bool

    @property
    def is_in_place(self) -> bool:
        """Whether the envelope itself has any."""
        return self.size > 0 and not self.is_apart


@dataclass(frozen=True, slots=True)
class Envelope:
    """What never changes of a message.

    Attributes:
        surplus: how many bytes more, or less, than the lengths make are behind the head.
    """

    kind: str
    topic: str
    sent_at: int
    step: str
    key: str
    queue: str
    deployment: str
    headers: Text
    body: Text
    surplus: int

    @classmethod
    def read(cls, field: bytes) -> Envelope:
        """The envelope in a field.

        Raises:
            ValueError: no World writes such a field.
        """
        head, end, rest = field.partition(b"\n")
        match = _HEAD.fullmatch(head)
        if match is None or not end:
            raise ValueError(text(head))
        kind, *words, sent_at, topic = match.groups()
        *short, headers_apart, headers, body_apart, body = words
        of_headers = Text(int(headers), bool(headers_apart))
        of_body = Text(int(body), bool(body_apart))
        ends = [*accumulate(map(int, short), initial=0)]
        step, key, queue, deployment = (text(rest[i:k]) for i, k in pairwise(ends))
        size = ends[-1] + sum(each.size for each in (of_headers, of_body) if not each.is_apart)
        return cls(
            kind=text(kind),
            topic=text(topic),
            sent_at=int(sent_at),
            step=step,
            key=key,
            queue=queue,
            deployment=deployment,
            headers=of_headers,
            body=of_body,
            surplus=len(rest) - size,
        )


@dataclass(frozen=True, slots=True)
class State:
    """What changes of a message; receipt and reason are "" for none."""

    attempt: int
    failures: int
    lost: int
    due_at: int
    receipt: str
    op: str
    postponed: int
    reason: str
    died_at: int | None

    @classmethod
    def read(cls, field: bytes) -> State:
        """The state in a field.

        Raises:
            ValueError: no World writes such a field.
        """
        match = _STATE.fullmatch(field)
        if match is None:
            raise ValueError(text(field))
        attempt, failures, lost, due_at, receipt, op, postponed, reason, died_at = match.groups()
        return cls(
            attempt=int(attempt),
            failures=int(failures),
            lost=int(lost),
            due_at=int(due_at),
            receipt="" if receipt == b"-" else text(receipt),
            op="" if op == b"-" else text(op),
            postponed=int(postponed),
            reason=text(reason or b""),
            died_at=int(died_at) if died_at else None,
        )


@dataclass(frozen=True, slots=True)
class Declined:
    """Who has postponed a message."""

    since: int
    workers: list[str]

    @classmethod
    def read(cls, field: bytes) -> Declined:
        """What a field holds.

        Raises:
            ValueError: no World writes such a field.
        """
        match = _DECLINED.fullmatch(field)
        if match is None:
            raise ValueError(text(field))
        return cls(int(match[1]), text(match[2]).split(" "))


_NO_TEXT: Final = Text(0, is_apart=False)
_NO_ENVELOPE: Final = Envelope("", "", 0, "", "", "", "", _NO_TEXT, _NO_TEXT, 0)
_NO_STATE: Final = State(0, 0, 0, 0, "", "", 0, "", None)


@dataclass(slots=True)
class StoredMessage:
    """A message, and the set that it is in; where it is in none, that is "".

    Attributes:
        run: the id of its run, "" for none.
        spelled: where its envelope lies.
        fields: kind of field -> what it holds.
    """

    run: str
    id: str
    spelled: str
    fields: Hash
    place: str = ""
    envelope: Envelope = _NO_ENVELOPE
    state: State = _NO_STATE
    declined: Declined | None = None

    @property
    def is_outstanding(self) -> bool:
        return self.place in OUTSTANDING

    @property
    def is_readable(self) -> bool:
        return self.envelope is not _NO_ENVELOPE and self.state is not _NO_STATE

    @property
    def is_replay(self) -> bool:
        return self.envelope.kind in REPLAYS

    def read(self) -> Iterable[str]:
        """Read its fields; what is wrong with their form."""
        try:
            self.envelope = Envelope.read(self.fields["message"])
        except ValueError as error:
            yield f"is {str(error)!r}, which is not an envelope"
        try:
            self.state = State.read(self.fields["state"])
        except KeyError:
            yield "has no state"
        except ValueError as error:
            yield f"has the state {str(error)!r}, which this World never writes"
        try:
            if "declined" in self.fields:
                self.declined = Declined.read(self.fields["declined"])
        except ValueError as error:
            yield f"was declined {str(error)!r}, which this World never writes"


def spelled(run_id: str, topic: str, message_id: str) -> str:
    """Where the envelope of a message lies."""
    if run_id:
        return f"{RunKeys('', run_id).queue}: message:{message_id}"
    return f"queue:{topic}:message:{message_id}"
