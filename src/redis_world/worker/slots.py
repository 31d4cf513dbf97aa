"""How many messages may be in work at a time."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Slots"]


class Slots:
    """How many more messages may be in work: taken and given many at a time."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[Callable[[], None], None] = {}

    def take(self, most: int) -> int:
        """Take all that are free right now, at most so many."""
        taken = min(self._free, most)
        self._free -= taken
        return taken

    def call_when_free(self, callback: Callable[[], None]) -> None:
        """Call back when some are given back; whoever asks again goes behind all others."""
        if self._free:
            callback()
        else:
            self._waiting[callback] = None

    def give(self, count: int) -> None:
        """Give some back."""
        self._free += count
        if self._free:
            waiting, self._waiting = self._waiting, {}
            for callback in waiting:
                callback()
