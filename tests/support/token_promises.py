"""What the answers of calls on hook tokens promise, held against who was alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from redis_world.errors import (
    EntityConflictError,
    HookNotFoundError,
    RunExpiredError,
    RunNotFoundError,
)
from redis_world.models import Hook
from support.token_oracle import NOTHING, Change, LiveHook, Oracle
from support.token_scheduler import Client, Turn

__all__ = ["Promises", "change_of", "place_of", "spell"]

EXPECTED: Final[dict[str, tuple[type[Exception], ...]]] = {
    "create_run": (),
    "hook": (EntityConflictError, RunNotFoundError),
    "dispose": (HookNotFoundError, RunExpiredError, RunNotFoundError),
    "end": (EntityConflictError, RunNotFoundError),
    "sweep": (),
    "prune": (),
    "ask": (HookNotFoundError,),
}
"""The errors that a call may end with; any other is a mistake."""


class Promises:
    """Hears the answers.

    Attributes:
        recorded: hooks that are in the log of their run, as created or as a conflict.
        seen: what hook_created was answered, and how often.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.recorded: set[LiveHook] = set()
        self.seen: Counter[str] = Counter()
        self._oracle = oracle

    def of_creation(self, client: Client, reply: Sequence[bytes]) -> Iterator[str]:
        """Hold what the script of hook_created has answered against it; what is wrong.

        Asked behind the script, not behind the call: its client may never learn of it.
        """
        about, status = client.about, reply[0].decode()
        hook, token = LiveHook(about["run"], about["hook"]), about["token"]
        self.seen[status] += 1
        if status == "OK" and hook not in self._oracle.live[token]:
            yield f"{client.name} was created, and is not alive"
        if status == "TOKEN_TAKEN":
            moments = self._oracle.held_during(token, client.since)
            owner = reply[4].decode()
            if not any(owner == each.run_id for live in moments for each in live):
                yield f"{client.name} conflicts with {owner}, which had no live hook"
        if status in ("OK", "TOKEN_TAKEN"):
            if hook in self.recorded:
                yield f"{client.name} is recorded twice"
            self.recorded.add(hook)
        if status == "CONFLICT" and hook not in self.recorded:
            yield f"{client.name} is refused as a duplicate of nothing"

    def of_call(self, client: Client) -> Iterator[str]:
        """Hold what a call has ended with against it; what is wrong."""
        kind, outcome = client.about["kind"], client.outcome
        if isinstance(outcome, Exception) and not isinstance(outcome, EXPECTED[kind]):
            yield f"{client.name} ended with {outcome!r}"
        if kind == "ask" and not client.crashed:
            found = place_of(outcome) if isinstance(outcome, Hook) else None
            moments = self._oracle.held_during(client.about["token"], client.since)
            if not any(found in live if found else not live for live in moments):
                yield f"{client.name} got {found}, which it was at no moment"


def place_of(hook: Hook) -> LiveHook:
    return LiveHook(hook.run_id, hook.hook_id)


def change_of(turn: Turn) -> Change:
    """What a turn may change."""
    about = turn.client.about
    if turn.pause:
        return Change(lets_time_pass=True)
    if turn.name == "events/hook_created":
        return Change(creates=LiveHook(about["run"], about["hook"]))
    if turn.name == "events/hook_disposed":
        return Change(disposes=LiveHook(about["run"], about["hook"]))
    if about["kind"] == "end":
        return Change(ends=about["run"])
    return NOTHING


def spell(turn: Turn, reply: Any) -> str:
    """A turn for the story: what a script is told of tokens, and what it answers."""
    told = ("phase", "detail", "number", "revoke", "dead_number", "alive", "run_id", "hook_id")
    args = " ".join(f"{name}={turn.args[name]}" for name in told if turn.args.get(name))
    answer = reply[0] if isinstance(reply, list) and reply else reply
    return f"{turn.name} {args} -> {str(answer)[:160]}"
