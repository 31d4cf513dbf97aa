"""Where a worker looks for the messages of a topic, and when."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from typing import Final

__all__ = ["Lookout", "look_seconds"]

_LEAST_SECONDS: Final = 3.0
_MOST_SECONDS: Final = 20.0


def look_seconds(partitions: int) -> float:
    """How long a worker sleeps in a partition that no message wakes it for.

    What a lost hint may cost. With more partitions longer, so that an idle worker has about one
    look a second to make, and not more.
    """
    return min(max(_LEAST_SECONDS, float(partitions)), _MOST_SECONDS)


class Lookout:
    """The partitions of a topic: where the worker sleeps, and where it has to look.

    A worker that has found nothing in a partition sleeps there, and the server wakes it for the
    next message. Everywhere else it looks before it rests. Times are those of `time.monotonic`.

    Args:
        channels: the channels of hints, with the partition of each.
    """

    def __init__(self, channels: Mapping[bytes, int]) -> None:
        self._channels = channels
        self._looks = dict.fromkeys(channels.values(), 0.0)
        """Partition -> when to look there."""
        self._missed: set[int] = set()
        """Where to look, and others were told to."""
        self._lost: set[int] = set()
        """Where the last look had no answer."""

    def hear(self, channels: Iterable[bytes]) -> None:
        """Look at once where something was announced."""
        partitions = {self._channels[channel] for channel in channels}
        self._looks.update(dict.fromkeys(partitions, 0.0))
        self._missed -= partitions

    def missed(self, now: float) -> set[int]:
        """Where to look now, if the worker can't: each only once, until it has looked."""
        missed = {*self.due(now)} - self._missed
        self._missed |= missed
        return missed

    def due(self, now: float) -> list[int]:
        """Where to look now."""
        return [partition for partition, at in self._looks.items() if at <= now]

    def next_places(self, now: float, room: int) -> list[int]:
        """Where to look first, with room for so many messages: for two in each partition, or one.

        Not everywhere at once: what is found in one partition may fill the room, and then the
        others would have to be looked at again, and other workers be told of what is there.

        All of them while a partition does not answer: so these are waited for together.
        """
        places = self.due(now)
        most = (room + 1) // 2
        if len(places) <= most or self._lost:
            return places
        return random.sample(places, most)

    def told(self, partitions: Collection[int]) -> None:
        """Others were told of what is left there."""
        self._missed |= {*partitions}

    def looked(
        self, partitions: Collection[int], asleep: Mapping[int, float], now: float, rest: float
    ) -> None:
        """Note a look.

        Args:
            partitions: where.
            asleep: where the worker sleeps, and in how many seconds it looks there again.
            now: when its answer came.
            rest: in how many seconds it looks again at the others.
        """
        # After a look at many at a time each of them gets a time of its own.
        earliest = 0.1 if len(partitions) > 1 else 1.0
        for partition in partitions:
            seconds = asleep.get(partition)
            if seconds is not None:
                seconds *= random.uniform(earliest, 1.0)  # noqa: S311 - guards nothing
            self._missed.discard(partition)
            self._lost.discard(partition)
            self._looks[partition] = now + (rest if seconds is None else seconds)

    def unanswered(self, partitions: Collection[int], now: float, rest: float) -> None:
        """Note that a look had no answer: it is made again in so many seconds."""
        self.looked(partitions, {}, now, rest)
        self._lost |= {*partitions}

    def next_look(self, now: float) -> float:
        """When the next partition is to be looked at, besides those that are already."""
        return min((at for at in self._looks.values() if at > now), default=now + _MOST_SECONDS)
