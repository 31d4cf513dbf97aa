"""The base of all models: frozen, snake_case in Python, camelCase in the wire format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel

from redis_world.values import plain_moment, shown

__all__ = ["Model", "Payload", "ResolveData", "SortOrder", "Timestamp"]

Payload: TypeAlias = Any
"""Opaque to the World: the bytes of an SDK, or any value that CBOR stores exactly."""

ResolveData: TypeAlias = Literal["all", "none"]
"""`none` leaves the payload fields out of an entity or event."""

SortOrder: TypeAlias = Literal["asc", "desc"]


def _to_timestamp(value: object) -> datetime:
    """Cut to milliseconds, in UTC: no more is stored, and a log must read as it was written."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{shown(value)} is not an ISO 8601 date") from None
    if not isinstance(value, datetime):
        raise ValueError(  # noqa: TRY004 - what pydantic collects
            f"a date must be a datetime or an ISO 8601 string, not a {type(value).__name__}"
        )
    if type(value) is not datetime or value.tzinfo is not UTC:
        # A subclass may override what is asked of it here, as that of a sandbox or of pandas.
        value = plain_moment(value)
        try:
            value = value.astimezone(UTC)
        except OverflowError:
            raise ValueError(f"{shown(value)} must be within the years 1 to 9999 in UTC") from None
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


Timestamp = Annotated[datetime, BeforeValidator(_to_timestamp)]
"""A point in time: aware, UTC, millisecond precision."""


M = TypeVar("M", bound=BaseModel)


@cache
def blank(cls: type[BaseModel]) -> Mapping[str, Any]:
    """All fields of a model in their order, with their defaults; None for those that it needs."""
    return {
        name: None if field.is_required() else field.get_default()
        for name, field in cls.model_fields.items()
    }


@cache
def _aliases(cls: type[BaseModel]) -> tuple[tuple[str, str], ...]:
    """The fields of a model in their order, each with its wire name."""
    return tuple((name, field.alias or name) for name, field in cls.model_fields.items())


_FLAT: Final = frozenset((str, bytes, int, bool, datetime, type(None)))
"""Types of most fields, which the wire has as they are."""


def _to_wire(value: Any) -> Any:
    """A field as the wire has it; payloads as they are."""
    if isinstance(value, Model):
        return value.to_wire()
    if type(value) is list and value and isinstance(value[0], Model):
        return [each.to_wire() for each in value]
    return value


# The slots of a pydantic model, by their own descriptors: a model is frozen, and to look up four
# names for each one takes a third of the time of making it.
_new: Final = object.__new__
_set_values: Final = BaseModel.__dict__["__dict__"].__set__
_set_fields_set: Final = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra: Final = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private: Final = BaseModel.__dict__["__pydantic_private__"].__set__


def assemble(
    cls: type[M],
    values: dict[str, Any],
    fields_set: set[str],
    extra: dict[str, Any] | None = None,
) -> M:
    """A model as pydantic would make it of these, without a look at them.

    Args:
        cls: the model; it has no private attributes.
        values: all of its fields, defaults too. The model keeps this mapping and the next two.
        fields_set: those that are not absent.
        extra: what a model that allows it has besides; None for the others.
    """
    model = _new(cls)
    _set_values(model, values)
    _set_fields_set(model, fields_set)
    _set_extra(model, extra)
    _set_private(model, None)
    return model


class Model(BaseModel):
    """Base of all models. A field that was never set is absent, which differs from None."""

    model_config = ConfigDict(
        frozen=True,
        # No text out of bytes, no number out of text: what is kept whole is not coerced.
        strict=True,
        alias_generator=to_camel,
        # Under its older name, which every pydantic since 2.10 knows: by name and by alias.
        populate_by_name=True,
        serialize_by_alias=True,
        # An input may be a hook's token.
        hide_input_in_errors=True,
    )

    @classmethod
    def trusted(cls, values: dict[str, Any]) -> Self:
        """Make a model of values that are known to be valid, without validating them.

        The World uses it for what it has stored: validation took a tenth of the time of an
        event. Fields that are left out are absent and read as their defaults.
        """
        return assemble(cls, {**blank(cls), **values}, set(values))

    def changed(self, updates: dict[str, Any], absent: Iterable[str] = ()) -> Self:
        """A copy with other values, which are not validated.

        Pydantic's own copy takes four times as long.

        Args:
            updates: fields and their values.
            absent: fields that are absent in the copy.
        """
        values = {**self.__dict__, **updates}
        fields_set = self.__pydantic_fields_set__ | updates.keys()
        for name in absent:
            values[name] = None
            fields_set.discard(name)
        extra = self.__pydantic_extra__
        return assemble(type(self), values, fields_set, None if extra is None else {**extra})

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        """Read a camelCase mapping of the wire format.

        Raises:
            pydantic.ValidationError: the mapping does not match the model.
        """
        return cls.model_validate(data)

    def to_wire(self) -> dict[str, Any]:
        """The camelCase mapping of the wire format, without absent fields.

        Bytes and datetimes stay as they are.
        """
        # Not pydantic's own: it goes through payloads, which may be endless, and its alias
        # settings differ between versions.
        fields_set, values = self.__pydantic_fields_set__, self.__dict__
        wire = {}
        for name, alias in _aliases(type(self)):
            if name in fields_set:
                value = values[name]
                wire[alias] = value if type(value) in _FLAT else _to_wire(value)
        extra = self.__pydantic_extra__
        return {**wire, **extra} if extra else wire
