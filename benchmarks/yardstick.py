"""How fast the machine is at a moment: what figures of different days have to be held against."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["yardstick"]

_TURNS: Final = 100_000


def yardstick() -> float:
    """Milliseconds of processor time that a fixed piece of Python takes just now."""
    table: dict[int, str] = {}
    begun = time.process_time()
    for number in range(_TURNS):
        table[number & 0xFF] = str(number)
    return (time.process_time() - begun) * 1000
