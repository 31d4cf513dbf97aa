"""Whether two Worlds answer alike: all but the ids that each makes for itself."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, Final

from redis_world.models import BatchItemResult, BatchResult, EventResult, Model, Page

_MESSAGE_ID: Final = re.compile(r"msg_[0-9A-Z]{26}")
_OWN: Final = {"receipt", "requestedAt"}
"""What each World makes for itself, and says nothing by."""
_ERROR_FIELDS: Final = ("status", "code", "reason", "retry_after", "entity_id")


class Matching:
    """Holds answers against each other; remembers which message id stands for which."""

    def __init__(self) -> None:
        self._forth: dict[str, str] = {}
        self._back: dict[str, str] = {}

    def check(self, expected: Any, actual: Any, path: str) -> None:
        """Fail where the actual answer is not the expected one; `path` says where that is."""
        same_type = type(actual) is type(expected) or (
            # A generic model has a class for every parameter.
            isinstance(actual, Page) and isinstance(expected, Page)
        )
        assert same_type, f"{path}: expected {expected!r}, is {actual!r}"
        match expected:
            case BaseException():
                self._check_error(expected, actual, path)
            case EventResult() if actual.has_more:
                self._check_first_page(expected, actual, path)
            case BatchItemResult():
                # The text is for people.
                for name in {*type(expected).model_fields} - {"message"}:
                    self.check(getattr(expected, name), getattr(actual, name), f"{path}.{name}")
            case EventResult() | Page() | BatchResult():
                for name in type(expected).model_fields:
                    self.check(getattr(expected, name), getattr(actual, name), f"{path}.{name}")
            case Model():
                self.check(expected.to_wire(), actual.to_wire(), path)
            case dict():
                assert set(actual) == set(expected), f"{path}: expected {expected}, is {actual}"
                for key in expected.keys() - _OWN:
                    self.check(expected[key], actual[key], f"{path}[{key!r}]")
            case list() | tuple():
                assert len(actual) == len(expected), f"{path}: expected {expected}, is {actual}"
                for i, pair in enumerate(zip(expected, actual, strict=True)):
                    self.check(*pair, f"{path}[{i}]")
            case str():
                self._check_text(expected, actual, path)
            case _ if is_dataclass(expected):
                for name in {each.name for each in fields(expected)} - _OWN:
                    self.check(getattr(expected, name), getattr(actual, name), f"{path}.{name}")
            case _:
                assert actual == expected, f"{path}: expected {expected!r}, is {actual!r}"

    def _check_error(self, expected: BaseException, actual: BaseException, path: str) -> None:
        for name in _ERROR_FIELDS:
            what, found = getattr(expected, name, None), getattr(actual, name, None)
            self.check(what, found, f"{path}: {expected!r} and {actual!r}: {name}")

    def _check_first_page(self, expected: EventResult, actual: EventResult, path: str) -> None:
        """A preload may be a part of the log, with the cursor behind it."""
        assert actual.events is not None
        assert expected.events is not None
        cut = expected.events[: len(actual.events)]
        cursor = f"eid:{cut[-1].event_id}"
        page = expected.model_copy(update={"events": cut, "cursor": cursor, "has_more": False})
        self.check(page, actual.model_copy(update={"has_more": False}), path)

    def _check_text(self, expected: str, actual: str, path: str) -> None:
        """Texts are equal but for message ids, each of which always stands for the same one."""
        ids = _MESSAGE_ID.findall(expected), _MESSAGE_ID.findall(actual)
        texts = _MESSAGE_ID.sub("msg", expected), _MESSAGE_ID.sub("msg", actual)
        assert texts[0] == texts[1], f"{path}: expected {expected!r}, is {actual!r}"
        for one, other in zip(*ids, strict=True):
            stands_for = self._forth.setdefault(one, other), self._back.setdefault(other, one)
            assert stands_for == (other, one), (
                f"{path}: expected the message {self._forth[one]} ({one}), is {other}"
            )
