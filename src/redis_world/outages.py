"""Outages: failures that repeat, logged as transitions.

While Redis is away every loop of a process fails, several times a second. The log tells when it
was lost, once a minute that it still is, and after how long it was back.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

__all__ = ["Outage"]

logger = logging.getLogger(__name__)

_REPEAT_SECONDS: Final = 60.0
"""How often an outage that lasts is logged again."""


_outages: Final[weakref.WeakSet[Outage]] = weakref.WeakSet()


class Outage:
    """The outages of one server, as all that use it in this process see them. Thread-safe.

    Claims, sweeps, heartbeats and notifications report to the same object, each under a name, its
    source. The first of them that fails begins the outage, and the first of those that failed
    that succeeds ends it. One that goes on failing while the others succeed is logged once a
    minute, not each time.

    Args:
        where: the server's address; called when there is something to log.
        clock: monotonic time in seconds.

    Attributes:
        where: tells the server's address.
    """

    def __init__(
        self, where: Callable[[], str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.where = where
        self._clock = clock
        self._lock = threading.Lock()
        # Source -> since when it fails.
        self._failing: dict[str, float] = {}
        self._since = 0.0
        self._is_told = False
        self._word_at = 0.0
        _outages.add(self)

    def after_fork(self) -> None:
        """Free the lock in a forked child: a thread of the parent may have held it."""
        self._lock = threading.Lock()

    def failed(
        self,
        source: str,
        error: BaseException | str,
        *,
        what: str = "Redis at",
        meanwhile: str = "",
    ) -> None:
        """Report that a call failed.

        Args:
            source: who called: `claim`, `sweep`, `heartbeat`, `notifications`, ...
            error: why it failed.
            what: what was lost, in front of the address.
            meanwhile: what the process does until it is back, added to that line.
        """
        with self._lock:
            now = self._clock()
            is_new = source not in self._failing
            since = self._failing.setdefault(source, now)
            if not self._is_told and is_new:
                self._since = since
                self._tell(now)
                end = f"; {meanwhile}" if meanwhile else ""
                logger.warning(
                    "lost %s %s: %s%s",
                    what,
                    self.where(),
                    _text_of(error),
                    end,
                    extra={"event": "redis.lost", "source": source, "seconds": 0.0},
                )
            elif now - self._word_at >= _REPEAT_SECONDS:
                if not self._is_told:
                    self._since = since
                self._tell(now)
                seconds = round(now - self._since, 1)
                logger.warning(
                    "still lost after %.0f s: %s %s: %s",
                    seconds,
                    what,
                    self.where(),
                    _text_of(error),
                    extra={"event": "redis.still_lost", "source": source, "seconds": seconds},
                )

    def succeeded(self, source: str) -> None:
        """Report that a call succeeded; cheap while there is no outage."""
        if source not in self._failing:
            return
        with self._lock:
            if self._failing.pop(source, None) is None or not self._is_told:
                return
            now = self._clock()
            self._is_told = False
            self._word_at = now
            seconds = round(now - self._since, 1)
            logger.info(
                "reconnected after %.1f s",
                seconds,
                extra={"event": "redis.reconnected", "source": source, "seconds": seconds},
            )

    def _tell(self, now: float) -> None:
        self._is_told = True
        self._word_at = now


def _after_fork() -> None:
    for outage in [*_outages]:
        outage.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


def _text_of(error: BaseException | str) -> str:
    """The text of an error, whose own `__str__` may raise."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - a log line must not end the loop that it is about
        return type(error).__name__
