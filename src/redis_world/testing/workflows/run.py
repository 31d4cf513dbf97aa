"""A run, as a test sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vercel.workflow import Run
from vercel.workflow._internal import serialization as ser

from redis_world.models import Event, Hook, RunStatus, Step, StepStatus
from redis_world.runs import TERMINAL
from redis_world.testing.workflows.errors import RunNotFinishedError
from redis_world.testing.workflows.names import plain_name
from redis_world.testing.workflows.waiting import everything, explain

if TYPE_CHECKING:
    from redis_world.testing.workflows.app import WorkflowApp

__all__ = ["AppRun", "AppStep"]

T = TypeVar("T")


@dataclass(frozen=True)
class AppStep:
    """One step of a run.

    Attributes:
        name: of the function: `charge`.
        status: `pending` before its first attempt and between two of them.
        attempt: how many attempts have begun.
        result: what it returned; None until it has completed.
        error: what its latest failed attempt raised; None after a success.
        stored: the step as the World has it, with its ids and times.
    """

    name: str
    status: StepStatus
    attempt: int
    result: Any
    error: Exception | None
    stored: Step


class AppRun(Run[T], Generic[T]):
    """The SDK's `Run`, for a test.

    Each call first does all work that is due now, so that its answer does not depend on luck.
    `readable` and the other calls of the SDK that are not described here do not.
    """

    def __init__(
        self, app: WorkflowApp, run_id: str, validator: Callable[[Any], T] | None = None
    ) -> None:
        super().__init__(run_id, output_validator=validator)
        self._app = app

    async def return_value(self) -> T:
        """What the workflow returned.

        Raises:
            RunNotFinishedError: the run waits for something; the text says for what.
            WorkflowRunFailedError: the workflow raised an error, which is the `__cause__`.
            RuntimeError: the run was cancelled.
        """
        await self._app.run_until_idle()
        world = self._app.world
        run = await world.runs.get(self.run_id, resolve_data="none")
        if run.status not in TERMINAL:
            text = await explain(world, run, self._app.now, self._app.failure_of(self.run_id))
            raise RunNotFinishedError(self.run_id, text)
        return await super().return_value()

    async def status(self) -> RunStatus:
        """`pending`, `running`, `completed`, `failed` or `cancelled`."""
        await self._app.run_until_idle()
        return await super().status()

    async def attributes(self) -> dict[str, str]:
        """The attributes that the workflow and its steps have set."""
        await self._app.run_until_idle()
        return await super().attributes()

    async def terminate(self, *, reason: str | None = None) -> None:
        """Cancel the run; the workflow does not go on."""
        await self._app.run_until_idle()
        await super().terminate(reason=reason)

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel the run; `terminate` by its usual name."""
        await self.terminate(reason=reason)

    async def events(self) -> list[Event]:
        """The log of the run, with payloads as they are stored."""
        await self._app.run_until_idle()
        return await everything(self._app.world.events.list, self.run_id)

    async def steps(self) -> list[AppStep]:
        """The steps of the run in the order of their creation, with what they returned."""
        await self._app.run_until_idle()
        steps = await everything(self._app.world.steps.list, self.run_id)
        return [_app_step(step) for step in steps]

    async def hooks(self) -> list[Hook]:
        """The hooks that the run can be resumed by now."""
        await self._app.run_until_idle()
        hooks = await everything(self._app.world.hooks.list, self.run_id)
        return [hook for hook in hooks if not hook.is_system]

    async def chunks(self, *, namespace: str | None = None, type: Any = Any) -> list[Any]:  # noqa: A002 - as the SDK calls it
        """What was written to a stream of the run until now, whether it is closed or not.

        Args:
            namespace: as of `get_writable`.
            type: what each chunk is; it is validated.
        """
        await self._app.run_until_idle()
        info = await self.stream_info(namespace=namespace)
        found: list[Any] = []
        if info.tail_index < 0:
            return found
        async with contextlib.aclosing(self.readable(namespace=namespace, type=type)) as chunks:
            async for chunk in chunks:
                found.append(chunk)
                if len(found) > info.tail_index:
                    break
        return found

    def __repr__(self) -> str:
        return f"AppRun({self.run_id!r})"


def _app_step(step: Step) -> AppStep:
    result, error = None, None
    what = f"step {step.step_id}"
    if step.output is not None:
        result = ser.hydrate(step.output, what=what, key=None)
    elif step.error is not None:
        error = ser.hydrate_error(step.error, what=what, key=None)
    return AppStep(
        name=plain_name(step.step_name),
        status=step.status,
        attempt=step.attempt,
        result=result,
        error=error,
        stored=step,
    )
