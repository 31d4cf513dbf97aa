"""A clock that tests set. It replaces the server's clock in every script."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Final

from redis_world.codec import Duration, from_ms, to_duration_ms, to_ms
from redis_world.lua import ScriptLibrary, script_root
from redis_world.world import RedisWorld

__all__ = ["ManualClock"]

_CLOCK: Final = """\
-- The clock that a test sets; the server's as long as it has not.
local function now()
  local set = redis.call('GET', string.match(KEYS[1], '^{[^}]*}:v%d+:') .. 'clock')
  if set then
    return set
  end
  local time = redis.call('TIME')
  return time[1] .. string.sub(1000000 + time[2], 2, 4)
end
"""


class ManualClock:
    """A clock that stands still until a test moves it.

    Open the World with `library=ManualClock.library()`, then::

        clock = await ManualClock(world).set(datetime(2030, 1, 1, tzinfo=UTC))
        await clock.advance(3600)

    It moves the times that scripts use: delays, leases, `retry_after`, ages of run ids, times of
    entities and events. It does not move timers of the event loop.
    """

    def __init__(self, world: RedisWorld) -> None:
        self._world = world
        self._now = 0
        self.is_set = False
        """Whether it was set: before that the scripts see the server's clock."""

    @staticmethod
    @cache
    def library() -> ScriptLibrary:
        """The package's scripts with this clock; the same object each time."""
        return ScriptLibrary(script_root(), {"lib/clock": _CLOCK})

    @property
    def now(self) -> datetime:
        """The time of the scripts."""
        return from_ms(self._now)

    async def set(self, moment: datetime | None = None) -> ManualClock:
        """Stop the clock at this moment, or at the current time."""
        self._now = to_ms(moment or datetime.now(UTC))
        await self._store()
        return self

    async def advance(self, duration: Duration) -> None:
        """Move the clock forward."""
        self._now += to_duration_ms(duration, "duration")
        await self._store()

    async def _store(self) -> None:
        connection = self._world.connection
        places = [keys.base for keys in connection.partitions]
        places.append(connection.keys.meta.removesuffix("meta"))
        await connection.execute(*(("SET", f"{place}clock", str(self._now)) for place in places))
        connection.observe_server_time(self._now)
        self.is_set = True
