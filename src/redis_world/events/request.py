"""One `events.create`: what is asked for, and the script call that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from redis_world.cleaning import go_on_if_possible
from redis_world.codec import encode_data, encode_payload, from_ms, to_ms
from redis_world.config import WorldConfig
from redis_world.connection import Connection
from redis_world.ids import event_id
from redis_world.keys import Keys, RunKeys
from redis_world.messages import Message
from redis_world.models import CreateEvent, EventData, EventResult, Model, ResolveData
from redis_world.refusals import SPEC_VERSION

__all__ = [
    "Builder",
    "Call",
    "Request",
    "do_the_rest",
    "payloads_of_entity",
    "result_of",
    "without_field",
]


_NO_DATA: Final = encode_data({}, "eventData")


@dataclass(slots=True)
class Request:
    """A validated event on its way to its script."""

    event: CreateEvent
    run_id: str
    op: str
    """Id of this request, stored with what it writes: by it a request finds itself."""
    keys: Keys
    config: WorldConfig
    resolve_data: ResolveData
    resume_id: str | None
    payload_digest: str | None
    occurred_at: datetime | None
    made_id: bool
    """Whether the run id was made by this World just now."""
    server_time: int
    """The server's time in ms, as this process knows it."""
    outbox: bytes
    """What the event brings along for the queue, packed; empty for nothing."""
    ack: Message | None = None
    """The message whose delivery the event ends."""
    run: RunKeys = field(init=False)
    spec_version: int = field(init=False)
    correlation_id: str = field(init=False)

    def __post_init__(self) -> None:
        event = self.event
        self.run = self.keys.of_run(self.run_id)
        self.spec_version = SPEC_VERSION if event.spec_version is None else event.spec_version
        self.correlation_id = event.correlation_id or ""

    @property
    def max_events(self) -> str:
        limit = self.config.max_events_per_run
        return "" if limit is None else str(limit)

    def common(self) -> dict[str, Any]:
        """The arguments that every event script begins with."""
        return {
            "base": self.keys.base,
            "outbox": self.outbox,
            "op": self.op,
            "spec_version": str(self.spec_version),
            "occurred_at": "" if self.occurred_at is None else str(to_ms(self.occurred_at)),
            "correlation_id": self.correlation_id,
        }

    def split(self, data: EventData | None) -> tuple[bytes, bytes]:
        """Event data as it is stored: the structured part, and the payload apart from it.

        Either is empty when there is none.
        """
        if data is None:
            return b"", b""
        wire = data.to_wire()
        payload = b""
        field = data.payload_field
        if field is not None and field in wire:
            what = f"{field} of {self.event.event_type}"
            payload = encode_payload(wire.pop(field), self.config.max_payload_bytes, what)
        # The rest: names, tokens, keys, reasons and what nobody knows, each with all the others.
        if not wire:
            return _NO_DATA, payload
        what = f"eventData of {self.event.event_type}"
        return encode_data(wire, what, self.config.max_name_bytes), payload

    def stored_event(self, slot: bytes, at: bytes, **changes: Any) -> CreateEvent:
        """The event as a read will give it back."""
        event = self.event
        updates: dict[str, Any] = {
            "run_id": self.run_id,
            "event_id": event_id(slot),
            "created_at": from_ms(at),
            "spec_version": self.spec_version,
            "occurred_at": self.occurred_at,
            "event_data": event.event_data,
            **changes,
        }
        data: EventData | None = updates["event_data"]
        if data is not None and self.resolve_data == "none" and data.payload_field is not None:
            updates["event_data"] = without_field(data, data.payload_field)
        absent = [name for name in ("occurred_at", "event_data") if updates[name] is None]
        if "resume_id" not in updates:
            absent.append("resume_id")
        return event.changed(updates, absent)

    def own_payload(self, slot: bytes) -> Mapping[bytes, Any]:
        """The payload of this event by its slot, for the entity that points at it."""
        data = self.event.event_data
        field = data.payload_field if data is not None else None
        if field is None or field not in data.model_fields_set:  # type: ignore[union-attr]
            return {}
        return {slot: getattr(data, field)}


M = TypeVar("M", bound=Model)


def without_field(model: M, name: str) -> M | None:
    """A copy of a model in which a field is absent; None when nothing else is set."""
    copy = model.changed({}, (name,))
    return copy if copy.model_fields_set or copy.model_extra else None


def result_of(**fields: Any) -> EventResult:
    """A result of what is known to be right."""
    return EventResult.trusted(fields)


def _no_payloads(_: Sequence[Any]) -> list[bytes]:
    return []


def payloads_of_entity(reply: Sequence[Any]) -> list[bytes]:
    """Those in the reply of an event that answers its run or step."""
    found: list[bytes] = reply[4][1]
    return found


@dataclass(slots=True)
class Call:
    """A script with its arguments, and how its reply reads."""

    script: str
    keys: Mapping[str, str]
    args: Mapping[str, Any]
    read: Callable[[Sequence[Any]], EventResult]
    """Makes the result of an accepted event."""
    accepted: tuple[bytes, ...] = (b"OK",)
    """The statuses that are no refusal."""
    entity_id: str = ""
    """The id that a refusal names."""
    payloads: Callable[[Sequence[Any]], list[bytes]] = _no_payloads
    """The slots and payloads, by turns, in the reply of an accepted event."""
    goes_on: str = ""
    """What the script may leave to be done, in the words of `cleaning.go_on`; the sixth item of
    its reply says so."""


Builder = Callable[[Request], Call]


async def do_the_rest(
    connection: Connection, run_id: str, call: Call, reply: Sequence[Any]
) -> None:
    """Do what the script of an accepted event has left."""
    if call.goes_on and reply[0] == b"OK" and reply[5]:
        await go_on_if_possible(connection, call.goes_on, run_id)
