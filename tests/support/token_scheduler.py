"""Lets many clients take turns, one message to the server at a time, as chance picks them.

Every client is a task. Whatever it sends waits here for its turn, so do its pauses; between two
turns nobody runs. A client may be stopped in front of its turn, or behind it: then its script has
run, and nobody learns of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from redis_world import RedisWorld
from redis_world.errors import WorldError

__all__ = ["Client", "Scheduler", "Turn"]

_CURRENT: ContextVar[Client | None] = ContextVar("client", default=None)
_ASIDE: Final = ("queue/", "runs/finished", "SMEMBERS")
"""What a sweep does besides, which touches neither hooks nor tokens: it takes no turn."""


@dataclass(eq=False)
class Client:
    """One call on a World, from its begin to its end.

    Attributes:
        name: what it does, for the story.
        since: the step of its begin.
        calls: the turns that it has had.
        about: the run, hook and token that it is about, by name.
        outcome: what it returned, or the error of the contract that it got.
    """

    name: str
    since: int
    about: Mapping[str, str]
    calls: int = 0
    outcome: Any = None
    crashed: bool = False
    task: asyncio.Task[None] = field(init=False)


@dataclass(eq=False)
class Turn:
    """One message that waits to be sent, or a pause that waits to end.

    Attributes:
        pace: how soon it is picked, beside others.
    """

    client: Client
    name: str
    args: Mapping[str, Any]
    send: Callable[[], Awaitable[Any]] | None
    pause: float
    pace: float
    done: asyncio.Future[Any]


class Scheduler:
    """Holds back what clients send.

    Attributes:
        waiting: the turns to pick one of.
        clients: those that have not ended.
        pace: gives each turn its own, by the name of the script and its arguments.
    """

    def __init__(self) -> None:
        self.pace: Callable[[str, Mapping[str, Any]], float] = lambda _name, _args: 1
        self.waiting: list[Turn] = []
        self.clients: list[Client] = []
        self._aside: list[Turn] = []

    def adopt(self, world: RedisWorld) -> None:
        """Hold back whatever the clients send through this World."""
        connection: Any = world.connection
        run, execute = connection.run, connection.execute

        async def call_in_turn(
            name: str, words: Sequence[Any], commands: Sequence[Any] = ()
        ) -> Any:
            _, args = connection.script(name).named(words)
            return await self._wait(name, args, lambda: run(name, words, commands))

        async def execute_in_turn(*commands: Sequence[Any]) -> Any:
            return await self._wait(str(commands[0][0]), {}, lambda: execute(*commands))

        connection.run, connection.execute = call_in_turn, execute_in_turn

    async def sleep(self, seconds: float) -> None:
        """A pause of a client, in place of `asyncio.sleep`."""
        await self._wait("sleep", {}, None, seconds)

    async def begin(self, client: Client, work: Callable[[], Awaitable[Any]]) -> None:
        """Start a client; it goes as far as its first turn."""

        async def run() -> None:
            _CURRENT.set(client)
            try:
                client.outcome = await work()
            except WorldError as error:
                client.outcome = error

        client.task = asyncio.create_task(run())
        self.clients.append(client)
        await self._settle()

    async def take(self, turn: Turn) -> Any:
        """Do what a turn is for; its client does not know yet. The answer."""
        self.waiting.remove(turn)
        turn.client.calls += 1
        return await turn.send() if turn.send else None

    async def answer(self, turn: Turn, reply: Any) -> None:
        """Let the client of a turn go on, to its next one or to its end."""
        turn.done.set_result(reply)
        await self._settle()

    async def play(self, client: Client, until: str = "") -> None:
        """Let one client alone go on, to its end or in front of this script.

        `until` is the name of the script, where it has phases with the phase behind a space.
        """
        while not client.task.done():
            turn = next(turn for turn in self.waiting if turn.client is client)
            if until and f"{turn.name} {turn.args.get('phase', '')}".strip() == until:
                return
            await self.answer(turn, await self.take(turn))
        client.task.result()

    async def stop(self, client: Client) -> None:
        """The client is gone; what it has sent is not."""
        client.crashed = True
        client.task.cancel()
        await self._settle()

    def ended(self) -> list[Client]:
        """Clients that have ended since, with whatever they did not expect raised."""
        ended = [client for client in self.clients if client.task.done()]
        self.clients = [client for client in self.clients if not client.task.done()]
        for client in ended:
            if not client.task.cancelled():
                client.task.result()
        return ended

    # -- inside ----------------------------------------------------------------------------

    async def _wait(
        self,
        name: str,
        args: Mapping[str, Any],
        send: Callable[[], Awaitable[Any]] | None,
        pause: float = 0,
    ) -> Any:
        client = _CURRENT.get()
        if client is None:
            return await send() if send else None
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        turn = Turn(client, name, args, send, pause, self.pace(name, args), done)
        place = self._aside if name.startswith(_ASIDE) else self.waiting
        place.append(turn)
        try:
            return await done
        finally:
            # Of a client that was stopped nothing is sent any more.
            if turn in place:
                place.remove(turn)

    async def _settle(self) -> None:
        """Let all clients run until each of them waits for its turn or has ended."""
        # A loop with nothing to run but this task is the only sure sign that nobody goes on:
        # there is no event for it.
        ready: Any = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        while True:
            await asyncio.sleep(0)
            while ready:  # noqa: ASYNC110 - nobody sets an event when nothing is left to run
                await asyncio.sleep(0)
            if not self._aside:
                return
            turn = self._aside.pop(0)
            assert turn.send is not None
            turn.done.set_result(await turn.send())
