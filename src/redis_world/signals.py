"""Signals, borrowed for as long as something runs that stops at them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

__all__ = ["HURRYING", "STOPPING", "stopped_by_signals"]

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
"""Those that ask a process to end."""
HURRYING: Final[tuple[signal.Signals, ...]] = (
    (signal.SIGQUIT,) if hasattr(signal, "SIGQUIT") else ()  # not on Windows
)
"""Those that ask it to end at once."""


@dataclass(eq=False)
class _Stop:
    call: Callable[[], object]
    once: bool
    is_called: bool = False

    @property
    def is_over(self) -> bool:
        """Whether another signal is none of its business."""
        return self.once and self.is_called


_stops: Final[defaultdict[int, list[_Stop]]] = defaultdict(list)
"""What stops at a signal now. The main thread's alone, as signals are."""
_borrowed_from: Final[dict[int, Any]] = {}
_forking: Final = threading.local()
"""The signals that were held back already, in a thread that forks."""


@contextlib.contextmanager
def stopped_by_signals(
    stop: Callable[[], object],
    numbers: Sequence[signal.Signals] = STOPPING,
    *,
    once: bool = False,
) -> Iterator[None]:
    """Let signals call `stop` for the length of a block, and nothing else.

    Whatever is in such a block is stopped by one signal. Behind the last one the handlers
    of before are there again. Those of an event loop are called all the same, since its signals
    reach it on another way. A process that is forked meanwhile has the handlers of before.

    Only the main thread can take signals: in another one, this does nothing.

    Args:
        stop: called in the main thread between any two instructions.
        numbers: the signals.
        once: take one signal only, and pass it on to a handler of before that is the program's
            own, such as a web server's. After it the handlers of before are there again, unless
            another block still wants signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    entry = _Stop(stop, once)
    for number in numbers:
        if number not in _borrowed_from:
            _borrowed_from[number] = signal.signal(number, _stop_all)
        _stops[number].append(entry)
    try:
        yield
    finally:
        for number in numbers:
            # Of a forked process none of it is there any more.
            if entry in _stops[number]:
                _stops[number].remove(entry)
        _give_unwanted_back()


def _stop_all(number: int, frame: Any) -> None:
    called = [entry for entry in _stops[number] if not entry.is_over]
    borrowed = _borrowed_from.get(number)
    for entry in called:
        entry.is_called = True
        entry.call()
    _give_unwanted_back()
    if borrowed is not None and any(entry.once for entry in called):
        _pass_on(borrowed, number, frame)


def _pass_on(handler: Any, number: int, frame: Any) -> None:
    """Call a handler of before, unless it is Python's own or asyncio's."""
    is_default = handler is signal.default_int_handler
    if callable(handler) and not is_default and not _is_of_a_loop(handler):
        handler(number, frame)


def _give_unwanted_back() -> None:
    """Give signals back that no block wants any more."""
    for number in [*_borrowed_from]:
        if all(entry.is_over for entry in _stops[number]):
            _give_back(number, _borrowed_from.pop(number))


def _give_back(number: int, handler: Any) -> None:
    # None is one that Python does not know, and can't put back.
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _before_fork() -> None:
    # Held back until the child has its own handlers: one that came sooner would be the
    # parent's to take, and be lost.
    if _borrowed_from:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*_borrowed_from])


def _after_fork() -> None:
    mask = getattr(_forking, "mask", None)
    if mask is not None:
        _forking.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    """Give a process that was just forked the handlers that its parent had before.

    With those of the parent it would take a signal for its loop, which does not run in the child,
    and live on: `terminate` and `join` of multiprocessing would wait for ever.
    """
    if _borrowed_from:
        _forget()
    _after_fork()


def _forget() -> None:
    # A loop is woken by its signals through a socket, which both processes have by now: a signal
    # of the child would be taken for the parent's. Python does this itself since 3.12.
    signal.set_wakeup_fd(-1)
    for number, handler in _borrowed_from.items():
        if not _is_of_a_loop(handler):
            _give_back(number, handler)
        elif number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        else:
            signal.signal(number, signal.SIG_DFL)
    _borrowed_from.clear()
    _stops.clear()


def _is_of_a_loop(handler: Any) -> bool:
    """Whether a handler is one of asyncio's, for a loop that does not run in a child."""
    function = handler.func if isinstance(handler, partial) else handler
    module = getattr(function, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] == "asyncio"


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=_after_fork_in_child,
    )
