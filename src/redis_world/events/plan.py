"""What each type of event has of its own: one plan per type, which holds nothing.

A plan makes the row of its script out of a request, and the result out of the reply. Its other
half is the script of the same name below `lua/events`, whose header names both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from redis_world.errors import WorldError
from redis_world.events.request import Request
from redis_world.events.scripts import Row
from redis_world.models import EventResult
from redis_world.models.base import assemble, blank
from redis_world.refusals import refusal

__all__ = ["Plan", "answer", "told_of_queue"]

Reply = Sequence[Any]


class Plan:
    """How an event of one type is recorded.

    Attributes:
        script: the name of its script.
        accepted: the statuses that are no refusal.
        names_entity: whether its refusals name the step, hook or wait.
        goes_on: what the script may leave to be done, in the words of `cleaning.go_on`; the sixth
            item of its reply tells so.
    """

    script: ClassVar[str]
    accepted: ClassVar[tuple[bytes, ...]] = (b"OK",)
    names_entity: ClassVar[bool] = True
    goes_on: ClassVar[str] = ""

    def row(self, request: Request) -> Row:
        """Keys and arguments of the script.

        Raises:
            InvalidInputError: the event can't be stored.
        """
        raise NotImplementedError

    def result(self, request: Request, reply: Reply) -> EventResult:
        """What the caller gets of an event that was accepted."""
        raise NotImplementedError

    def payloads(self, reply: Reply) -> list[bytes]:  # noqa: ARG002 - of those that have some
        """The slots and payloads, by turns, in the reply of an event that was accepted."""
        return []

    def is_left(self, reply: Reply) -> bool:
        """Whether the script has left something to be done."""
        return self.goes_on != "" and reply[0] == b"OK" and reply[5] != b""

    def refusal(self, request: Request, reply: Reply) -> WorldError:
        """The error of an event that was not accepted."""
        entity_id = request.correlation_id if self.names_entity else ""
        return refusal(reply, run_id=request.run_id, entity_id=entity_id)


_BLANK: Final = blank(EventResult)


def answer(told: bytes, **found: Any) -> EventResult:
    """A result of what is known to be right.

    Args:
        told: what the reply tells of the queue.
        found: fields of the result.
    """
    if told:
        found.update(told_of_queue(told))
    values = {**_BLANK}
    values.update(found)
    return assemble(EventResult, values, {*found})


def told_of_queue(told: bytes) -> dict[str, Any]:
    """What the reply of an event tells of the queue: see lua/lib/outbox.lua."""
    message_id, has_ended, end = told.decode().partition("/")
    fields: dict[str, Any] = {"message_id": message_id} if message_id else {}
    if has_ended:
        fields["acked"] = end == "acked"
    return fields
