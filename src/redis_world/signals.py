"""SIGTERM and SIGINT, borrowed for as long as something runs that stops at them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["stopped_by_signals"]

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)

_stops: Final[list[Callable[[], object]]] = []
"""What stops at a signal now. The main thread's alone, as signals are."""
_borrowed_from: Final[dict[signal.Signals, Any]] = {}


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Let SIGTERM and SIGINT call `stop` for the length of a block, and nothing else.

    Whatever is in such a block is stopped by one signal. Behind the last one the handlers
    of before are there again. Those of an event loop are called all the same, since its signals
    reach it on another way.

    Only the main thread can take signals: in another one, this does nothing.

    Args:
        stop: called in the main thread between any two instructions.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        for number in _NUMBERS:
            _borrowed_from[number] = signal.signal(number, _stop_all)
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            for number, handler in _borrowed_from.items():
                # None is one that Python does not know, and can't put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _stop_all(*_: object) -> None:
    for stop in _stops:
        stop()
