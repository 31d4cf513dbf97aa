"""Workers that are killed while workflows run: the processes, and what drives the runs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vercel import workflow as sdk
from vercel.workflow._internal import ulid
from vercel.workflow._internal.world import EntityConflictError

from redis_world import RedisWorld
from redis_world.models import Run as StoredRun
from redis_world.runs import TERMINAL
from support.killing_effects import URL
from support.killing_points import ONLY_WHERE_IT_GOES_WRONG, WORKER_POINTS, Death, Job, Point
from support.killing_registry import flows
from support.killing_specs import Flow, Part

__all__ = ["SWEEP_INTERVAL", "Child", "Crew", "Driver", "Zygote", "make_plan"]

SWEEP_INTERVAL: Final = 0.5
"""Seconds that a run may lack its message."""
AT_A_TIME: Final = 3
"""Workers."""
PATIENCE: Final = 90.0
"""Seconds without an event after which a run will not end any more."""
CARELESS: Final = Job("work", has_outbox=False, forgets=4)
"""Makes work for the sweeper, and for `queue/send`."""
_POLL: Final = 0.05
_TESTS: Final = Path(__file__).resolve().parents[1]

_next_ulid = ulid.monotonic_factory()


# -- processes -----------------------------------------------------------------------------


@dataclass
class Child:
    """A process that was asked for."""

    job: Job
    log: Path
    """What it and the others write on their standard error."""
    pid: asyncio.Future[int] = field(default_factory=asyncio.Future)
    status: asyncio.Future[int] = field(default_factory=asyncio.Future)
    """Its end, as `os.waitpid` tells it."""

    async def dies(self) -> None:
        """Wait until it has been killed at its point; it must not end otherwise."""
        status = await self.status
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert was_killed, self._told(status)

    async def stops(self) -> None:
        """Ask it to stop, and wait until it has."""
        if not self.status.done():
            os.kill(await self.pid, signal.SIGTERM)
        status = await self.status
        assert status == 0, self._told(status)

    def _told(self, status: int) -> str:
        said = self.log.read_text(encoding="utf-8", errors="replace")[-4000:]
        return f"{self.job} ended with status {status}; the log ends with\n{said}"


class Zygote:
    """The process that forks the others; see `support.killing_zygote`."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._numbers = itertools.count()
        self._children: dict[int, Child] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, url: str, namespace: str, log: Path) -> AsyncIterator[Zygote]:
        """Have one for the length of a block; its children end with it."""
        environment = {
            **os.environ,
            "REDIS_WORLD_URL": url,
            "REDIS_WORLD_NAMESPACE": namespace,
            "REDIS_WORLD_SWEEP_INTERVAL": str(SWEEP_INTERVAL),
            URL: url,
        }
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "support.killing_zygote",
                cwd=_TESTS, env=environment, stdin=PIPE, stdout=PIPE, stderr=errors,
            )  # fmt: skip
        zygote = cls(process, log)
        listening = asyncio.create_task(zygote._listen())
        try:
            yield zygote
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
            await listening

    def begin(self, job: Job) -> Child:
        """Have a child do a job."""
        number = next(self._numbers)
        child = self._children[number] = Child(job, self._log)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([number, job.to_wire()]).encode() + b"\n")
        return child

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            number, what, value = json.loads(line)
            child = self._children[number]
            future = child.pid if what == "pid" else child.status
            if not future.done():  # given up
                future.set_result(value)
            if what == "end":
                del self._children[number]
        for child in self._children.values():
            for future in (child.pid, child.status):
                future.cancel("the zygote has ended")


def make_plan(seed: int, times: int) -> list[Job]:
    """Workers that die at every point, as often as this, in an order of the seed's."""
    chance = random.Random(seed)
    plan = []
    for _ in range(times):
        for point in chance.sample(WORKER_POINTS, k=len(WORKER_POINTS)):
            passage = chance.choice([1, 1, 1, 2, 3])
            if point in ONLY_WHERE_IT_GOES_WRONG:
                plan.append(dataclasses.replace(CARELESS, point=point, passage=passage))
                continue
            has_outbox, forgets = chance.random() < 0.6, chance.choice([0, 0, 5, 9])
            plan.append(Job("work", point, passage, has_outbox, forgets))
    return plan


class Crew:
    """Some workers at a time, each of which dies as planned, and healthy ones in the end.

    Attributes:
        deaths: how often workers died at each point.
    """

    def __init__(self, zygote: Zygote, plan: Iterable[Job]) -> None:
        self._zygote = zygote
        self._plan = iter(plan)
        self._dying: dict[int, Point] = {}
        self._is_healthy = asyncio.Event()
        self._stopping = asyncio.Event()
        self.deaths: Counter[Point] = Counter()

    @property
    def is_healthy(self) -> bool:
        """Whether the plan is used up."""
        return self._is_healthy.is_set()

    @property
    def pending(self) -> list[str]:
        """The points that the present workers have not passed yet."""
        return [str(point) for point in self._dying.values()]

    def stop(self) -> None:
        """Have the healthy workers stop, and `run` return."""
        self._stopping.set()

    async def run(self) -> None:
        """Keep all places taken."""
        async with asyncio.TaskGroup() as group:
            for place in range(AT_A_TIME):
                group.create_task(self._take(place))

    async def _take(self, place: int) -> None:
        for job in self._plan:
            assert job.point is not None
            self._dying[place] = job.point
            await self._zygote.begin(job).dies()
            del self._dying[place]
            self.deaths[job.point] += 1
        if not self._dying:
            self._is_healthy.set()
        # Without carelessness around it, the last one may never come to its point.
        await self._work(CARELESS, self._is_healthy)
        await self._work(Job("work"), self._stopping)

    async def _work(self, job: Job, end: asyncio.Event) -> None:
        """Have a worker that does not die until something has happened."""
        child = self._zygote.begin(job)
        ending = asyncio.create_task(end.wait())
        either: list[asyncio.Future[Any]] = [ending, child.status]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        await child.stops()


# -- runs ----------------------------------------------------------------------------------


class Driver:
    """Starts one run, does to it from outside what its flow says, and waits for its end."""

    def __init__(
        self, world: RedisWorld, zygote: Zygote, flow: Flow, deaths: Counter[Death]
    ) -> None:
        self._world = world
        self._zygote = zygote
        self._flow = flow
        self._deaths = deaths
        self.run_id = ""

    async def drive(self) -> StoredRun:
        """Returns the run as it is after its end, or after too long a time."""
        self.run_id = await self._start()
        acting = [asyncio.create_task(self._resume(hook)) for hook in self._flow.hooks]
        if self._flow.is_cancelled:
            acting.append(asyncio.create_task(self._cancel()))
        run = await self._ended()
        if self._flow.is_cancelled or run.status not in TERMINAL:
            # It may have ended before all of its hooks were there.
            for task in acting:
                task.cancel()
        for error in await asyncio.gather(*acting, return_exceptions=True):
            if isinstance(error, Exception):
                raise error
        return run

    async def _ended(self) -> StoredRun:
        """The run when it has ended, or when nothing has happened for too long."""
        length = 0
        while True:
            run = await self._world.runs.wait_for_terminal(self.run_id, timeout=PATIENCE)
            before, length = length, len((await self._world.events.list(self.run_id)).data)
            if run.status in TERMINAL or length == before:
                return run

    async def _start(self) -> str:
        death = self._flow.start
        if death is not None:
            made = _next_ulid()
            details: dict[str, Any] = {"ulid": made, "arguments": self._flow.arguments}
            if await self._dies("start", death, details):
                return f"wrun_{made}"
        return (await sdk.start(flows.mixture, *self._flow.arguments)).run_id

    async def _resume(self, hook: Part) -> None:
        """Resume a hook once; until it is there the SDK refuses it."""
        token = hook["token"]
        approval = flows.Approval(by=f"by {token}")
        death = self._flow.resume
        while True:
            try:
                if death is None or hook is not self._flow.hooks[0]:
                    await approval.resume(token)
                    return
                await sdk.get_hook_by_token(token)
                if await self._dies("resume", death, {"token": token, "by": approval.by}):
                    return
                death = None
            except sdk.HookNotFoundError:
                await asyncio.sleep(_POLL)
            except sdk.RunExpiredError:
                assert self._flow.is_cancelled
                return

    async def _dies(self, kind: str, death: Death, details: dict[str, Any]) -> bool:
        """Let a process die in the middle of it; whether it has come to do it."""
        point, has_outbox = death
        job = Job(kind, point, has_outbox=has_outbox, details=details)  # type: ignore[arg-type]
        await self._zygote.begin(job).dies()
        self._deaths[death] += 1
        return not (point.when == "before" and point.script.startswith("events/"))

    async def _cancel(self) -> None:
        connection = self._world.connection
        length = ("XLEN", connection.partitions.of(self.run_id).of_run(self.run_id).events)
        while (await connection.execute(length))[0] < self._flow.cancel_at:  # noqa: ASYNC110 - others write it
            await asyncio.sleep(_POLL)
        try:
            await sdk.get_run(self.run_id).terminate(reason="enough")
        except EntityConflictError:
            assert self._flow.end == "race"
