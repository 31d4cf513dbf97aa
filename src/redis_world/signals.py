"""Signals, borrowed for as long as something runs that stops at them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

__all__ = ["STOPPING", "stopped_by_signals"]

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
"""Those that ask a process to end."""

_stops: Final[defaultdict[int, list[Callable[[], object]]]] = defaultdict(list)
"""What stops at a signal now. The main thread's alone, as signals are."""
_borrowed_from: Final[dict[int, Any]] = {}


@contextlib.contextmanager
def stopped_by_signals(
    stop: Callable[[], object], numbers: Sequence[signal.Signals] = STOPPING
) -> Iterator[None]:
    """Let signals call `stop` for the length of a block, and nothing else.

    Whatever is in such a block is stopped by one signal. Behind the last one the handlers
    of before are there again. Those of an event loop are called all the same, since its signals
    reach it on another way.

    Only the main thread can take signals: in another one, this does nothing.

    Args:
        stop: called in the main thread between any two instructions.
        numbers: the signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in numbers:
        if not _stops[number]:
            _borrowed_from[number] = signal.signal(number, _stop_all)
        _stops[number].append(stop)
    try:
        yield
    finally:
        for number in numbers:
            _stops[number].remove(stop)
            if not _stops[number]:
                handler = _borrowed_from.pop(number)
                # None is one that Python does not know, and can't put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _stop_all(number: int, _: object) -> None:
    for stop in _stops[number]:
        stop()
