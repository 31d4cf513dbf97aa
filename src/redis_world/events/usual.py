"""Events of the usual form, checked key by key.

Nearly every event is a plain dict with plain values under known names. To tell that takes a tenth
of what pydantic takes to validate it, and the model is the same. All others are left to pydantic:
what is wrong, and what is right in another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, get_args

from pydantic import StrictBool, StrictInt

from redis_world.codec import PLAIN, is_plain
from redis_world.models import BaseEvent, EventData, Timestamp
from redis_world.models.base import Model, assemble, blank

__all__ = ["usual_event"]

E = TypeVar("E", bound=BaseEvent)

_NONE: Final = type(None)
_KINDS: Final[Mapping[Any, frozenset[Any]]] = {
    Any: PLAIN,
    str: frozenset({str}),
    str | None: frozenset({str, _NONE}),
    StrictBool | None: frozenset({bool, _NONE}),
    StrictInt | None: frozenset({int, _NONE}),
    datetime: frozenset({datetime}),
    Timestamp | None: frozenset({datetime, _NONE}),
}
"""Annotation of a field of event data -> the types of its usual values."""
_OF_EVENTS: Final = {
    "eventType": "event_type",
    "correlationId": "correlation_id",
    "specVersion": "spec_version",
    "eventData": "event_data",
}
"""What callers give of an event."""


class _Field(NamedTuple):
    """A field that can be checked here."""

    name: str
    kinds: frozenset[Any]
    is_payload: bool


class _Shape(NamedTuple):
    """What a model has, and what of it can be checked here.

    Attributes:
        blank: all fields with their defaults, in their order.
        fields: by either of their names.
    """

    blank: Mapping[str, Any]
    required: frozenset[str]
    fields: Mapping[str, _Field]


@cache
def _shape(model: type[Model]) -> _Shape:
    fields: dict[str, _Field] = {}
    for name, info in model.model_fields.items():
        kinds = _KINDS.get(info.annotation)
        if kinds is not None:
            field = _Field(name, kinds, info.annotation is Any)
            fields[name] = fields[info.alias or name] = field
    return _Shape(
        blank(model),
        frozenset(name for name, info in model.model_fields.items() if info.is_required()),
        fields,
    )


@cache
def _data_of(model: type[BaseEvent]) -> type[EventData]:
    """The model of an event's data."""
    found: type[EventData]
    found, _ = get_args(model.model_fields["event_data"].annotation)
    return found


_NAMES: Final = _OF_EVENTS | {name: name for name in _OF_EVENTS.values()}


def usual_event(model: type[E], wire: dict[str, Any]) -> E | None:
    """The model of an event of its type, as pydantic would validate it; None for: ask pydantic."""
    shape = _shape(model)
    values = {**shape.blank}
    names: set[str] = set()
    for key, given in wire.items():
        name, value = _NAMES.get(key), given
        if name == "correlation_id":
            if type(value) is not str or not value or not value.isascii():
                return None
        elif name == "event_data":
            value = _usual_data(_data_of(model), value)
            if value is None:
                return None
        elif name == "spec_version":
            if type(value) is not int or value < 1:
                return None
        elif name is None or type(value) is not str:
            return None
        if name in names:
            return None
        names.add(name)
        values[name] = value
    if not shape.required <= names:
        return None
    return assemble(model, values, names)


def _usual_data(model: type[EventData], wire: object) -> EventData | None:
    if type(wire) is not dict:
        return None
    blank, required, fields = _shape(model)
    values = {**blank}
    names: set[str] = set()
    for key, value in wire.items():
        field = fields.get(key)
        if field is None:
            return None
        name, kinds, is_payload = field
        kind = type(value)
        if kind not in kinds:
            if not is_payload or not is_plain(value):
                return None
        elif kind is datetime:
            if value.tzinfo is not UTC or value.microsecond % 1000:
                return None
        elif kind is str and not is_payload and not value.isascii():
            return None
        if name in names:
            return None
        names.add(name)
        values[name] = value
    return assemble(model, values, names, {}) if required <= names else None
