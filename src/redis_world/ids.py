"""Ids of runs, messages, events and requests (contract, section 2)."""

from __future__ import annotations

import os
import re
import secrets
import threading
from typing import Final

from ulid import ULID

from redis_world.errors import EventNotFoundError, InvalidEventError
from redis_world.requests import current_request
from redis_world.values import shown

__all__ = [
    "MAX_SLOT",
    "RUN_ID_PATTERN",
    "IdFactory",
    "event_id",
    "event_slot",
    "new_request_id",
    "parse_event_id",
    "process_id",
    "run_id_time",
]

RUN_PREFIX: Final = "wrun_"
MESSAGE_PREFIX: Final = "msg_"
EVENT_PREFIX: Final = "evnt_"

_SLOT_WIDTH = 26
RUN_ID_PATTERN: Final = r"wrun_[0-7][0-9A-HJKMNP-TV-Z]{25}"

_RUN_ID = re.compile(RUN_ID_PATTERN)
_EVENT_ID = re.compile(r"evnt_([0-9]{26})")
MAX_SLOT: Final = 2**53
"""No log ever gets there; numbers beyond are not exact everywhere."""


_TIME_BYTES: Final = 6
_RANDOM_BITS: Final = 80
_STEP_BYTES: Final = 6
"""Of the random step between two ULIDs of one millisecond."""

_lock = threading.Lock()
"""Of all factories: a lock that another thread holds at a fork is never freed in the child, so
it is made anew there."""


class IdFactory:
    """Makes ULIDs that rise within one process, also within one millisecond.

    Each has entropy of its own. A process may be copied in the middle of a millisecond, by a fork
    or from a snapshot of its memory, and a copy must not make the ids of the other.
    """

    def __init__(self) -> None:
        self._time = -1
        self._random = 0

    def ulid(self, time_ms: int) -> str:
        """A new ULID of this time, or of the last one's where time stood still or went back.

        On behalf of a caller's request it is the request's, so that a repetition makes it again.
        """
        request = current_request()
        if request is not None:
            rest = request.next_bytes(_RANDOM_BITS // 8)
            return str(ULID.from_bytes(request.time_ms.to_bytes(_TIME_BYTES, "big") + rest))
        with _lock:
            if time_ms > self._time:
                self._begin(time_ms)
            else:
                self._random += 1 + int.from_bytes(os.urandom(_STEP_BYTES), "big")
                if self._random >> _RANDOM_BITS:
                    self._begin(self._time + 1)
            time = self._time.to_bytes(_TIME_BYTES, "big")
            body = time + self._random.to_bytes(_RANDOM_BITS // 8, "big")
        return str(ULID.from_bytes(body))

    def _begin(self, time_ms: int) -> None:
        self._time = time_ms
        # The top bit stays free, so that there is room to count up.
        self._random = secrets.randbits(_RANDOM_BITS - 1)

    def run_id(self, time_ms: int) -> str:
        """A new run id."""
        return RUN_PREFIX + self.ulid(time_ms)

    def message_id(self, time_ms: int) -> str:
        """A new message id."""
        return MESSAGE_PREFIX + self.ulid(time_ms)


def run_id_time(run_id: str) -> int:
    """The time in ms that a run id carries.

    Raises:
        InvalidEventError: it is not `wrun_` and a ULID.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidEventError(f"run_id {shown(run_id)} must be wrun_ followed by a ULID")
    return ULID.from_str(run_id.removeprefix(RUN_PREFIX)).milliseconds


def event_id(slot: int | str | bytes) -> str:
    """The event id of a slot: decimal, padded, so that text order is log order."""
    digits = slot.decode() if isinstance(slot, bytes) else str(slot)
    return EVENT_PREFIX + digits.zfill(_SLOT_WIDTH)


def parse_event_id(text: str) -> int | None:
    """The slot that an event id names, or None when it is no event id."""
    match = _EVENT_ID.fullmatch(text) if isinstance(text, str) else None
    return int(match[1]) if match else None


def event_slot(text: str) -> int:
    """The slot that an event id names.

    Raises:
        EventNotFoundError: no event can have this id.
    """
    slot = parse_event_id(text)
    if not slot or slot > MAX_SLOT:
        raise EventNotFoundError(text)
    return slot


_REQUEST_BYTES: Final = 8
_entropy = os.urandom

_process = secrets.token_hex(5)


def process_id() -> str:
    """An id of this process; a forked child has another one."""
    return _process


def new_request_id() -> str:
    """An id for one request, short because it is stored with what the request wrote.

    Entropy of the kernel for each: whatever a process keeps in its memory, a counter or a pool of
    random bytes, is copied with it, and two copies would take each other's requests for their own.

    On behalf of a caller's request it is made of the request's id: see `request_scope`.
    """
    request = current_request()
    if request is not None:
        return request.next_bytes(_REQUEST_BYTES).hex()
    return _entropy(_REQUEST_BYTES).hex()


def _new_process() -> None:
    global _process, _lock  # noqa: PLW0603 - both are a copy of the parent's
    _process = secrets.token_hex(5)
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_new_process)
