"""The protocol of tokens, from which one rule was taken away."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Final
from unittest import mock

import redis_world.hooks
import redis_world.tokens
from redis_world.lua import ScriptLibrary
from support.simulation_mutants import Mutant

__all__ = ["MUTANTS", "TokenMutant"]

Change = tuple[str, str]
"""A text that is there exactly once, and what takes its place."""


@dataclass(frozen=True, slots=True)
class TokenMutant:
    """One rule less.

    Attributes:
        seed: of a simulation that finds it, with two partitions
        steps: within so many steps, and the end behind them.
        says: what the simulation says of it, among other things.
        script: a file of the scripts, and the change in it.
        protocol: a change in `redis_world.tokens`.
        reader: a change in `redis_world.hooks`.
        favoured: calls that happen more often there.
        patience: how many turns a client may have there.
    """

    seed: int
    steps: int
    says: str
    script: tuple[str, str, str] | None = None
    protocol: Change | None = None
    reader: Change | None = None
    favoured: tuple[str, ...] = ()
    patience: int = 600

    def library(self) -> ScriptLibrary:
        """The scripts, on a manual clock."""
        changes = (self.script,) if self.script else ()
        return Mutant(changes, self.seed, self.steps, self.says).library()

    def tokens(self) -> ModuleType:
        """The protocol."""
        return _changed(redis_world.tokens, self.protocol)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Let all Worlds look for the holder of a token in its way."""
        holder = _changed(redis_world.hooks, self.reader).Hooks._holder
        with mock.patch.object(redis_world.hooks.Hooks, "_holder", holder):
            yield


def _changed(module: ModuleType, change: Change | None) -> ModuleType:
    """A copy of a module with another text."""
    text = inspect.getsource(module)
    if change is not None:
        old, new = change
        assert text.count(old) == 1, f"{module.__name__} has {text.count(old)} times {old!r}"
        text = text.replace(old, new)
    copy = ModuleType(module.__name__)
    copy.__file__ = module.__file__
    exec(compile(text, f"<{module.__name__} changed>", "exec"), copy.__dict__)
    return copy


TWO: Final = "has two live hooks"
LOST: Final = "and its record names"
FALSE: Final = "which had no live hook"

_RELEASE: Final = """\
                if replies[0][0] != b"OK":
                    mine = _Holder(run_id, hook_id, reply[1].decode())
                    await _release(connection, of_token, hashed, mine, alive=False)
"""

MUTANTS: Final[dict[str, TokenMutant]] = {
    "the number does not rise": TokenMutant(
        2, 100, "goes on for ever",
        script=("lib/token", "tostring(redis.call('INCR', numbers))", "'1'"),
        favoured=("again",), patience=80,
    ),
    "whoever holds a token by now loses it": TokenMutant(
        9, 120, TWO,
        script=(
            "tokens/reserve", "is_same(token, dead_run, dead_hook, dead_number)", "true"
        ),
    ),
    "a record that was renewed is taken over": TokenMutant(
        14, 100, TWO,
        script=(
            "tokens/reserve", "is_same(token, dead_run, dead_hook, dead_number)",
            "record[1] == dead_run and record[2] == dead_hook",
        ),
        favoured=("again",),
    ),
    "what is said to be dead is not fenced off": TokenMutant(
        12, 250, TWO,
        script=("tokens/probe", "redis.call('HSET', claims, fence, number)\n", ""),
    ),
    "what pends is taken for dead": TokenMutant(
        5, 60, TWO,
        protocol=('if state == b"DEAD":', 'if state != b"LIVE":'),
    ),
    "the fence lets its own number through": TokenMutant(
        12, 250, LOST,
        script=(
            "events/hook_created",
            "tonumber(revoked) >= tonumber(detail)",
            "tonumber(revoked) > tonumber(detail)",
        ),
    ),
    "the fence lets everybody through": TokenMutant(
        12, 250, LOST,
        script=("events/hook_created", "if revoked and", "if false and"),
    ),
    "a retained hook counts as dead": TokenMutant(
        9, 100, LOST,
        script=(
            "tokens/probe",
            "if hook_state(base, run_id, hook_id, now()) then",
            "local _, is_open = hook_state(base, run_id, hook_id, now())\nif is_open then",
        ),
        favoured=("end",),
    ),
    "a record is deleted, whoever holds it by now": TokenMutant(
        7, 100, LOST,
        script=("tokens/release", "elseif is_same(token, run_id, hook_id, number) then", "else"),
    ),
    "a record that was renewed is deleted": TokenMutant(
        22, 80, LOST,
        script=(
            "tokens/release", "is_same(token, run_id, hook_id, number)",
            "is_same(token, run_id, hook_id, redis.call('HGET', token, 'r'))",
        ),
        favoured=("again", "sweep"),
    ),
    "every old reservation counts as dead": TokenMutant(
        1, 140, LOST,
        protocol=('revoke=True) == b"LIVE"', 'revoke=True) == b"NEVER"'),
    ),
    "whoever is refused frees the token": TokenMutant(
        0, 220, LOST,
        protocol=(
            'if replies[0][0] != b"REVOKED":\n',
            'if replies[0][0] != b"REVOKED":\n' + _RELEASE,
        ),
    ),
    "nobody's time is ever over": TokenMutant(
        0, 60, "reservations has",
        protocol=("_GRACE_MS: Final = 3000", "_GRACE_MS: Final = 10**12"),
    ),
    "a hook with another token is the holder": TokenMutant(
        10, 100, FALSE,
        script=("tokens/probe", "held == token_hash and 'LIVE' or 'DEAD'", "'LIVE'"),
    ),
    "a reader takes a hook with another token": TokenMutant(
        12, 70, "and a reader got LiveHook",
        reader=("if hook.token == token:", "if hook.token:"),
    ),
    "a record is enough for a conflict": TokenMutant(
        0, 60, FALSE,
        protocol=(
            "state = await _probe(connection, holder, hashed, revoke=int(reply[4]) > _GRACE_MS)",
            'state = b"LIVE"',
        ),
    ),
    "a token is reserved for a run that is not there": TokenMutant(
        7, 400, TWO,
        # Without the check nobody knows the identity of the run: that has to go with it.
        script=("events/hook_created", "run_op ~= identity", "false"),
        protocol=(
            'replies = await create("check", "", "")',
            'replies: Any = [[b"UNRESERVED", b"-"]]',
        ),
        favoured=("create_run", "early"),
    ),
    "a hook that goes leaves no note": TokenMutant(
        5, 400, "is left, and it has no live hook",
        script=(
            "lib/hook",
            "redis.call('ZADD', releases_key(base),",
            "redis.call('ZREM', releases_key(base),",
        ),
    ),
}  # fmt: skip
