"""What is wrong with an event by itself, before any state is looked at (contract, section 5)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from redis_world.codec import PLAIN, is_plain, plain_data
from redis_world.errors import (
    AttributeValidationError,
    InvalidEventError,
    InvalidInputError,
    RunNotSupportedError,
)
from redis_world.events.usual import usual_event
from redis_world.models import (
    AttrSetData,
    AttrSetEvent,
    BaseEvent,
    CreateEvent,
    HookCreatedEvent,
    Model,
    RunCancelledEvent,
    RunCreatedEvent,
    RunStartedEvent,
)
from redis_world.refusals import MAX_ATTRIBUTES, MIN_SPEC_VERSION, SPEC_VERSION, not_supported
from redis_world.text import MAX_CANCEL_REASON_UNITS, utf16_units
from redis_world.values import shown

__all__ = [
    "MAX_ATTRIBUTES",
    "check_retention_limit",
    "creates_run",
    "parse_event",
    "validate_event",
]


MAX_ATTRIBUTE_KEY_UNITS: Final = 256
MAX_ATTRIBUTE_VALUE_BYTES: Final = 256
MAX_ATTR_SET_BYTES: Final = 8192
RESERVED_PREFIX: Final = "$"

_PROBLEM: Final = 500
"""How much of what is wrong an error tells; keys may be as long as payloads."""
_WORLD_ONLY: Final = ("hook_conflict", "noop")


def parse_event(event: BaseEvent | Mapping[str, Any]) -> CreateEvent:
    """A request as a model, from a model or the wire's mapping.

    Raises:
        InvalidEventError: it is no event that a caller can create; the text says where.
    """
    wire = event if type(event) is dict else _wire(event)
    event_type = wire.get("eventType")
    if event_type is None and "eventType" not in wire:
        event_type = wire.get("event_type")
    model = _MODELS.get(event_type) if isinstance(event_type, str) else None
    if model is None:
        if isinstance(event_type, str) and event_type in _WORLD_ONLY:
            raise InvalidEventError(f"callers can't create {event_type}: only the World writes it")
        raise InvalidEventError(
            f"eventType {shown(event_type)} is unknown: see redis_world.models"
        )
    return usual_event(model, wire) or _plain_event(_validated(model, wire))


def _wire(event: object) -> dict[str, Any]:
    """An event as a mapping, whatever it is."""
    try:
        if isinstance(event, Mapping):
            return dict(event)
        if isinstance(event, BaseEvent):
            # A copy of a model may have been changed into what it must not be.
            wire = {name: getattr(event, name) for name in event.model_fields_set}
            data = wire.get("event_data")
            if isinstance(data, Model):
                wire["event_data"] = data.to_wire()
            return {**wire, "event_type": event.event_type}
    except Exception as error:  # noqa: BLE001 - the classes of others may raise anything
        raise InvalidEventError(f"can't read the event: {shown(str(error))}") from None
    raise InvalidEventError(f"event must be a model or a mapping, not {shown(event)}")


def _validated(model: type[CreateEvent], wire: dict[str, Any]) -> CreateEvent:
    """The model of a mapping, whose values may be of subclasses of what the model takes."""
    kind: type[InvalidInputError] = InvalidEventError
    try:
        try:
            return model.model_validate(wire)
        except ValidationError:
            # Once more with all values plain: a flag of numpy's, a tuple where a list is due.
            return model.model_validate(plain_data(wire, "event"))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        problem = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in found)
        if any({"changes", "attributes"} & set(item["loc"]) for item in found):
            kind = AttributeValidationError
    except InvalidEventError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - the classes of others may raise anything
        problem = str(error)
    name = model.model_fields["event_type"].default
    raise kind(f"{name} is malformed: {problem[:_PROBLEM]}")


def _plain_event(event: CreateEvent) -> CreateEvent:
    """The event with plain values in its data, as it will be read back."""
    data = event.event_data
    if data is None:
        return event
    if PLAIN.issuperset(map(type, data.__dict__.values())) and not data.__pydantic_extra__:
        return event
    # A model within is none of the plain types; only these have some.
    values = data.to_wire() if isinstance(data, AttrSetData) else data.__dict__
    if is_plain(values) and is_plain(data.__pydantic_extra__ or {}):
        return event
    wire = plain_data(data.to_wire(), f"eventData of {event.event_type}")
    return event.changed({"event_data": type(data).model_validate(wire)})


_MODELS: Final[dict[str, type[CreateEvent]]] = {
    model.model_fields["event_type"].default: model for model in CreateEvent.__args__
}


def validate_event(event: CreateEvent) -> None:
    """Check all that can be judged without state.

    Raises:
        AttributeValidationError: attributes break a limit.
        InvalidEventError: anything else is wrong with the event.
        RunNotSupportedError: its spec version is not one that this World reads.
    """
    version = event.spec_version
    if version is not None and version > SPEC_VERSION:
        raise RunNotSupportedError(not_supported(version))
    if event.requires_data and event.event_data is None:
        raise InvalidEventError(f"{event.event_type} needs eventData")
    check = _CHECKS.get(type(event))
    if check is not None:
        check(event)


def _check_creation(event: RunCreatedEvent | RunStartedEvent) -> None:
    version, data = event.spec_version, event.event_data
    if version is not None and version < MIN_SPEC_VERSION:
        raise RunNotSupportedError(not_supported(version))
    assert data is not None
    check_attributes(
        (data.attributes or {}).items(), allow_reserved=data.allow_reserved_attributes is True
    )


def _check_start(event: RunStartedEvent) -> None:
    if creates_run(event):
        _check_creation(event)


def _check_cancellation(event: RunCancelledEvent) -> None:
    reason = event.event_data.cancel_reason if event.event_data else None
    if reason is not None and utf16_units(reason) > MAX_CANCEL_REASON_UNITS:
        raise InvalidEventError(
            f"cancelReason has {utf16_units(reason)} UTF-16 units; "
            f"the limit is {MAX_CANCEL_REASON_UNITS}"
        )


def creates_run(event: RunStartedEvent) -> bool:
    """Whether a run_started carries what a missing run is made of: the keys, "" counts."""
    data = event.event_data
    return (
        data is not None
        and {"deployment_id", "workflow_name", "input"} <= data.model_fields_set
        and data.deployment_id is not None
        and data.workflow_name is not None
    )


def _check_attr_set(event: AttrSetEvent) -> None:
    data = event.event_data
    assert data is not None
    if data.writer.type == "step" and (data.writer.step_id is None or data.writer.attempt is None):
        raise InvalidEventError(
            "attr_set of a step needs writer.stepId and writer.attempt; "
            f"stepId is {shown(data.writer.step_id)}, attempt is {shown(data.writer.attempt)}"
        )
    check_attributes(
        ((change.key, change.value) for change in data.changes),
        allow_reserved=data.allow_reserved_attributes is True,
    )
    try:
        text = json.dumps(data.to_wire(), ensure_ascii=False, separators=(",", ":"), default=str)
    except Exception as error:  # noqa: BLE001 - the classes of others may raise anything
        raise AttributeValidationError(
            f"eventData of attr_set can't become JSON: {shown(str(error))}"
        ) from None
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_ATTR_SET_BYTES:
        raise AttributeValidationError(
            f"eventData of attr_set has {size} bytes of JSON; the limit is {MAX_ATTR_SET_BYTES}"
        )


_CHECKS: Final[dict[type[CreateEvent], Callable[[Any], None]]] = {
    RunCreatedEvent: _check_creation,
    RunStartedEvent: _check_start,
    RunCancelledEvent: _check_cancellation,
    AttrSetEvent: _check_attr_set,
}
"""What else is checked of events of some types."""


def check_attributes(changes: Iterable[tuple[str, str | None]], *, allow_reserved: bool) -> None:
    """Check the attributes of one event against the limits of one event.

    Raises:
        AttributeValidationError: a limit is broken; the text names the key.
    """
    seen: set[str] = set()
    added = 0
    for key, value in changes:
        shown = repr(key[:32])
        units = utf16_units(key)
        if not 1 <= units <= MAX_ATTRIBUTE_KEY_UNITS:
            raise AttributeValidationError(
                f"attribute key {shown} must have 1 to {MAX_ATTRIBUTE_KEY_UNITS} UTF-16 units, "
                f"not {units}"
            )
        if key.startswith(RESERVED_PREFIX) and not allow_reserved:
            raise AttributeValidationError(
                f"attribute key {shown} is reserved: keys that start with {RESERVED_PREFIX!r} "
                "need allowReservedAttributes"
            )
        if key in seen:
            raise AttributeValidationError(f"attribute key {shown} occurs twice in one event")
        seen.add(key)
        if value is not None:
            added += 1
            size = len(value.encode("utf-8", "surrogatepass"))
            if size > MAX_ATTRIBUTE_VALUE_BYTES:
                raise AttributeValidationError(
                    f"the value of attribute {shown} has {size} bytes; "
                    f"the limit is {MAX_ATTRIBUTE_VALUE_BYTES}"
                )
    if added > MAX_ATTRIBUTES:
        raise AttributeValidationError(
            f"{added} attributes in one event; the limit is {MAX_ATTRIBUTES} per run"
        )


def check_retention_limit(event: HookCreatedEvent, now: datetime, limit: timedelta) -> None:
    """Check how far ahead a hook wants to keep its token.

    Raises:
        InvalidEventError: beyond the configured limit.
    """
    until = event.event_data.token_retention_until if event.event_data else None
    if until is not None and until - now > limit:
        raise InvalidEventError(
            f"tokenRetentionUntil is {until - now} ahead; the limit is {limit} "
            "(option hook_retention_limit)"
        )
