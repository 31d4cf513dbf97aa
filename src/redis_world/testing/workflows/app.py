"""`WorkflowApp`: workflows of the Python SDK in a test, with a worker and a clock of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from vercel import workflow as sdk
from vercel.workflow._internal import core, runtime, signature_codec

from redis_world.codec import Duration, from_ms, to_duration_ms, to_ms
from redis_world.errors import ConfigurationError, InvalidInputError
from redis_world.runs import TERMINAL
from redis_world.testing.clock import ManualClock
from redis_world.testing.workflows.driver import Driver, running_loop
from redis_world.testing.workflows.errors import RunNotFinishedError, WorkflowAppError
from redis_world.testing.workflows.run import AppRun
from redis_world.testing.workflows.sdk import AppWorld, installed
from redis_world.testing.workflows.waiting import explain
from redis_world.values import shown
from redis_world.world import RedisWorld

__all__ = ["WorkflowApp"]

P = ParamSpec("P")
T = TypeVar("T")

TIME_LIMIT: Final = 30.0
_HANG_SECONDS: Final = 5.0
"""After how long the SDK's own `return_value` gives up on a run that nothing moves."""

_LOOK_SECONDS: Final = 0.02

_active: WorkflowApp | None = None


class WorkflowApp:
    """Runs workflows of the Python SDK in a test.

    While it is active it is the World of the SDK in this process, and serves all registries that
    the process has loaded. Its worker does whatever is due, in the event loop of the test. Time
    stands still until the test moves it. The pytest fixture `workflow_app` is one of these;
    anywhere else it is an async context manager::

        async with WorkflowApp() as app:
            run = await app.start(checkout, "o-1")
            await app.advance(3600)
            assert await run.return_value() == "charged o-1"

    Args:
        world: a World that was made with `library=ManualClock.library()`. None: an embedded World
            of its own.
        clock: the clock of that World; None: a new one.
        start: the time at which the clock stands first; None: the present.
        time_limit: how many real seconds a call waits for a step that is under way.
        options: of the World of its own; see `WorldConfig`.

    Attributes:
        world: where runs, events, messages and streams are stored. Its own calls do not wait for
            work that is due.
        adapter: what the SDK has as its World.
    """

    def __init__(
        self,
        world: RedisWorld | None = None,
        *,
        clock: ManualClock | None = None,
        start: datetime | None = None,
        time_limit: Duration = TIME_LIMIT,
        **options: Any,
    ) -> None:
        if world is None:
            world = _own_world(options)
        elif world.connection._library is not ManualClock.library():  # noqa: SLF001
            raise ConfigurationError(
                "the world of a WorkflowApp needs the scripts of its clock: "
                "RedisWorld(..., library=ManualClock.library())"
            )
        elif options:
            raise InvalidInputError(
                f"the app is given a world, whose options are set already: {', '.join(options)}"
            )
        if start is not None and (not isinstance(start, datetime) or start.tzinfo is None):
            raise InvalidInputError(f"start is a datetime with a time zone, not {shown(start)}")
        self.world = world
        self._clock = clock or ManualClock(world)
        self._start = to_ms(start or datetime.now(UTC))
        self._time_limit = to_duration_ms(time_limit, "time_limit") / 1000
        self._driver: Driver | None = None
        self._opening = _PerLoop()
        self._moving = _PerLoop()
        self._is_moving = False
        self._stack = contextlib.ExitStack()
        self.adapter = AppWorld(world, self._prepare, self._wake, self._cancelled)

    # -- what tests do -----------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The present of the virtual clock."""
        return self._clock.now if self._clock.is_set else from_ms(self._start)

    async def start(
        self, workflow: core.Workflow[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> AppRun[T]:
        """Start a run, as the SDK's `start` does.

        Raises:
            WorkflowAppError: it is no workflow, or one that no replay can import.
            TypeError: the arguments are not those of the workflow.
            SerializationError: an argument can't be stored.
        """
        self._check(workflow)
        await self._open()
        self.adapter.add(workflow._registry)  # noqa: SLF001 - the one way from it to its registry
        run = await sdk.start(workflow, *args, **kwargs)
        return AppRun(self, run.run_id, run._output_validator)  # noqa: SLF001 - likewise

    async def advance(self, duration: Duration) -> None:
        """Let time pass.

        The clock goes to each moment at which something is due, in order, and stays there until
        all due work is done, also what this work makes due. So sleeps, retries and delays end at
        their own time.

        Args:
            duration: seconds, or a timedelta.

        Raises:
            StillRunningError: a step or a replay took longer than `time_limit`, in real time.
            UnknownWorkflowError: a run asks for what no registry of this process has.
        """
        moved = to_duration_ms(duration, "duration")
        driver = await self._open()
        async with self._moving.lock():
            self._is_moving = True
            try:
                target = to_ms(self.now) + moved
                await driver.settle()
                while (due := await driver.next_due()) is not None and due <= target:
                    await self._move(driver, due)
                await self._move(driver, target)
            finally:
                self._is_moving = False

    async def run_until_idle(self) -> None:
        """Do all work that is due now.

        Raises:
            StillRunningError, UnknownWorkflowError: as of `advance`.
        """
        await (await self._open()).settle()

    async def sleep(self, duration: Duration) -> None:
        """Let a step take virtual time: put it in the place of what takes real time.

        Args:
            duration: seconds, or a timedelta.

        Raises:
            WorkflowAppError: it is not called by a step.
        """
        driver = self._driver
        if driver is None or not driver.is_in_delivery:
            raise WorkflowAppError(
                "workflow_app.sleep is for steps: a test moves the clock by workflow_app.advance"
            )
        until = to_ms(self.now) + to_duration_ms(duration, "duration")
        await driver.sleep(until, lambda: to_ms(self.now))

    async def resume(self, token: str, payload: Any) -> None:
        """Resume the hook that has this token.

        Args:
            token: as the workflow gave it to `wait`.
            payload: the hook, such as `Approval(by="ann")`, or the values of its fields.

        Raises:
            HookNotFoundError: no hook has this token now; a note lists those that there are.
        """
        await self.run_until_idle()
        try:
            if isinstance(payload, sdk.BaseHook):
                await payload.resume(token)
            else:
                await runtime.resume_hook(token, payload)
        except sdk.HookNotFoundError as error:
            hooks = (await self.world.hooks.list()).data
            tokens = ", ".join(repr(hook.token) for hook in hooks if not hook.is_system)
            error.add_note(f"no hook has the token {token!r} now; hooks: {tokens or 'none'}")
            raise

    def run(self, run_id: str, *, type: Any = Any) -> AppRun[Any]:  # noqa: A002 - as the SDK calls it
        """A run by its id, such as one that the tested code has started.

        Args:
            run_id: its id.
            type: of its return value, which is validated.
        """
        codec = signature_codec.TypeCodec(type)
        validator = functools.partial(codec.validate, what=f"the return value of run {run_id}")
        return AppRun(self, run_id, validator)

    async def runs(self, workflow: core.Workflow[..., Any] | None = None) -> list[AppRun[Any]]:
        """The latest 1,000 runs, oldest first, whoever has started them.

        Args:
            workflow: only runs of this one.
        """
        await self.run_until_idle()
        name = None if workflow is None else workflow.workflow_id
        page = await self.world.runs.list(workflow_name=name, limit=1000, resolve_data="none")
        return [self.run(run.run_id) for run in reversed(page.data)]

    # -- its length --------------------------------------------------------------------------

    @contextlib.contextmanager
    def installed(self) -> Iterator[Self]:
        """Be the World and the clock of the SDK for the length of a block.

        Raises:
            WorkflowAppError: another app is active in this process.
        """
        global _active  # noqa: PLW0603 - the SDK's World is one of the process, too
        if _active is not None:
            raise WorkflowAppError(
                "another WorkflowApp is active: the SDK has one World per process. End it first"
            )
        _active = self
        try:
            with installed(self.adapter, lambda: self.now, self._pause):
                yield self
        finally:
            _active = None

    async def aclose(self) -> None:
        """End its worker and close its connections. A later call opens it again."""
        loop = running_loop()
        if loop is None:
            return  # Another library runs the test: nothing can have been opened in there.
        driver, self._driver = self._driver, None
        if driver is not None and driver.loop is loop:
            await driver.aclose()
        elif driver is not None:
            driver.leave()
        await self.world.aclose()

    async def __aenter__(self) -> Self:
        self._stack.enter_context(self.installed())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._stack:
            await self.aclose()

    # -- inside ------------------------------------------------------------------------------

    def failure_of(self, run_id: str) -> str | None:
        """What the latest delivery of a run has raised, where that was no error of the run's."""
        return None if self._driver is None else self._driver.failures.get(run_id)

    async def _open(self) -> Driver:
        loop = running_loop()
        if loop is None:
            raise WorkflowAppError(
                "a WorkflowApp runs on asyncio; with anyio, let the fixture anyio_backend return "
                "'asyncio'"
            )
        driver = self._driver
        if driver is not None and driver.loop is loop:
            return driver
        if _active is not self:
            raise WorkflowAppError("this WorkflowApp is not active: its test has ended")
        async with self._opening.lock():
            driver = self._driver
            if driver is None or driver.loop is not loop:
                if driver is not None:
                    driver.leave()
                await self.world.connection.reopen()
                await self._clock.set(self.now)
                driver = self._driver = Driver(
                    self.world, self.adapter.handlers, time_limit=self._time_limit
                )
        return driver

    async def _move(self, driver: Driver, to: int) -> None:
        if to > to_ms(self.now):
            await self._clock.set(from_ms(to))
            driver.wake()
        await driver.settle()

    def _wake(self) -> None:
        if self._driver is not None:
            self._driver.wake()

    def _cancelled(self, step_id: str) -> None:
        if self._driver is not None:
            self._driver.cancelled(step_id)

    async def _prepare(self) -> None:
        """Have the clock set, and a worker, before the tested code stores anything by itself."""
        if self._driver is None or self._driver.loop.is_closed():
            await self._open()

    async def _pause(self) -> None:
        """Wait with the SDK for the end of a run, until something happens."""
        await self._prepare()
        driver = self._driver
        if driver is None or driver.loop is not asyncio.get_running_loop():
            await asyncio.sleep(_LOOK_SECONDS)  # of another thread
            return
        while not await driver.park(_HANG_SECONDS):
            if driver.is_idle and not self._is_moving:
                raise await self._nothing_moves()

    async def _nothing_moves(self) -> RunNotFinishedError:
        page = await self.world.runs.list(limit=1000, resolve_data="none")
        live = [run for run in page.data if run.status not in TERMINAL]
        texts = [
            await explain(self.world, run, self.now, self.failure_of(run.run_id)) for run in live
        ]
        return RunNotFinishedError(
            live[0].run_id if live else "",
            "the tested code waits for a run that does not end unless the clock moves.\n"
            + "\n".join(texts),
        )

    @staticmethod
    def _check(workflow: object) -> None:
        if not isinstance(workflow, core.Workflow):
            raise WorkflowAppError(
                f"{shown(workflow)} is not a workflow: pass a function that is decorated with "
                "@workflows.workflow"
            )
        if "<locals>" in workflow.qualname:
            raise WorkflowAppError(
                f"{workflow.qualname} is defined inside a function. Each replay imports it "
                f"from its module, {workflow.module}. Define it at the top level of a module"
            )
        if workflow.module == "__main__":
            raise WorkflowAppError(
                f"{workflow.qualname} is defined in the program that was started: no replay can "
                "import it. Define it in a module"
            )


def _own_world(options: dict[str, Any]) -> RedisWorld:
    """An empty embedded World."""
    token = secrets.token_hex(8)
    if "namespace" in options:
        return RedisWorld(f"memory://{token}", library=ManualClock.library(), **options)
    # On one embedded server: to load the scripts into it takes longer than most tests.
    return RedisWorld(
        "memory://workflow-app",
        library=ManualClock.library(),
        namespace=f"test-{token}",
        **options,
    )


class _PerLoop:
    """A lock for the tasks of the running loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def lock(self) -> asyncio.Lock:
        """The lock; a loop that has ended may have left the one before locked."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock
