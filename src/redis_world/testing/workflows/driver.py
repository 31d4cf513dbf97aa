"""Works on whatever is due, in the event loop of a test, without any timer.

A worker polls, holds leases by the clock and backs off in real time. Here one task claims what is
due by the virtual clock. It looks again only when something has changed: a message was sent, a
delivery has ended, the clock was moved. So the test knows when all due work is done: nothing is
left to claim, and no delivery is under way.

A delivery that waits for another run is parked: it goes on only when something else has happened,
so it does not count as work under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Final

from redis_world.ids import new_request_id
from redis_world.messages import Message, run_of, step_of
from redis_world.testing.workflows.errors import StillRunningError, UnknownWorkflowError
from redis_world.testing.workflows.names import called, short
from redis_world.worker import Continuation, Handler, Postpone
from redis_world.worker.delivery import RELEASED, Delivery
from redis_world.worker.leases import Leases
from redis_world.world import RedisWorld

__all__ = ["Driver", "running_loop"]

_LEASE: Final = timedelta(days=36_500)
"""No test moves its clock so far that a lease would end."""
_FOREVER: Final = float("inf")
_BATCH: Final = 100
_UNWIND_SECONDS: Final = 2.0
"""How long cancelled deliveries may take to end."""

_delivered: ContextVar[Message | None] = ContextVar("redis_world_delivered", default=None)


class Driver:
    """Claims and delivers what is due; belongs to the event loop that it is made in.

    Args:
        world: where the messages are.
        handlers: topic -> handler; looked at for each claim.
        time_limit: real seconds in which some delivery has to end.
    """

    def __init__(
        self, world: RedisWorld, handlers: Mapping[str, Handler], *, time_limit: float
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.failures: dict[str, str] = {}
        """Run -> what its latest delivery that failed has raised."""
        self._world = world
        self._handlers = handlers
        self._time_limit = time_limit
        self._id = new_request_id()
        # Never opened: no thread extends these leases, which do not end.
        self._leases = Leases(
            world,
            lease=_LEASE.total_seconds(),
            max_replay=_LEASE.total_seconds(),
            ends_process=False,
            on_blocked=lambda: None,
        )
        self._deliveries: set[Delivery] = set()
        self._parked: dict[str, asyncio.Future[None]] = {}
        """Message -> what wakes its delivery."""
        self._onlookers: set[asyncio.Future[None]] = set()
        self._sleeps: list[int] = []
        """When the parked deliveries that sleep go on."""
        self._stopping: set[str] = set()
        """The steps that were told to stop."""
        self._waiters: set[asyncio.Future[None]] = set()
        self._changed = asyncio.Event()
        self._ended = 0
        """How many deliveries have ended."""
        self._error: BaseException | None = None
        self._task = asyncio.create_task(self._drive(), name="workflow_app")

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way but what waits for something else."""
        return len(self._deliveries) == len(self._parked) and not self._changed.is_set()

    def wake(self) -> None:
        """Look again: something has changed. From any thread."""
        if running_loop() is self.loop:
            self._wake()
            return
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for future in [*self._parked.values(), *self._onlookers]:
            if not future.done():
                future.set_result(None)
        # They are under way again from here on, though they do not run yet.
        self._parked.clear()
        self._onlookers.clear()
        self._changed.set()

    async def settle(self) -> None:
        """Wait until everything that is due has been done.

        Raises:
            StillRunningError: no delivery has ended within the time limit.
            UnknownWorkflowError: nobody has the workflow or the step that a message asks for.
            BaseException: what a step has raised that is no Exception, such as `pytest.fail`.
        """
        waiter = self.loop.create_future()
        self._waiters.add(waiter)
        self._changed.set()
        try:
            while not waiter.done():
                ended = self._ended
                await asyncio.wait(
                    {waiter, self._task},
                    timeout=self._time_limit,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if self._error is not None:
                    raise self._error
                if self._task.done():
                    self._task.result()
                    raise asyncio.CancelledError
                if not waiter.done() and self._ended == ended:
                    raise StillRunningError(self._under_way())
        finally:
            self._waiters.discard(waiter)

    async def next_due(self) -> int | None:
        """When the next message is due, or the next sleep ends, in ms; None for never."""
        moments: list[int] = []
        connection = self._world.connection
        for keys in connection.partitions:
            (topics,) = await connection.execute(("SMEMBERS", keys.topics))
            if not topics:
                continue
            looks = [
                ("ZRANGE", keys.topic(name.decode(), "due"), 0, 0, "WITHSCORES") for name in topics
            ]
            for name, row in zip(topics, await connection.execute(*looks), strict=True):
                if row and name.decode() not in self._handlers:
                    raise UnknownWorkflowError(
                        f"a message of {name.decode()!r} has no handler: no registry of this "
                        "process has this namespace. Import the module that makes its Workflows()"
                    )
                if row:
                    # A pair, or in RESP3 a list of pairs.
                    moments.append(int(row[1] if len(row) > 1 else row[0][1]))
        return min([*moments, *self._sleeps], default=None)

    async def sleep(self, until: int, now: Callable[[], int]) -> None:
        """Park a delivery until a moment, in ms."""
        while now() < until:
            self._sleeps.append(until)
            try:
                await self.park(_FOREVER)
            finally:
                self._sleeps.remove(until)

    def cancelled(self, step_id: str) -> None:
        """A step was told to stop: it is under way until it has, whatever it waits for."""
        self._stopping.add(step_id)
        self.wake()

    @property
    def is_in_delivery(self) -> bool:
        """Whether the caller is a step that this driver has begun, or a replay."""
        return _delivered.get() is not None

    async def park(self, patience: float) -> bool:
        """Wait until something has changed.

        Args:
            patience: real seconds. A delivery waits for longer.

        Returns:
            Whether something has changed.
        """
        message = _delivered.get()
        future = self.loop.create_future()
        if message is None or step_of(message.payload) in self._stopping:
            self._onlookers.add(future)
        else:
            self._parked[message.message_id] = future
            self._changed.set()
        limit = None if message is not None or patience == _FOREVER else patience
        try:
            await asyncio.wait({future}, timeout=limit)
            return future.done()
        finally:
            self._onlookers.discard(future)
            if message is not None and self._parked.get(message.message_id) is future:
                del self._parked[message.message_id]

    def leave(self) -> None:
        """End it from another loop, where its own one does not turn any more, or soon does."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self.loop.call_soon_threadsafe(self._task.cancel)

    async def aclose(self) -> None:
        """Cancel what is under way, and release its messages."""
        self._task.cancel()
        for delivery in self._deliveries:
            delivery.interrupt(RELEASED)
        tasks = [self._task, *(delivery.task for delivery in self._deliveries)]
        await asyncio.wait(tasks, timeout=_UNWIND_SECONDS)
        if not self._task.cancelled():
            self._task.exception()  # whoever waited has it

    # -- inside ----------------------------------------------------------------------------

    async def _drive(self) -> None:
        while True:
            self._changed.clear()
            if await self._claim():
                continue
            if self.is_idle:
                for waiter in self._waiters:
                    if not waiter.done():
                        waiter.set_result(None)
            await self._changed.wait()

    async def _claim(self) -> bool:
        """Begin with what is due; False when nothing is."""
        found = False
        for topic, handler in [*self._handlers.items()]:
            claim = await self._world.queue.claim_batch(
                topic, limit=_BATCH, lease=_LEASE, worker=self._id
            )
            for message in claim.messages:
                self._start(message, handler)
            found = found or bool(claim.messages) or claim.more
        return found

    def _start(self, message: Message, handler: Handler) -> None:
        delivery = Delivery(
            self._world,
            message,
            partial(self._call, handler),
            self._leases,
            ends=_FOREVER,
            is_stopping=lambda: False,
        )
        self._deliveries.add(delivery)
        delivery.task.add_done_callback(partial(self._finished, delivery))

    async def _call(self, handler: Handler, message: Message) -> Continuation | None:
        run_id = run_of(message.payload)
        _delivered.set(message)
        try:
            answer = await handler(
                message.payload,
                attempt=message.attempt,
                queue_name=message.queue_name,
                message_id=message.message_id,
            )
        except Postpone:
            self._error = UnknownWorkflowError(
                f"run {run_id} asks for {called(message)}, which no registry of this process has: "
                "import the module that defines it"
            )
            raise
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.failures[run_id] = f"{type(error).__name__}: {error}"
            raise
        except BaseException as error:
            self._error = error
            raise
        self.failures.pop(run_id, None)
        return answer

    def _finished(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        self._deliveries.discard(delivery)
        self._ended += 1
        if not task.cancelled():
            error = task.exception()
            if error is not None and self._error is None:
                self._error = error
        self._wake()
        if self._error is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _under_way(self) -> str:
        names = sorted(
            called(delivery.message)
            for delivery in self._deliveries
            if delivery.message.message_id not in self._parked
        )
        what = short(names) or "the queue"
        return (
            f"{what} did not finish within {self._time_limit:g} seconds of real time. Only "
            "workflows run on the virtual clock: what a step waits for by itself, such as "
            "asyncio.sleep or a network call, takes its real time. Replace it in the test, for "
            "example by workflow_app.sleep, or raise the limit: "
            "@pytest.mark.workflow_app(time_limit=...)"
        )


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The running loop of asyncio, if there is one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
