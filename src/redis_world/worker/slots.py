"""How many messages may be in work at a time."""

from __future__ import annotations

import asyncio

__all__ = ["Slots"]


class Slots:
    """How many more messages may be in work: taken and given many at a time."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._freed = asyncio.Event()

    async def take(self, most: int) -> int:
        """Wait until one is free, and take all that are, at most so many."""
        while not self._free:
            # Whoever finds none goes behind all others that wait.
            self._freed.clear()
            await self._freed.wait()
        taken = min(self._free, most)
        self._free -= taken
        return taken

    def give(self, count: int) -> None:
        """Give some back."""
        self._free += count
        self._freed.set()
