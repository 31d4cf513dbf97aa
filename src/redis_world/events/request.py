"""One event on its way to its script, with all that its plan may need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from redis_world.codec import encode_data, encode_payload, from_ms, to_ms
from redis_world.config import WorldConfig
from redis_world.ids import event_id
from redis_world.keys import Keys, RunKeys
from redis_world.messages import Message
from redis_world.models import CreateEvent, EventData, ResolveData
from redis_world.models.base import Model
from redis_world.refusals import SPEC_VERSION

__all__ = ["Request", "without_field"]

_OF_STORED: Final = (
    "spec_version",
    "event_data",
    "run_id",
    "event_id",
    "created_at",
    "occurred_at",
    "resume_id",
)
"""What a stored event has besides its type and its correlation id, or some of it."""
_NO_DATA: Final = encode_data({}, "eventData")


@dataclass(slots=True)
class Request:
    """A validated event, and what was said with it."""

    event: CreateEvent
    """Of this request alone: it becomes the stored one."""
    run_id: str
    op: str
    """Id of this request, stored with what it writes: by it a request finds itself."""
    keys: Keys
    config: WorldConfig
    server_time: Callable[[], int]
    """The server's time in ms, as this process knows it."""
    resolve_data: ResolveData = "all"
    resume_id: str | None = None
    payload_digest: str | None = None
    occurred_at: datetime | None = None
    made_id: bool = False
    """Whether the run id was made by this World just now."""
    outbox: bytes = b""
    """What the event brings along for the queue, packed; empty for nothing."""
    ack: Message | None = None
    """The message whose delivery the event ends."""
    run: RunKeys = field(init=False)
    correlation_id: str = field(init=False)
    spec_version: int = field(init=False)
    data: EventData | None = field(init=False)

    def __post_init__(self) -> None:
        # Of a model each attribute is looked up in its class first.
        values = self.event.__dict__
        version = values["spec_version"]
        self.run = RunKeys(self.keys.base, self.run_id)
        self.correlation_id = values["correlation_id"] or ""
        self.spec_version = SPEC_VERSION if version is None else version
        self.data = values["event_data"]

    # -- as arguments ----------------------------------------------------------------------

    @property
    def version(self) -> str:
        """The spec version."""
        return str(self.spec_version)

    @property
    def occurred(self) -> str:
        """When it occurred, in ms; empty for unknown."""
        return "" if self.occurred_at is None else str(to_ms(self.occurred_at))

    @property
    def max_events(self) -> str:
        """The event ceiling; empty for none."""
        limit = self.config.max_events_per_run
        return "" if limit is None else str(limit)

    def split(self) -> tuple[bytes, bytes]:
        """Event data as it is stored: the structured part, and the payload apart from it.

        Either is empty when there is none.
        """
        data = self.data
        if data is None:
            return b"", b""
        name, payload = data.payload_field, b""
        if name is not None and name in data.__pydantic_fields_set__:
            what = f"{name} of {self.event.event_type}"
            value = data.__dict__[name]
            payload = encode_payload(value, self.config.max_payload_bytes, what)
            if len(data.__pydantic_fields_set__) == 1 and not data.__pydantic_extra__:
                return _NO_DATA, payload
        wire = data.to_wire()
        if name is not None:
            wire.pop(name, None)
        # The rest: names, tokens, keys, reasons and what nobody knows, each with all the others.
        if not wire:
            return _NO_DATA, payload
        what = f"eventData of {self.event.event_type}"
        return encode_data(wire, what, self.config.max_name_bytes), payload

    # -- as part of a result ---------------------------------------------------------------

    def stored(
        self, slot: bytes, at: bytes, *, data: EventData | None, resume_id: str | None = None
    ) -> CreateEvent:
        """The event as a read will give it back: this one, to which nobody else has come yet.

        Args:
            slot: its place in the log.
            at: the time of its entry.
            data: what is stored of its data.
            resume_id: under which it is stored.
        """
        event, occurred_at = self.event, self.occurred_at
        if data is not None and self.resolve_data == "none" and data.payload_field is not None:
            data = without_field(data, data.payload_field)
        values, names = event.__dict__, event.__pydantic_fields_set__
        values["spec_version"] = self.spec_version
        values["event_data"] = data
        values["run_id"] = self.run_id
        values["event_id"] = event_id(slot)
        values["created_at"] = from_ms(int(at))
        values["occurred_at"] = occurred_at
        values["resume_id"] = resume_id
        names.update(_OF_STORED)
        if data is None:
            names.discard("event_data")
        if occurred_at is None:
            names.discard("occurred_at")
        if resume_id is None:
            names.discard("resume_id")
        return event

    def own_payload(self, slot: bytes) -> Mapping[bytes, Any]:
        """The payload of this event by its slot, for the entity that points at it."""
        data = self.data
        name = None if data is None else data.payload_field
        if data is None or name is None or name not in data.__pydantic_fields_set__:
            return {}
        return {slot: data.__dict__[name]}


M = TypeVar("M", bound=Model)


def without_field(model: M, name: str) -> M | None:
    """A copy of a model in which a field is absent; None when nothing else is set."""
    if model.__pydantic_fields_set__ <= {name} and not model.__pydantic_extra__:
        return None
    return model.changed({}, (name,))
