"""Signals that end a process while a bench runs: it stops, and removes what it has written."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from types import TracebackType
from typing import Final, Self

from redis_world.signals import STOPPING, stopped_by_signals

__all__ = ["Interrupts"]

_SIGNALS: Final = (*STOPPING, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else ()))
"""The last one is that of a terminal that is closed; not all systems have it."""


class Interrupts:
    """The first signal cancels the running task, the other ones change nothing.

    Else the second Ctrl-C of an impatient user would end the removal, and leave the namespace.
    A context manager, to be used in the task.
    """

    def __init__(self) -> None:
        interrupt = partial(asyncio.get_running_loop().call_soon_threadsafe, self._interrupt)
        self._borrowed = stopped_by_signals(interrupt, _SIGNALS)
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
        self._borrowed.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._borrowed.__exit__(exc_type, exc, traceback)
