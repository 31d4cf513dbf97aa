"""What all parts of the simulation share."""

from __future__ import annotations

import random
from collections import deque
from datetime import datetime, timedelta
from typing import Final

from ulid import ULID

from redis_world import RedisWorld
from redis_world.codec import to_ms
from redis_world.testing import ManualClock
from support.queue_tools import TOPIC
from support.simulation_network import Network
from support.simulation_promises import Promises

__all__ = ["KEYS", "Stage"]

_NAMES: Final = (f"{TOPIC}orders", f"{TOPIC}bills", "__other_wkf_workflow_orders")
KEYS: Final = ("k1", "k/2")
"""Idempotency keys that messages of all kinds and runs use."""
_SHOWN: Final = 40


class Stage:
    """One World, its clock, the network in front of it, and what was promised.

    Attributes:
        latest: the latest time that the scripts have seen; the clock may be set back.
        run_ids: runs that anybody may send messages to, of which some are not there.
        is_disturbed: whether others may have been at work between a call and its resend.
    """

    def __init__(self, world: RedisWorld, clock: ManualClock, seed: int) -> None:
        self.world = world
        self.clock = clock
        self.random = random.Random(seed)
        self.latest = clock.now
        interval = timedelta(seconds=world.config.sweep_interval)
        self.promises = Promises(lambda: clock.now, lambda: self.latest, interval)
        self.network = Network(world.connection._library, self.promises.watch)
        self.run_ids: list[str] = []
        self.is_disturbed = False
        self._numbers = 0
        self._story: deque[str] = deque(maxlen=_SHOWN)

    @property
    def now(self) -> datetime:
        return self.clock.now

    async def set_clock(self, seconds: float) -> None:
        """Move the clock by so much, back too."""
        self.tell(f"{seconds} s")
        await self.clock.set(self.clock.now + timedelta(seconds=seconds))
        self.latest = max(self.latest, self.clock.now)

    def queue_name(self) -> str:
        return self.random.choices(_NAMES, [2, 1, 1])[0]

    def new_number(self) -> int:
        """A number that nothing else has."""
        self._numbers += 1
        return self._numbers

    def new_run_id(self) -> str:
        """A run id as a client makes it now."""
        made_at = to_ms(self.clock.now).to_bytes(6, "big")
        return f"wrun_{ULID.from_bytes(made_at + self.random.randbytes(10))}"

    def tell(self, text: str) -> None:
        """Add to the story, which is shown when something is wrong."""
        self._story.append(text)

    def story(self) -> str:
        """The end of the story."""
        return "\n  ".join(self._story)
