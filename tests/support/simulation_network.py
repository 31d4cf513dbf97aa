"""A network that loses requests and replies when it is told to, and sees what the server ran."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from unittest.mock import patch

import redis.asyncio
import redis.exceptions

from redis_world.connection import sender
from redis_world.lua import Script, ScriptLibrary

__all__ = ["Execution", "Loss", "Network"]

Loss = Literal["reply", "request"]
"""What is lost of a call: then it is sent again, and the server may have run it already."""

_EVALSHA: Final = b"EVALSHA"


@dataclass(frozen=True, slots=True)
class Execution:
    """A script that the server has run, whether or not its caller knows."""

    script: str
    keys: dict[str, bytes]
    args: dict[str, bytes]
    tail: list[str]
    """What was sent for the variadic last argument."""
    reply: list[Any]

    @property
    def status(self) -> str:
        return str(self.reply[0].decode())

    @property
    def run_id(self) -> str:
        """The run of an event's script."""
        return self.keys["run"].rpartition(b"run:")[2].decode()

    def text(self, name: str) -> str:
        return self.args[name].decode()


@dataclass
class _Plan:
    """What is lost next, what others do meanwhile, and what was run of it."""

    losses: list[Loss | None] = field(default_factory=list)
    meanwhile: Callable[[], Awaitable[None]] | None = None
    first: Execution | None = None


class Network:
    """Stands between all Worlds of the process and their servers.

    Args:
        library: the scripts of the World that is watched; other scripts pass unseen.
        watch: is told of everything that the server has run, in order.
    """

    def __init__(self, library: ScriptLibrary, watch: Callable[[Execution], None]) -> None:
        self._scripts = {script.sha.encode(): script for script in library}
        self._watch = watch
        self._plan = _Plan()
        self._failure: Exception | None = None
        self.lost = 0
        """How many calls have lost a request or a reply."""

    @property
    def first(self) -> Execution | None:
        """The first execution of the call that lost something, since `plan`."""
        return self._plan.first

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Be the network of this process."""
        original = sender.round_trip

        async def round_trip(
            client: redis.asyncio.Redis, commands: Sequence[sender.Command], *packed: Any
        ) -> list[sender.Reply]:
            return await self._pass(original, client, commands, *packed)

        # Nobody waits for the next try: nothing is overloaded here.
        with (
            patch.object(sender, "round_trip", round_trip),
            patch.object(sender, "_FIRST_PAUSE", 0.0),
        ):
            yield

    def plan(
        self,
        losses: Sequence[Loss | None],
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Lose these, one per round trip of scripts from now on; None is a round trip unharmed.

        `meanwhile` is what others do between the first loss and the resend.
        """
        self._plan = _Plan([*losses], meanwhile)

    async def _pass(
        self,
        original: Callable[..., Awaitable[list[Any]]],
        client: redis.asyncio.Redis,
        commands: Sequence[sender.Command],
        *packed: Any,
    ) -> list[Any]:
        known = {
            place: self._scripts[command[1]]
            for place, command in enumerate(commands)
            if command[0] == _EVALSHA and command[1] in self._scripts
        }
        # Calls at a time share a plan, and one may still be under way when others act meanwhile.
        plan = self._plan
        loss = plan.losses.pop(0) if known and plan.losses else None
        if loss == "request":
            await self._lose(plan)
        replies = await original(client, commands, *packed)
        for place, script in known.items():
            if isinstance(replies[place], list):
                done = _execution(script, commands[place], replies[place])
                if loss is not None and plan.first is None:
                    plan.first = done
                with self._remembering():
                    self._watch(done)
        if loss == "reply":
            await self._lose(plan)
        return replies

    async def _lose(self, plan: _Plan) -> None:
        self.lost += 1
        meanwhile, plan.meanwhile = plan.meanwhile, None
        if meanwhile is not None:
            self._plan = _Plan()
            with self._remembering():
                await meanwhile()
            self._plan = plan
        raise redis.exceptions.ConnectionError("lost by the simulation")

    @contextlib.contextmanager
    def _remembering(self) -> Iterator[None]:
        """Keep what fails here for `check`: the World would take it for trouble of the call."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised by `check`
            self._failure = self._failure or error

    def check(self) -> None:
        """Raise what failed inside of a call."""
        if self._failure is not None:
            raise self._failure


def _execution(script: Script, command: sender.Command, reply: list[Any]) -> Execution:
    """A call, by the names of its script's header."""
    row = [_bytes(value) for value in command[3:]]
    names = list(script.args)
    if script.resend_at is not None:
        names.insert(script.resend_at - 1 - len(script.keys), "resend")
    keys, args = row[: len(script.keys)], row[len(script.keys) :]
    return Execution(
        script.name,
        dict(zip(script.keys, keys, strict=True)),
        dict(zip(names, args, strict=False)),
        [value.decode() for value in args[len(names) :]],
        reply,
    )


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
