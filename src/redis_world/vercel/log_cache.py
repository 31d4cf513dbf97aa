"""The logs of the runs that a worker has replayed lately.

A replay reads its log from the beginning, and a log only grows. So a worker keeps what it has
read, as the runtime's own events, and asks for what came since. The last event that it has is read
again with that: where it is another one by now, the run was removed and made again under its id,
and all is read anew. Any worker may still take any run.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vercel.workflow._internal import world as w

from redis_world.events.log import LogMark

__all__ = ["DEFAULT_BYTES", "KeptLog", "LogCache", "weight_of"]

DEFAULT_BYTES: Final = 64 * 1024 * 1024
_EVENT_BYTES: Final = 500
_ITEM_BYTES: Final = 180
"""What an event takes in this process, and each item in it, beside their text and bytes, about."""


@dataclass(frozen=True, slots=True)
class KeptLog:
    """The whole log of a run, up to a mark.

    Attributes:
        events: all of them; nobody changes them.
        mark: the last one, as Redis has it.
        weight: the bytes that they take, about.
    """

    events: Sequence[w.Event]
    mark: LogMark
    weight: int


def weight_of(wire: Mapping[str, Any]) -> int:
    """The bytes that an event takes in this process, about.

    Args:
        wire: the event, as it is sent to others.
    """
    return _EVENT_BYTES + _weight_of(wire)


def _weight_of(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        items: Iterable[object] = value.values()
    elif isinstance(value, list | tuple):
        items = value
    else:
        return 0
    return sum(_ITEM_BYTES + _weight_of(item) for item in items)


class LogCache:
    """Logs by run, those used last, up to so many bytes together; for all threads of a process.

    Args:
        limit: bytes; 0 keeps none.
    """

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        self._limit = limit
        self._logs: OrderedDict[str, KeptLog] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """Bytes that it keeps at most."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._limit = limit
            self._drop_oldest()

    @property
    def weight(self) -> int:
        """Bytes that it keeps, about."""
        return self._bytes

    def get(self, run_id: str) -> KeptLog | None:
        """The log of a run, as far as it was read."""
        with self._lock:
            log = self._logs.get(run_id)
            if log is not None:
                self._logs.move_to_end(run_id)
            return log

    def put(self, run_id: str, log: KeptLog) -> None:
        """Keep a log instead of what is kept of it."""
        with self._lock:
            self._forget(run_id)
            if log.weight <= self._limit:
                self._logs[run_id] = log
                self._bytes += log.weight
                self._drop_oldest()

    def forget(self, run_id: str) -> None:
        """Keep a log no longer: nobody will replay it."""
        with self._lock:
            self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        log = self._logs.pop(run_id, None)
        if log is not None:
            self._bytes -= log.weight

    def _drop_oldest(self) -> None:
        while self._bytes > self._limit:
            _, log = self._logs.popitem(last=False)
            self._bytes -= log.weight
