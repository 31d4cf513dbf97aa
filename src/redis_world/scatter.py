"""Calls to several partitions at a time, some of which may be on a node that hangs.

A call to a node that is frozen takes as long as `retry_timeout`. What can go on with the
other partitions does: it takes what came within a moment, and leaves the rest to go on beside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from redis_world.errors import WorldUnavailableError

__all__ = ["Calls", "complete", "raise_worst"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

GRACE_SECONDS: Final = 0.5
"""How long those that are slower than the first one are waited for."""


class Calls(Generic[K, T]):
    """Calls of one kind in one event loop.

    Args:
        on_late: gets the answer of a call whose caller went on without it, once. Without it,
            whoever asks the same next may have that answer.
    """

    def __init__(self, on_late: Callable[[K, T], None] | None = None) -> None:
        self._on_late = on_late
        self._late: dict[K, set[asyncio.Task[T]]] = {}

    def late(self, key: K) -> set[asyncio.Task[T]]:
        """The calls under way whose callers went on without them."""
        return self._late.get(key, set())

    async def ask(
        self,
        questions: Mapping[K, Callable[[], Coroutine[Any, Any, T]]],
        *,
        limit: float | None = None,
    ) -> dict[K, T | Exception]:
        """Make calls at a time, and wait until one succeeds and a moment longer for the others.

        Without `on_late`, a call that is still under way for an earlier caller is not made again,
        and waited for only until another one succeeds.

        Args:
            questions: a call for each key.
            limit: seconds that it waits at most, whatever succeeds.

        Returns:
            The answers and errors that came. The other calls go on.
        """
        earlier = {
            key: next(iter(self._late[key]))
            for key in questions
            if self._on_late is None and self._late.get(key)
        }
        started = {
            key: asyncio.create_task(call())
            for key, call in questions.items()
            if key not in earlier
        }
        try:
            left = await _first_success({*earlier.values(), *started.values()}, limit)
            if slower := left & {*started.values()}:
                await asyncio.wait(slower, timeout=GRACE_SECONDS)
        except asyncio.CancelledError:
            for key, task in started.items():
                self._leave(key, task)
            raise
        for key, task in started.items():
            if not task.done():
                self._leave(key, task)
        return {
            key: _answer(task)
            for key, task in {**earlier, **started}.items()
            if task.done() and not task.cancelled()
        }

    async def aclose(self, seconds: float) -> None:
        """Wait so long for what is under way, and end the rest."""
        tasks = {task for tasks in self._late.values() for task in tasks}
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=seconds)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    def _leave(self, key: K, task: asyncio.Task[T]) -> None:
        """Go on without a call; also one that has ended in this moment, and nobody has heard."""
        self._late.setdefault(key, set()).add(task)

        def ended(task: asyncio.Task[T]) -> None:
            tasks = self._late[key]
            tasks.remove(task)
            if not tasks:
                del self._late[key]
            if not task.cancelled() and task.exception() is None and self._on_late is not None:
                self._on_late(key, task.result())

        # At once with the next turn of the loop, where it is done already.
        task.add_done_callback(ended)


async def _first_success(tasks: set[asyncio.Task[T]], limit: float | None) -> set[asyncio.Task[T]]:
    """Wait until one succeeds, all have ended, or the time is up; those that have not ended."""
    loop = asyncio.get_running_loop()
    end = None if limit is None else loop.time() + limit
    left = tasks
    while left:
        timeout = None if end is None else end - loop.time()
        done, left = await asyncio.wait(left, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not done or any(not each.cancelled() and each.exception() is None for each in done):
            break
    return left


async def complete(calls: Sequence[Awaitable[T]], what: str = "partitions") -> list[T]:
    """Make all calls at a time and wait for each; raise the worst error after the last of them.

    A bare `gather` raises at the first error, while the others are still at work.
    """
    results: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    raise_worst(results, what)
    return results


def raise_worst(results: Sequence[object], what: str = "partitions") -> None:
    """Raise the error of some results that says most, if there is one.

    One that is not just a lost server is the user's to fix, or a bug.
    """
    errors = [each for each in results if isinstance(each, BaseException)]
    if not errors:
        return
    for error in errors:
        if not isinstance(error, WorldUnavailableError):
            raise error
    if len(errors) == len(results):
        raise errors[0]
    text = f"{len(errors)} of {len(results)} {what} failed: {errors[0]}"
    raise WorldUnavailableError(text) from errors[0]


def _answer(task: asyncio.Task[T]) -> T | Exception:
    error = task.exception()
    if error is None:
        return task.result()
    # An error that is no Exception has ended the loop already.
    return error if isinstance(error, Exception) else RuntimeError(repr(error))
