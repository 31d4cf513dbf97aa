"""Signals that end a process while a bench runs: it stops, and removes what it has written."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from types import TracebackType
from typing import Final, Self

__all__ = ["Interrupts"]

_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The last one is that of a terminal that is closed; not all systems have it."""


class Interrupts:
    """The first signal cancels the running task, the other ones change nothing.

    Else the second Ctrl-C of an impatient user would end the removal, and leave the namespace.
    A context manager, to be used in the task.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._is_held = False

    def hold(self) -> None:
        """Let no signal cancel the task any more."""
        self._is_held = True

    def _interrupt(self) -> None:
        if not self._is_held and self._task is not None:
            self._is_held = True
            self._task.cancel()

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # Elsewhere than in the main thread, and on some systems, a loop can't have them.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                self._loop.add_signal_handler(number, self._interrupt)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number in _SIGNALS:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                self._loop.remove_signal_handler(number)
