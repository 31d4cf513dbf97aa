"""The words of `redis-world doctor --plan`: `steps=10 payload=4KB runs_per_day=100000`."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ByteSize, TypeAdapter, ValidationError

from redis_world.checkup.capacity import MAX_PARTITIONS, Plan

__all__ = ["PARAMETERS", "Parameter", "PlanError", "parse_plan"]

_NUMBER: Final = re.compile(r"-?[0-9]+(?:[_,][0-9]{3})*(?:\.[0-9]+)?(?:e[0-9]{1,3})?")
_DURATION: Final = re.compile(rf"({_NUMBER.pattern}) ?(ms|s|m|h|d|w)")
_SIZE: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)? ?(?:[kmgtp]i?)?b?", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_YEAR: Final = 365 * 86_400.0


class PlanError(ValueError):
    """A plan has a wrong word; the text has the word and how to write it."""


def _number(text: str) -> float | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    return float(text.replace(",", "").replace("_", ""))


def _whole(text: str) -> float | None:
    number = _number(text)
    if number is None or math.isinf(number):
        return number
    return number if number == int(number) else None


def _size(text: str) -> float | None:
    if _SIZE.fullmatch(text) is None:
        return None
    sign = -1 if text.startswith("-") else 1
    try:
        return float(sign * TypeAdapter(ByteSize).validate_python(text.removeprefix("-")))
    except (ValidationError, OverflowError):
        return None


def _seconds(text: str) -> float | None:
    found = _DURATION.fullmatch(text)
    number = None if found is None else _number(found[1])
    return None if found is None or number is None else number * _SECONDS[found[2]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One name of a plan.

    Attributes:
        read: gives the value; None where the text is none of its kind.
        form: what such a value is called.
        example: of it.
        most: the largest value.
        least: the smallest one.
        above: the value must be more than `least`.
        is_whole: whether the value is an int.
    """

    read: Callable[[str], float | None]
    form: str
    example: str
    most: float
    least: float = 0
    above: bool = False
    is_whole: bool = False


def _count(example: str, most: float) -> Parameter:
    return Parameter(_number, "a number", example, most)


def _several(example: str, most: float) -> Parameter:
    return Parameter(_whole, "a whole number", example, most, least=1, is_whole=True)


PARAMETERS: Final[dict[str, Parameter]] = {
    "runs_per_day": Parameter(_number, "a number", "100000", 1e12, above=True),
    "steps": _count("10", 25_000),
    "payload": Parameter(_size, "a size", "4KB", 64 * 2**20),
    "hooks": _count("1", 25_000),
    "sleeps": _count("1", 25_000),
    "streams": _count("1", 10_000),
    "chunks": _count("100", 1e7),
    "chunk": Parameter(_size, "a size", "1KB", 64 * 2**20),
    "peak": Parameter(_number, "a number", "3", 1e6, least=1),
    "retention": Parameter(_seconds, "a duration", "30d", 100 * _YEAR, least=60),
    "partitions": _several("12", MAX_PARTITIONS),
    "masters": _several("3", MAX_PARTITIONS),
    "workers": _several("4", 1e6),
    "concurrency": _several("32", 1e6),
    "step_time": Parameter(_seconds, "a duration", "200ms", _YEAR),
    "memory": Parameter(_size, "a size", "16GB", 2**50, above=True),
}
"""The names of a plan. The most steps, hooks and sleeps are those of the longest log."""


def parse_plan(words: Iterable[str]) -> Plan:
    """The plan of such words.

    Raises:
        PlanError: a word is wrong, or one is missing.
    """
    values: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign:
            raise PlanError(f"{word!r} is not a word of a plan: write name=value, e.g. steps=10")
        parameter = PARAMETERS.get(name)
        if parameter is None:
            near = difflib.get_close_matches(name, PARAMETERS, 1)
            meant = f"did you mean {near[0]!r}? The names are" if near else "the names are"
            raise PlanError(f"{name!r} is not a name of a plan: {meant} {', '.join(PARAMETERS)}")
        if name in values:
            raise PlanError(f"{name} is given twice: {word!r}. Remove one of them")
        values[name] = _value(name, parameter, text)
    if "runs_per_day" not in values:
        raise PlanError("runs_per_day is missing: add it, e.g. runs_per_day=100000")
    plan = Plan(**values)
    if plan.masters > plan.partitions:
        raise PlanError(
            f"masters={plan.masters} needs at least as many partitions, not {plan.partitions}: "
            f"add partitions={min(4 * plan.masters, MAX_PARTITIONS)}"
        )
    return plan


def _value(name: str, parameter: Parameter, text: str) -> float:
    value = parameter.read(text)
    if value is None:
        raise PlanError(
            f"{name}={text} is not {parameter.form}: write it like {name}={parameter.example}"
        )
    least, most = parameter.least, parameter.most
    if value < least or (parameter.above and value == least):
        bound = f"more than {least:g}" if parameter.above else f"at least {_shown(name, least)}"
        raise PlanError(f"{name}={text} is too small: it must be {bound}")
    if value > most:
        raise PlanError(f"{name}={text} is too large: it must be at most {_shown(name, most)}")
    return int(value) if parameter.is_whole else value


def _shown(name: str, bound: float) -> str:
    """A bound as it is written in a plan."""
    read = PARAMETERS[name].read
    if read is _seconds:
        return f"{bound / 86_400:g}d" if bound >= 86_400 else f"{bound:g}s"
    if read is _size:
        return str(ByteSize(int(bound)).human_readable())
    return f"{bound:,.0f}"
