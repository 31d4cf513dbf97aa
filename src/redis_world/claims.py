"""Claims of several partitions, whatever some of their nodes do (contract, section 7).

A claim takes what it finds within a second. The claim of a slower partition goes on beside, for
up to `retry_timeout`: the next claim delivers what it has leased, or it is released.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from redis_world.errors import WorldError
from redis_world.keys import Keys
from redis_world.messages import Message
from redis_world.scatter import Calls, raise_worst

__all__ = ["CLAIM_SECONDS", "NO_ANSWER", "Claim", "Claims"]

logger = logging.getLogger(__name__)

CLAIM_SECONDS: Final = 1.0
"""How long a claim waits, while nothing comes from those partitions where messages are."""
_RELEASE_SECONDS: Final = 2.0
"""How long messages that came too late lie there for the next claim."""
_CLOSE_SECONDS: Final = 1.0
NO_ANSWER: Final = "no answer yet"

A = TypeVar("A")
Place = tuple[str, int]
"""A topic in a partition."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The messages of a claim, and when to claim again.

    Attributes:
        messages: the leased messages.
        more: whether there are more than one claim returns.
        wait: seconds until the next message or lease is due; None if there is none.
        asleep: the partitions in which a message wakes the worker, with the seconds after which it
            looks there by itself. In all others it has to look before it sleeps.
        told: the partitions in which another worker was told of what this one has no room for.
        lost: the partitions that have not answered.
    """

    messages: list[Message]
    more: bool
    wait: float | None
    asleep: Mapping[int, float] = field(default_factory=dict)
    told: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class _Spare:
    message: Message
    good_until: float
    """Time of the loop until which a good part of its lease is left."""


class _Late(NamedTuple):
    claim: Claim
    good_until: float


class Found(NamedTuple, Generic[A]):
    """The answers of those partitions that gave one, and why the others did not."""

    answers: dict[Keys, A]
    lost: dict[Keys, str]


class Claims:
    """The looks and claims of one event loop.

    Args:
        release: ends the lease of a message that nobody is going to handle.
    """

    def __init__(self, release: Callable[[Message], Awaitable[bool]]) -> None:
        self._release = release
        self._looks: Calls[Place, Any] = Calls()
        self._claims: Calls[Place, _Late] = Calls(self._keep)
        self._spare: dict[str, list[_Spare]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._releasing: set[asyncio.Task[None]] = set()

    def take(self, topic: str, limit: int, worker: str) -> list[Message]:
        """Messages that earlier claims of a worker have leased too late, at most so many.

        Not those of another worker: what it declines is known by the receipt.
        """
        spare = self._spare.get(topic)
        if not spare:
            return []
        now = _now()
        own = [each for each in spare if each.message.receipt.startswith(f"{worker}/")]
        good = [each for each in own if now < each.good_until][:limit]
        for each in good:
            spare.remove(each)
        return [each.message for each in good]

    def is_under_way(self, topic: str, keys: Keys) -> bool:
        """Whether a look or a claim whose caller went on without it has not ended there."""
        place = (topic, keys.number)
        return bool(self._claims.late(place) or self._looks.late(place))

    async def look(
        self,
        topic: str,
        looks: Mapping[Keys, Callable[[], Coroutine[Any, Any, A]]],
        *,
        limit: float | None = None,
    ) -> Found[A]:
        """Look into the partitions, except into those where a claim is still under way.

        Args:
            topic: whose messages.
            looks: a look for each partition.
            limit: seconds that it waits at most.

        Raises:
            WorldError: no partition has answered.
        """
        busy = {keys for keys in looks if self._claims.late((topic, keys.number))}
        free = {keys: look for keys, look in looks.items() if keys not in busy}
        found = await self._ask(self._looks, topic, free, limit) if free else Found({}, {})
        if not free:
            await self._wait_for_any(topic, busy)
        return Found(found.answers, {**found.lost, **dict.fromkeys(busy, NO_ANSWER)})

    async def claim(
        self,
        topic: str,
        claims: Mapping[Keys, Callable[[], Coroutine[Any, Any, Claim]]],
        *,
        lease: float,
    ) -> Found[Claim]:
        """Claim from partitions, at most for a second where the others have nothing.

        Raises:
            WorldError: all claims have failed.
        """
        good_until = _now() + lease / 2

        def with_end(call: Callable[[], Coroutine[Any, Any, Claim]]) -> Any:
            async def claim() -> _Late:
                return _Late(await call(), good_until)

            return claim

        calls = {keys: with_end(call) for keys, call in claims.items()}
        found = await self._ask(self._claims, topic, calls, limit=CLAIM_SECONDS)
        return Found({keys: each.claim for keys, each in found.answers.items()}, found.lost)

    async def whole(self, claiming: Coroutine[Any, Any, Claim]) -> Claim:
        """Claim from the one partition; what comes when the caller was cancelled is released."""
        task = asyncio.create_task(claiming)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._release_whole)
            raise

    def _release_whole(self, task: asyncio.Task[Claim]) -> None:
        if not task.cancelled() and task.exception() is None:
            for message in task.result().messages:
                self._release_soon(message)

    async def aclose(self) -> None:
        """Release what nobody has taken; a claim that hangs is left to its lease."""
        await self._claims.aclose(_CLOSE_SECONDS)
        await self._looks.aclose(0)
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for topic, spare in self._spare.items():
            self._release_spare(topic, [*spare])
        self._spare.clear()
        if self._releasing:
            # A server that hangs has as little time for all of them as for one.
            _, left = await asyncio.wait(self._releasing, timeout=_CLOSE_SECONDS)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    # -- inside ----------------------------------------------------------------------------

    async def _ask(
        self,
        calls: Calls[Place, A],
        topic: str,
        questions: Mapping[Keys, Callable[[], Coroutine[Any, Any, A]]],
        limit: float | None = None,
    ) -> Found[A]:
        places = {(topic, keys.number): keys for keys in questions}
        came = await calls.ask(
            {place: questions[keys] for place, keys in places.items()}, limit=limit
        )
        errors = [each for each in came.values() if isinstance(each, Exception)]
        if len(errors) == len(places):
            raise_worst(errors)
        found: Found[A] = Found({}, {})
        for place, keys in places.items():
            if place not in came:
                found.lost[keys] = NO_ANSWER
            elif isinstance(answer := came[place], Exception):
                found.lost[keys] = str(answer)
            else:
                found.answers[keys] = answer
        return found

    async def _wait_for_any(self, topic: str, busy: Iterable[Keys]) -> None:
        tasks = {task for keys in busy for task in self._claims.late((topic, keys.number))}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        errors = [task.exception() for task in done if not task.cancelled()]
        raise_worst([error for error in errors if error is not None])

    def _keep(self, place: Place, late: _Late) -> None:
        """Keep what was claimed too late for its caller."""
        messages = late.claim.messages
        if not messages:
            return
        logger.info(
            "%d messages were leased too late, kept for the next claim",
            len(messages),
            extra={"event": "claim.late", "topic": place[0], "count": len(messages)},
        )
        spare = [_Spare(message, late.good_until) for message in messages]
        self._spare.setdefault(place[0], []).extend(spare)

        def release() -> None:
            self._timers.discard(timer)
            self._release_spare(place[0], spare)

        timer = asyncio.get_running_loop().call_later(_RELEASE_SECONDS, release)
        self._timers.add(timer)

    def _release_spare(self, topic: str, spare: list[_Spare]) -> None:
        """Release those that nobody has taken meanwhile."""
        kept = self._spare.get(topic, [])
        left = [each for each in spare if each in kept]
        for each in left:
            kept.remove(each)
            self._release_soon(each.message)

    def _release_soon(self, message: Message) -> None:
        task = asyncio.create_task(self._release_one(message))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release_one(self, message: Message) -> None:
        # Without its server it is left to its lease.
        with contextlib.suppress(WorldError):
            await self._release(message)


def _now() -> float:
    # The loop is not kept: who has one of these for each loop could never forget it.
    return asyncio.get_running_loop().time()
