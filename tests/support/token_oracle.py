"""Who holds which token, by the raw keys of all partitions, and who has held it when.

It knows nothing of scripts: a hook is alive where its hash is there, and its run goes on or its
own retention lies ahead. It is asked after every script and whenever the clock has moved.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import redis

from redis_world.keys import Keys, Partitions
from support.events import TERMINAL

__all__ = ["Change", "LiveHook", "Oracle"]


class LiveHook(NamedTuple):
    """A hook that holds its token."""

    run_id: str
    hook_id: str


class Change(NamedTuple):
    """What the last act was, as far as it may begin or end hooks.

    Attributes:
        creates: the hook that it may have created.
        disposes: the hook that it may have disposed of.
        ends: the run that it may have ended.
        lets_time_pass: whether the retention of any hook may have ended.
    """

    creates: LiveHook | None = None
    disposes: LiveHook | None = None
    ends: str = ""
    lets_time_pass: bool = False


NOTHING: Final = Change()


class Oracle:
    """Looks at the raw keys.

    Args:
        client: a blocking client.
        partitions: of the namespace.
        tokens: all that are ever claimed.
        hook_ids: likewise.
        now: a partition's time in ms.

    Attributes:
        run_ids: the runs to look at.
        statuses: theirs; None where there is none.
        live: the live hooks of every token.
    """

    def __init__(
        self,
        client: redis.Redis,
        partitions: Partitions,
        tokens: Sequence[str],
        hook_ids: Sequence[str],
        now: Callable[[Keys], int],
    ) -> None:
        self.run_ids: list[str] = []
        self.statuses: dict[str, str | None] = {}
        self.live: dict[str, frozenset[LiveHook]] = {token: frozenset() for token in tokens}
        self._client = client
        self._partitions = partitions
        self._tokens = tokens
        self._hook_ids = hook_ids
        self._now = now
        self._past = {token: [(0, frozenset[LiveHook]())] for token in tokens}

    def look(self, step: int, change: Change = NOTHING) -> Iterator[str]:
        """Look at the keys behind a step; what is wrong, a sentence each."""
        before, records = self.live, self._read()
        for token, hooks in self.live.items():
            if hooks != before[token]:
                self._past[token].append((step, hooks))
            yield from self._judge(token, records[token], before[token], change)

    def held_during(self, token: str, since: int) -> list[frozenset[LiveHook]]:
        """The live hooks of a token at each moment since the end of that step."""
        past = self._past[token]
        first = max(i for i, (step, _) in enumerate(past) if step <= since)
        return [hooks for _, hooks in past[first:]]

    def owner(self, token: str) -> LiveHook | None:
        return next(iter(self.live[token]), None)

    def leftovers(self) -> Iterator[str]:
        """What is left of the protocol beside the records of live hooks, a sentence each."""
        known = {keys.token(token) for token in self._tokens for keys in self._partitions}
        for keys in self._partitions:
            for place in (keys.reservations, keys.releases):
                for member in self._client.zrange(place, 0, -1):
                    yield f"{place} has {member!r}"
            for key in self._client.scan_iter(f"{keys.base}token:*", count=1000):
                if key.decode() not in known:
                    yield f"{key!r} is of an unknown token"
        for token in self._tokens:
            place = self._partitions.of(token).token(token)
            if not self.live[token] and self._client.exists(place):
                yield f"the record of {token} is left, and it has no live hook"

    # -- inside ----------------------------------------------------------------------------

    def _judge(
        self,
        token: str,
        record: list[bytes | None],
        before: Collection[LiveHook],
        change: Change,
    ) -> Iterator[str]:
        hooks = self.live[token]
        if len(hooks) > 1:
            yield f"{token} has two live hooks, {sorted(hooks)}"
        for hook in hooks:
            if hook not in before and hook != change.creates:
                yield f"{token}: {hook} came to life by itself"
            if record != [hook.run_id.encode(), hook.hook_id.encode()]:
                yield f"{token}: {hook} is alive, and its record names {record}"
        for hook in before:
            if (
                hook not in hooks
                and hook != change.disposes
                and hook.run_id != change.ends
                and not change.lets_time_pass
            ):
                yield f"{token}: {hook} has lost its life"

    def _read(self) -> dict[str, list[bytes | None]]:
        """Find the live hooks; the owner that each token's record names."""
        places = [*itertools.product(self.run_ids, self._hook_ids)]
        pipeline = self._client.pipeline(transaction=False)
        for run_id in self.run_ids:
            pipeline.hget(self._partitions.of(run_id).of_run(run_id).run, "status")
        for run_id, hook_id in places:
            hook = self._partitions.of(run_id).of_run(run_id).hook(hook_id)
            pipeline.hmget(hook, "token", "token_retention_until")
        for token in self._tokens:
            pipeline.hmget(self._partitions.of(token).token(token), "run", "hook")
        replies: list[Any] = pipeline.execute()

        number = len(self.run_ids)
        found = [None if status is None else status.decode() for status in replies[:number]]
        self.statuses = dict(zip(self.run_ids, found, strict=True))
        live: defaultdict[str, set[LiveHook]] = defaultdict(set)
        for (run_id, hook_id), (token, until) in zip(places, replies[number:], strict=False):
            if token is not None and self._is_alive(run_id, until):
                live[token.decode()].add(LiveHook(run_id, hook_id))
        self.live = {token: frozenset(live[token]) for token in self._tokens}
        return dict(zip(self._tokens, replies[number + len(places) :], strict=True))

    def _is_alive(self, run_id: str, until: bytes | None) -> bool:
        status = self.statuses[run_id]
        if status is None:
            return False
        if status not in TERMINAL:
            return True
        return until is not None and int(until) > self._now(self._partitions.of(run_id))
