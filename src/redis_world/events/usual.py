"""Events of the usual form, checked key by key.

Nearly every event is a plain dict with plain values under known names. To tell that takes a tenth
of what pydantic takes to validate it, and the model is the same. All others are left to pydantic:
what is wrong, and what is right in another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar, get_args

from pydantic import StrictBool, StrictInt

from redis_world.codec import PLAIN, is_plain
from redis_world.models import BaseEvent, CreateEvent, EventData, Timestamp
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


_Fields = Mapping[str, tuple[str, frozenset[Any], bool]]
"""Either name of a field -> its Python name, its usual types, whether it is a payload."""


class _Shape(NamedTuple):
    """What a model has, and what of it can be checked here.

    Attributes:
        blank: all fields with their defaults.
        required: the fields without one.
    """

    model: type[Any]
    blank: Mapping[str, Any]
    required: frozenset[str]
    fields: _Fields

    @classmethod
    def of(cls, model: type[Model]) -> _Shape:
        """Read a model."""
        infos = model.model_fields.items()
        fields: dict[str, tuple[str, frozenset[Any], bool]] = {}
        for name, info in infos:
            kinds = _KINDS.get(info.annotation)
            if kinds is not None:
                field = (name, kinds, info.annotation is Any)
                fields[name] = fields[info.alias or name] = field
        required = frozenset(name for name, info in infos if info.is_required())
        return cls(model, blank(model), required, fields)


def _data_of(model: type[BaseEvent]) -> type[EventData]:
    """The model of an event's data."""
    found: type[EventData]
    found, _ = get_args(model.model_fields["event_data"].annotation)
    return found


_SHAPES: Final[Mapping[Any, tuple[_Shape, _Shape]]] = {
    model: (_Shape.of(model), _Shape.of(_data_of(model))) for model in get_args(CreateEvent)
}
"""Of each event and its data."""


def usual_event(model: type[E], wire: dict[str, Any]) -> E | None:
    """The model of an event of its type, as pydantic would validate it; None for: ask pydantic."""
    (_, empty, required, _), of_data = _SHAPES[model]
    get = wire.get
    correlation_id, data = get("correlationId"), get("eventData")
    version, event_type = get("specVersion"), get("eventType")
    names = {"event_type"}
    if type(event_type) is not str:
        return None
    if correlation_id is not None:
        if type(correlation_id) is not str or not correlation_id or not correlation_id.isascii():
            return None
        names.add("correlation_id")
    if version is not None:
        if type(version) is not int or version < 1:
            return None
        names.add("spec_version")
    if data is not None:
        data = _usual_data(of_data, data)
        if data is None:
            return None
        names.add("event_data")
    # It may have other keys, or a None that somebody has set.
    if len(wire) != len(names) or not required <= names:
        return None
    values = {**empty}
    values["correlation_id"] = correlation_id
    values["spec_version"] = version
    values["event_data"] = data
    return assemble(model, values, names)


def _usual_data(shape: _Shape, wire: object) -> EventData | None:
    if type(wire) is not dict:
        return None
    model, empty, required, fields = shape
    values = {**empty}
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
    if not required <= names:
        return None
    data: EventData = assemble(model, values, names, {})
    return data
