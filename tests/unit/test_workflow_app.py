"""`WorkflowApp`: a user's own workflows, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import secrets
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from vercel import workflow as sdk
from vercel.workflow._internal import duration, py_sandbox, runtime
from vercel.workflow._internal import run as sdk_run
from vercel.workflow._internal import world as w

from redis_world import errors, vercel
from redis_world.testing import ManualClock, WorkflowApp, check_invariants, memory_world
from redis_world.testing.workflows import (
    RunNotFinishedError,
    StillRunningError,
    UnknownWorkflowError,
    WorkflowAppError,
)
from redis_world.testing.workflows.sdk import registries
from redis_world.vercel import outbox, use_redis_world
from support import app_flows as flows
from support.backends import Backend

DAY: Final = flows.DAY
START: Final = datetime(2030, 1, 1, tzinfo=UTC)
LIMIT: Final = 4.0
"""Seconds, fewer than the limits of what could hang."""
SECONDS: Final = 5.0
"""Of the processor, for the whole story; it takes a fraction of one, and nothing waits."""


@pytest_asyncio.fixture
async def app() -> AsyncIterator[WorkflowApp]:
    async with WorkflowApp(start=START) as app:
        yield app
        await check_invariants(app.world)


def waiting(caught: pytest.ExceptionInfo[RunNotFinishedError]) -> list[str]:
    """What a run waits for, as the error tells it."""
    return [line.removeprefix("  * ") for line in str(caught.value).splitlines()[1:]]


@contextlib.contextmanager
def timers_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """What is waited for meanwhile, in seconds, but by requests to the server."""
    begun: list[float] = []
    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    def noting(when: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
        frame = sys._getframe(1)
        while "asyncio" in frame.f_code.co_filename and frame.f_back is not None:
            frame = frame.f_back
        if "connection" not in frame.f_code.co_filename:
            begun.append(when - loop.time())
        return call_at(when, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_at", noting)
        patch.setattr(time, "sleep", begun.append)
        yield begun


class TestTheStory:
    async def test_five_steps_a_retry_a_sleep_and_a_hook(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = backend.world(library=ManualClock.library())
        async with WorkflowApp(world, start=START) as app:
            await app.run_until_idle()
            began = time.process_time()
            with timers_of(monkeypatch) as timers:
                run = await app.start(flows.checkout, "o-1")
                assert await run.status() == "running"
                await app.advance(1)
                await app.resume("approval-o-1", flows.Approval(by="ann"))
                await app.advance(timedelta(days=30))
                assert await run.return_value() == "charged o-1, reminded, approved by ann"
            assert time.process_time() - began < SECONDS
            # None but the limits of what could hang.
            assert not [seconds for seconds in timers if seconds < LIMIT], timers
            assert app.now == START + timedelta(days=30, seconds=1)
            assert [(step.name, step.attempt, step.result) for step in await run.steps()] == [
                ("charge", 2, "charged o-1"),
                ("note", 1, "packed"),
                ("note", 1, "labelled"),
                ("note", 1, "reminded"),
                ("note", 1, "charged o-1, reminded, approved by ann"),
            ]
            assert [event.event_type for event in await run.events()][-1] == "run_completed"
            await check_invariants(world)

    async def test_apps_do_not_see_each_other(self, backend: Backend) -> None:
        for _ in range(2):
            world = backend.world(library=ManualClock.library())
            async with WorkflowApp(world, start=START) as app:
                assert not await app.runs()
                run = await app.start(flows.nap, 3600)
                assert await run.hooks() == []
                assert [each.run_id for each in await app.runs(flows.nap)] == [run.run_id]


class TestTime:
    @pytest.mark.parametrize("seconds", [1, 3600, DAY, 23 * 3600 + 1, 30 * DAY, 400 * DAY])
    async def test_a_sleep_ends_at_its_time(self, app: WorkflowApp, seconds: int) -> None:
        run = await app.start(flows.nap, seconds)
        await app.advance(seconds - 1)
        assert await run.status() == "running"
        await app.advance(1)
        assert await run.return_value() == seconds

    async def test_sleeps_side_by_side_end_at_their_own_times(self, app: WorkflowApp) -> None:
        """Each replay computes the ends of all of them anew, from its own present."""
        seconds = [6 * 3600, 10 * 3600, 60, 2 * DAY, 50 * 3600, 30 * DAY]
        run = await app.start(flows.naps, *seconds)
        for _ in range(30):
            await app.advance(DAY)
        assert await run.return_value() == seconds

    async def test_all_moments_between_are_passed_in_order(self, app: WorkflowApp) -> None:
        runs = [await app.start(flows.nap, seconds) for seconds in (300, 100, 200)]
        await app.advance(1000)
        ends = [
            (await app.world.runs.get(run.run_id)).completed_at
            for run in (runs[1], runs[2], runs[0])
        ]
        assert ends == [START + timedelta(seconds=each) for each in (100, 200, 300)]

    async def test_an_absolute_moment(self, app: WorkflowApp) -> None:
        end = START + timedelta(hours=5)
        run = await app.start(flows.until, end.isoformat())
        await app.advance(timedelta(hours=5))
        assert await run.return_value() == end.isoformat()

    async def test_a_retryable_error_waits_for_its_delay(self, app: WorkflowApp) -> None:
        run = await app.start(flows.patient, 7200)
        await app.advance(7199)
        with pytest.raises(RunNotFinishedError) as caught:
            await run.return_value()
        assert waiting(caught) == [
            "attempt 2 of step busy at 2030-01-01 02:00:00 UTC: await workflow_app.advance(1)"
        ]
        await app.advance(1)
        assert await run.return_value() == 2

    async def test_a_timeout_of_a_hook(self, app: WorkflowApp) -> None:
        run = await app.start(flows.wait_for_approval, 3600)
        await app.advance(3599)
        assert await run.status() == "running"
        await app.advance(1)
        assert await run.return_value() == "nobody came"
        in_time = await app.start(flows.wait_for_approval, 3600)
        await app.advance(3599)
        await app.resume("wait", flows.Approval(by="ann"))
        assert await in_time.return_value() == "ann"

    @pytest.mark.parametrize("can_stop", [True, False])
    async def test_a_timeout_of_a_step(
        self, app: WorkflowApp, monkeypatch: pytest.MonkeyPatch, can_stop: bool
    ) -> None:
        """A step may take virtual time, too; a cancelled one ends before the test goes on."""
        ends: list[str] = []

        async def bank() -> str:
            try:
                await app.sleep(7200)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise
            ends.append("answered")
            return "paid"

        monkeypatch.setattr(flows, "ask_the_bank", bank)
        for limit, result in ((7201, "paid"), (3600, "too late")):
            run = await app.start(flows.hurry, limit, can_stop)
            await app.advance(3599)
            assert await run.status() == "running"
            await app.advance(7200)
            assert await run.return_value() == result
        assert ends == ["answered", "cancelled" if can_stop else "answered"]
        with pytest.raises(WorkflowAppError, match="is for steps"):
            await app.sleep(1)

    async def test_what_the_sdk_calls_now_is_the_virtual_time(self, app: WorkflowApp) -> None:
        run = await app.start(flows.when)
        await app.advance(DAY)
        later = START + timedelta(days=1)
        assert await run.return_value() == [each.isoformat() for each in (START, later, later)]
        assert all(event.created_at in (START, later) for event in await run.events())

    async def test_it_begins_at_the_present(self) -> None:
        before = datetime.now(UTC) - timedelta(milliseconds=1)
        async with WorkflowApp() as app:
            assert before < app.now <= datetime.now(UTC)
            present = app.now
            await app.run_until_idle()
            assert app.now == present

    @pytest.mark.parametrize("duration", [-1, float("nan"), "1h", None])
    async def test_durations_that_are_none(self, app: WorkflowApp, duration: Any) -> None:
        with pytest.raises(errors.InvalidInputError):
            await app.advance(duration)
        assert app.now == START


class TestWhatTestsSee:
    async def test_a_workflow_that_raises(self, app: WorkflowApp) -> None:
        run = await app.start(flows.refuse, "too late")
        with pytest.raises(sdk.WorkflowRunFailedError, match="too late") as caught:
            await run.return_value()
        assert str(caught.value.__cause__) == "Refused: too late"
        assert await run.status() == "failed"

    async def test_a_step_that_fails_for_good(self, app: WorkflowApp) -> None:
        flows.attempts.clear()
        run = await app.start(flows.unlucky)
        await app.advance(2)
        with pytest.raises(sdk.WorkflowRunFailedError, match="failed after 2 retries"):
            await run.return_value()
        assert flows.attempts == [1, 2, 3]
        (step,) = await run.steps()
        assert (step.status, step.result) == ("failed", None)
        assert "failed after 2 retries: ValueError: no" in str(step.error)

    async def test_arguments_that_can_not_be_stored(self, app: WorkflowApp) -> None:
        with pytest.raises(sdk.SerializationError):
            await app.start(flows.echo, object())
        with pytest.raises(TypeError, match="missing a required argument"):
            await app.start(flows.echo)  # type: ignore[call-arg]
        assert not await app.runs()

    async def test_results_that_can_not_be_stored(self, app: WorkflowApp) -> None:
        run = await app.start(flows.strange)
        await app.advance(60)
        with pytest.raises(sdk.WorkflowRunFailedError, match="object"):
            await run.return_value()

    async def test_what_a_run_waits_for(self, app: WorkflowApp) -> None:
        run = await app.start(flows.checkout, "o-2")
        expected = ["attempt 2 of step charge within a second: await workflow_app.advance(1)"]
        for advance in (1, None):
            with pytest.raises(
                RunNotFinishedError, match="checkout is running at 2030-01-01"
            ) as e:
                await run.return_value()
            assert e.value.run_id == run.run_id
            assert waiting(e) == expected
            expected = ["hook 'approval-o-2': await workflow_app.resume('approval-o-2', ...)"]
            if advance:
                await app.advance(advance)
        await app.resume("approval-o-2", {"by": "bob"})
        with pytest.raises(RunNotFinishedError) as caught:
            await run.return_value()
        assert waiting(caught)[0] == (
            "a sleep until 2030-01-31 00:00:01 UTC: await workflow_app.advance(2592000)"
        )

    async def test_a_run_that_waits_for_nothing(self, app: WorkflowApp) -> None:
        run = await app.start(flows.stuck)
        with pytest.raises(RunNotFinishedError) as caught:
            await run.return_value()
        (reason,) = waiting(caught)
        assert reason.startswith("nothing that can happen: the workflow awaits something other")

    async def test_a_message_that_fails(
        self, app: WorkflowApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By an error of the SDK or the World: it is delivered again, as by a worker."""
        run = await app.start(flows.patient, 1)

        async def lost(run_id: str) -> w.WorkflowRun:
            raise w.WorkflowWorldError("lost", status=503)

        with monkeypatch.context() as patch:
            patch.setattr(app.adapter, "runs_get", lost)
            await app.run_until_idle()
            patch.undo()
            with pytest.raises(RunNotFinishedError) as caught:
                await run.return_value()
        assert waiting(caught) == [
            "step busy, which has not started",
            (
                "the retry of a message that failed with WorkflowWorldError: lost. A message that "
                "fails too often is in await workflow_app.world.queue.dead_letters(topic)"
            ),
        ]
        await app.advance(10)
        assert await run.return_value() == 2

    async def test_a_hook_that_is_not_there(self, app: WorkflowApp) -> None:
        await app.start(flows.checkout, "o-3")
        await app.advance(1)
        with pytest.raises(sdk.HookNotFoundError) as caught:
            await app.resume("approval-o-4", flows.Approval(by="ann"))
        assert caught.value.__notes__ == [
            "no hook has the token 'approval-o-4' now; hooks: 'approval-o-3'"
        ]

    async def test_a_cancelled_run(self, app: WorkflowApp) -> None:
        run = await app.start(flows.nap, DAY)
        await run.cancel("changed our mind")
        await app.advance(2 * DAY)
        assert await run.status() == "cancelled"
        with pytest.raises(RuntimeError, match="cancelled"):
            await run.return_value()

    async def test_streams_and_attributes(self, app: WorkflowApp) -> None:
        run = await app.start(flows.report, "one", "two")
        assert await run.chunks() == ["one", "two"]
        assert await run.chunks(namespace="other") == []
        assert await run.attributes() == {"phase": "written"}
        assert [hook.token for hook in await run.hooks()] == ["never"]

    async def test_a_workflow_that_no_replay_finds(self, app: WorkflowApp) -> None:
        @flows.shop.workflow
        async def local() -> None: ...

        with pytest.raises(WorkflowAppError, match="inside a function"):
            await app.start(local)
        del flows.shop._workflows[local.workflow_id]
        with pytest.raises(WorkflowAppError, match="is not a workflow"):
            await app.start(flows.note, "x")  # type: ignore[arg-type]

    async def test_an_unknown_workflow(self, app: WorkflowApp) -> None:
        """As where the tested code starts a run by a name, or a registry has lost it."""
        await app.run_until_idle()
        workflow_id = flows.echo.workflow_id
        del flows.shop._workflows[workflow_id]
        try:
            run = await app.start(flows.echo, 1)
            for _ in range(2):
                with pytest.raises(UnknownWorkflowError, match="asks for workflow echo, which no"):
                    await run.return_value()
        finally:
            flows.shop._workflows[workflow_id] = flows.echo

    async def test_a_namespace_without_a_registry(self, app: WorkflowApp) -> None:
        await app.world.queue.send("__nobody_wkf_workflow_x", {"runId": "wrun_x"}, delay=60)
        await app.run_until_idle()
        with pytest.raises(UnknownWorkflowError, match="'__nobody_wkf_workflow_' has no handler"):
            await app.advance(60)

    async def test_what_is_no_exception_reaches_the_test(self, app: WorkflowApp) -> None:
        """Such as `pytest.fail` in what a test puts into the place of a step's function."""
        run = await app.start(flows.interrupt, "exit")
        with pytest.raises(SystemExit, match="by hand"):
            await run.return_value()

    async def test_a_step_that_does_not_end(self) -> None:
        reached = flows.close_gate()
        async with WorkflowApp(time_limit=0.05) as app:
            run = await app.start(flows.behind_a_gate)
            await reached.wait()
            with pytest.raises(StillRunningError, match=r"step gated did not finish within 0\.05"):
                await run.return_value()
            with pytest.raises(StillRunningError):
                await app.advance(1)
            assert app.now < datetime.now(UTC)


class TestWorkInTheBackground:
    async def test_a_step_that_waits_for_the_test(self, app: WorkflowApp) -> None:
        reached = flows.close_gate()
        run = await app.start(flows.behind_a_gate)
        await reached.wait()
        flows.open_gate()
        assert await run.return_value() == 1

    async def test_tested_code_that_waits_for_its_run(
        self, app: WorkflowApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By the SDK's own calls, which poll once per second."""
        with timers_of(monkeypatch) as timers:
            run = await sdk.start(flows.echo, 3)
            assert await run.return_value() == 3
        assert not [seconds for seconds in timers if seconds < LIMIT], timers

        started = asyncio.Event()

        async def handler() -> float:
            run = await sdk.start(flows.nap, DAY)
            started.set()
            return await run.return_value()

        handling = asyncio.ensure_future(handler())
        await started.wait()
        await app.advance(DAY)
        assert await handling == DAY

    async def test_tested_code_that_waits_in_vain(
        self, app: WorkflowApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("redis_world.testing.workflows.app._HANG_SECONDS", 0.01)
        run = await sdk.start(flows.nap, DAY)
        with pytest.raises(
            RunNotFinishedError, match="does not end unless the clock moves"
        ) as caught:
            await run.return_value()
        assert "await workflow_app.advance(86400)" in str(caught.value)

    async def test_a_run_that_waits_for_another_one(self, app: WorkflowApp) -> None:
        """Its step is under way all the time, and does not hold up the clock."""
        run = await app.start(flows.parent, 3 * DAY)
        await app.advance(DAY)
        assert await run.status() == "running"
        await app.advance(2 * DAY)
        assert await run.return_value() == 3 * DAY
        assert len(await app.runs()) == 2

    async def test_a_run_of_another_registry(self, app: WorkflowApp) -> None:
        run = await app.start(flows.order_in_the_depot, "book")
        assert await run.return_value() == "wrapped book"
        (child,) = await app.runs(flows.pack)
        assert await app.run(child.run_id, type=str).return_value() == "wrapped book"

    async def test_from_another_thread(self, app: WorkflowApp) -> None:
        await app.run_until_idle()
        run = await asyncio.to_thread(lambda: asyncio.run(sdk.start(flows.echo, 5)))
        assert await app.run(run.run_id).return_value() == 5


class TestTheProcessStaysAsItWas:
    @staticmethod
    def state() -> dict[str, Any]:
        return {
            "world": w.the_world,
            "pinned": vercel.pinned_redis_world(),
            "clock": [vars(each)["datetime"] for each in (runtime, duration, outbox)],
            "ids": sdk_run._generate_run_ulid,
            "asyncio": vars(sdk_run)["asyncio"],
            "passthrough": set(py_sandbox._PASSTHROUGHS),
            "tasks": asyncio.all_tasks(),
        }

    @pytest.mark.parametrize("fails", [False, True])
    async def test_also_when_the_test_fails(self, fails: bool) -> None:
        before = self.state()
        reached = flows.close_gate()
        with contextlib.suppress(ZeroDivisionError):
            async with WorkflowApp() as app:
                assert w.the_world is app.adapter
                assert use_redis_world("redis://nowhere.invalid:1") is app.adapter
                run = await app.start(flows.nap, 400 * DAY)
                await app.advance(DAY)
                assert await run.status() == "running"
                await app.start(flows.behind_a_gate)
                await reached.wait()
                if fails:
                    raise ZeroDivisionError
        assert self.state() == before
        with pytest.raises(WorkflowAppError, match="is not active"):
            await run.status()

    async def test_two_at_a_time(self, app: WorkflowApp) -> None:
        with pytest.raises(WorkflowAppError, match="another WorkflowApp is active"):
            async with WorkflowApp():
                pass
        assert w.the_world is app.adapter

    async def test_registries_of_before_and_after_use_redis_world(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And those that are made while a test runs, which the process keeps."""
        monkeypatch.setattr(w, "the_world", None)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)

        def load() -> Any:
            name = f"flows_{secrets.token_hex(4)}"
            text = f"""
                from vercel import workflow as sdk
                from redis_world.vercel import outbox, use_redis_world

                app = sdk.Workflows(namespace="{name.replace("_", "")}")

                @app.step
                async def double(value: int) -> int:
                    return 2 * value

                @app.workflow
                async def flow(value: int) -> int:
                    return await double(value)
            """
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
            return importlib.import_module(name)

        first = load()
        adapter = use_redis_world("memory://unused")
        modules = [first, load()]
        async with WorkflowApp() as app:
            modules.append(load())
            for value, module in enumerate(modules):
                run = await app.start(module.flow, value)
                assert await run.return_value() == 2 * value
        assert w.the_world is adapter
        assert len(adapter.handlers) == 2, "of before, the SDK's own World has one"
        for module in modules:
            assert module.app in registries()
            del sys.modules[module.__name__]
        await adapter.aclose()

    async def test_a_world_without_a_clock(self) -> None:
        with pytest.raises(errors.ConfigurationError, match="library=ManualClock"):
            WorkflowApp(memory_world())

    @pytest.mark.parametrize(
        "options",
        [{"start": datetime(2030, 1, 1)}, {"start": "2030-01-01"}, {"time_limit": -1}],
    )
    async def test_bad_options(self, options: dict[str, Any]) -> None:
        with pytest.raises(errors.InvalidInputError):
            WorkflowApp(**options)


def test_another_library_than_asyncio() -> None:
    """As with anyio on trio: no loop runs where the coroutines do."""
    app = WorkflowApp()
    with app.installed():
        with pytest.raises(
            WorkflowAppError, match="let the fixture anyio_backend return 'asyncio'"
        ):
            app.start(flows.echo, 1).send(None)
        with pytest.raises(StopIteration):
            app.aclose().send(None)
