"""What a real server has been asked for, by its own count."""

from __future__ import annotations

from collections import Counter
from typing import Any

import redis

__all__ = ["Counts"]

_OF_SCRIPTS = ("evalsha", "eval")


class Counts:
    """Counts commands from now on; those that scripts call, too."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._before = self._read()

    def commands(self) -> Counter[str]:
        """Commands by name, without those that ask for this."""
        return self._read() - self._before

    def scripts(self) -> int:
        """How many scripts were called."""
        commands = self.commands()
        return sum(commands[name] for name in _OF_SCRIPTS)

    def _read(self) -> Counter[str]:
        stats: Any = self._client.info("commandstats")
        counts = Counter({key[8:]: int(each["calls"]) for key, each in stats.items()})
        del counts["info"]
        return counts
