"""Processes that make their calls at the same moment."""

from __future__ import annotations

import asyncio
import multiprocessing
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import Any, Final

from redis_world import RedisWorld
from redis_world.errors import EntityConflictError, WorldError
from support import events as e

__all__ = ["Answer", "Call", "Crew"]

_PATIENCE: Final = 30.0
"""Seconds for which a process waits for the others: one of them is dead then."""


@dataclass(frozen=True, slots=True)
class Call:
    """An event that is to be created."""

    run_id: str
    wire: e.Wire
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of it.

    Attributes:
        error: the name of the error's class; "" when there was none.
        reason: of an EntityConflictError.
        slot: the event's; 0 when it was accepted without a new event.
        event_type: of the event that was recorded, or found.
    """

    error: str = ""
    reason: str = ""
    slot: int = 0
    event_type: str = ""


Round = Sequence[Call]
"""One call for each process."""


class Crew:
    """So many processes, each with an event loop and Worlds of its own."""

    def __init__(self, url: str, size: int) -> None:
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(size)
        self._pipes: list[Pipe] = []
        self._processes: list[BaseProcess] = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_live, args=(url, theirs, barrier), daemon=True)
            with warnings.catch_warnings():
                # Threads of the test runner are of no concern to the children.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def race(self, namespace: str, rounds: Sequence[Round]) -> list[list[Answer]]:
        """Let each process make its call of each round, all of a round at once."""
        for place, pipe in enumerate(self._pipes):
            pipe.send((namespace, [calls[place] for calls in rounds]))
        answers = [pipe.recv() for pipe in self._pipes]
        for each in answers:
            assert isinstance(each, list), f"a process has failed: {each}"
        return [list(of_round) for of_round in zip(*answers, strict=True)]

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            # Closing is not enough: the processes behind it have this end too.
            pipe.send(None)
            process.join(_PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
            pipe.close()


def _live(url: str, pipe: Pipe, barrier: Barrier) -> None:
    """The life of a process."""
    with asyncio.Runner() as runner:
        while True:
            job = pipe.recv()
            if job is None:
                return
            namespace, calls = job
            try:
                pipe.send(runner.run(_race(url, namespace, calls, barrier)))
            except Exception as error:  # noqa: BLE001 - told to the parent
                barrier.abort()
                pipe.send(f"{type(error).__name__}: {error}")


async def _race(url: str, namespace: str, calls: Sequence[Call], barrier: Barrier) -> list[Answer]:
    answers = []
    async with RedisWorld(url, namespace=namespace) as world:
        for call in calls:
            barrier.wait(_PATIENCE)
            answers.append(await _make(world, call))
    return answers


async def _make(world: RedisWorld, call: Call) -> Answer:
    try:
        result = await world.events.create(
            call.run_id, call.wire, skip_preload=True, **call.params
        )
    except WorldError as error:
        reason = error.reason if isinstance(error, EntityConflictError) else ""
        return Answer(error=type(error).__name__, reason=reason)
    if result.event is None or result.event.event_id is None:
        return Answer()
    slot = int(result.event.event_id.removeprefix("evnt_"))
    return Answer(slot=slot, event_type=result.event.event_type)
