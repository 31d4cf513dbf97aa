"""Random operations on the queue, with crashes, losses and leaps of the clock.

After every one of them a script judges the raw keys (`simulation_invariants.lua`), and every
reply is held against what was promised (`simulation_promises`). At the end there are healthy
workers only: then all that is owed has to arrive, and nothing may remain.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from datetime import timedelta
from typing import Final, NamedTuple

from redis_world import RedisWorld
from redis_world.lua import ScriptLibrary
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.queue_tools import owed
from support.simulation_event_calls import EventCalls
from support.simulation_judge import Judge
from support.simulation_network import Loss
from support.simulation_queue_calls import TOPICS, QueueCalls
from support.simulation_stage import Stage

__all__ = ["Simulation", "simulate"]

NOBODY: Final = "wrun_01HZX0000000000000000000ZZ"
"""A run that is not there, and never will be."""
LONGEST_LEASE: Final = 60
LOSSES: Final[tuple[tuple[Loss, ...], ...]] = (
    ("reply",), ("reply",), ("reply", "reply"), ("request",), ("request", "reply"),
)  # fmt: skip


async def simulate(
    backend: Backend,
    seed: int,
    operations: int,
    *,
    library: ScriptLibrary | None = None,
    judge_every: int | None = None,
    favoured: Collection[str] = (),
) -> Simulation:
    """A simulation in a World of its own, to its end.

    Args:
        backend: where it is; on the embedded server, which is slow, the judge looks less often.
        seed: of all chance, and of how soon messages are dead letters.
        library: other scripts, on a manual clock.
        favoured: operations that happen more often.
    """
    async with backend.world(
        library=library or ManualClock.library(),
        max_failures=2 + seed % 3,
        max_lost_leases=2 + seed % 5,
    ) as world:
        clock = await ManualClock(world).set()
        simulation = Simulation(world, clock, backend, seed, judge_every=judge_every)
        simulation.favour(favoured)
        await simulation.run(operations)
    return simulation


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Let the World's own chance, that of its back-off, be the same every time."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


class Operation(NamedTuple):
    """What may happen, how often, and what may happen between it and its resend.

    Where it makes more than one call, any of the first `calls` may be the one that is lost.
    """

    call: Callable[[], Awaitable[None]]
    weight: float
    meanwhile: tuple[str, ...] = ()
    calls: int = 1


class Simulation:
    """Random calls on one World, what they promised, and whether it was kept.

    Args:
        world: has the scripts of `ManualClock.library()`.
        clock: its clock.
        backend: where it is; on the embedded server, which is slow, the judge looks less often.
        seed: of all chance.
        judge_every: after how many operations the judge looks.
    """

    def __init__(
        self,
        world: RedisWorld,
        clock: ManualClock,
        backend: Backend,
        seed: int,
        *,
        judge_every: int | None = None,
    ) -> None:
        self.stage = Stage(world, clock, seed)
        self.judge = Judge(world)
        self.judge_every = judge_every or (5 if backend.is_memory else 1)
        self.queue = QueueCalls(self.stage)
        self.events = EventCalls(self.stage)
        self.counts: Counter[str] = Counter()
        """Operations by name."""
        self.seed = seed
        queue, events = self.queue, self.events
        anything = ("send", "claim", "ack", "continue_", "retry", "pass_time", "sweep")
        self.operations = {
            "send": Operation(queue.send, 16, anything),
            "claim": Operation(queue.claim, 24, ("send", "ack", "retry")),
            "ack": Operation(queue.ack, 14, ("send", "pass_time", "sweep")),
            "continue_": Operation(queue.continue_, 8, ("send", "pass_time", "sweep")),
            "retry": Operation(queue.retry, 8, ("send", "pass_time")),
            "release": Operation(queue.release, 4, ("send", "pass_time")),
            "postpone": Operation(queue.postpone, 4, ("send", "pass_time")),
            "extend": Operation(queue.extend, 3, ("send",)),
            "die": Operation(queue.die, 4),
            "use_old_receipt": Operation(queue.use_old_receipt, 5),
            "redrive": Operation(queue.redrive, 2, ("send", "claim", "pass_time")),
            "redrive_all": Operation(queue.redrive_all, 0.5, ("send", "pass_time")),
            "purge": Operation(queue.purge, 1, ("send", "pass_time")),
            "pass_time": Operation(queue.pass_time, 16),
            "sweep": Operation(queue.sweep, 8, ("send", "claim", "ack", "pass_time"), 5),
            "start_run": Operation(events.start_run, 4, anything),
            "begin_run": Operation(events.begin_run, 2, anything),
            "finish_run": Operation(events.finish_run, 1.5, anything),
            "create_step": Operation(events.create_step, 5, anything),
            "change_step": Operation(events.change_step, 10, anything),
            "create_hook": Operation(events.create_hook, 2, anything),
            "change_hook": Operation(events.change_hook, 5, anything),
            "wait": Operation(events.wait, 2, anything),
        }
        self.weights = {name: each.weight for name, each in self.operations.items()}
        if seed % 2:
            # Whims of its own: what is rare beside all else meets there what it never meets here.
            for name in self.weights:
                self.weights[name] *= self.stage.random.choice([0.25, 1, 4])

    async def run(self, operations: int) -> None:
        """Do so many operations, then let healthy workers bring all to its end."""
        with self.stage.network.installed(), self._telling(), _seeded(self.seed):
            self.stage.run_ids.append(NOBODY)
            await self._do("start_run")
            for done in range(1, operations + 1):
                (name,) = self.stage.random.choices([*self.weights], [*self.weights.values()])
                await self._do(name)
                if done % self.judge_every == 0 or name in {"purge", "redrive_all"}:
                    await self._look()
            await self.drain()

    def favour(self, names: Collection[str]) -> None:
        """Let these operations happen more often."""
        for name in names:
            self.weights[name] *= 6

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            done = sum(self.counts.values())
            error.add_note(f"seed {self.seed}, operation {done}:\n  {self.stage.story()}")
            raise

    async def _do(self, name: str) -> None:
        operation, chance = self.operations[name], self.stage.random
        self.counts[name] += 1
        self.stage.tell(name)
        self.stage.is_disturbed = False
        losses = chance.choice(LOSSES) if operation.meanwhile and chance.random() < 0.25 else ()
        others = operation.meanwhile if losses and chance.random() < 0.5 else ()
        before = [None] * chance.randrange(operation.calls)

        async def meanwhile() -> None:
            self.stage.is_disturbed = True
            for _ in range(chance.randint(1, 2)):
                other = chance.choice(others)
                self.stage.tell(f"meanwhile {other}")
                await self.operations[other].call()

        self.stage.network.plan([*before, *losses], meanwhile if others else None)
        await operation.call()
        self.stage.network.check()
        self.stage.network.plan([])

    async def _look(self) -> None:
        verdict = await self.judge.look(self.stage.promises.needing)
        self.stage.promises.judged(verdict)
        self.stage.network.check()

    # -- the end ---------------------------------------------------------------------------

    async def drain(self) -> None:
        """Good workers only from now on: all is delivered, nothing is left."""
        stage = self.stage
        stage.tell("drain")
        stage.is_disturbed = False
        await self._look()
        await check_invariants(stage.world)
        await self._deliver_what_is_owed()
        await self._wake_idle_runs()
        for run in self.events.live:
            await stage.world.events.create(run.run_id, e.run_ended("completed"))
        await self._work_for(timedelta(hours=2), timedelta(minutes=10))
        await self._assert_nothing_is_left()

    async def _deliver_what_is_owed(self) -> None:
        """Within a few intervals, and as long as the leases of the dead last."""
        stage, promises = self.stage, self.stage.promises
        needing = promises.needing
        steps = [each for each in await owed(stage.world, "") if "/" in each]
        before = promises.deliveries.copy()
        interval = stage.world.config.sweep_interval
        await self._work_for(
            timedelta(seconds=LONGEST_LEASE + 3 * interval), timedelta(seconds=interval / 3)
        )
        late = [run_id for run_id in needing if promises.deliveries[run_id] == before[run_id]]
        assert not late, f"owed a wake, and not woken: {late}"
        late = [step for step in steps if self._is_waiting(step, before)]
        assert not late, f"owed a message, and not queued: {late}"

    def _is_waiting(self, step: str, before: Counter[str]) -> bool:
        run_id, _, name = step.partition("/")
        run = self.stage.promises.run(run_id)
        is_open = run.is_live and run.steps[name]
        return is_open and self.stage.promises.deliveries[step] == before[step]

    async def _wake_idle_runs(self) -> None:
        """A live run that waits for nothing is woken, be it in vain, at least once an hour."""
        idle = [run.run_id for run in self.events.live if not run.hooks]
        before = self.stage.promises.deliveries.copy()
        await self._work_for(timedelta(hours=2), timedelta(minutes=5))
        late = [each for each in idle if self.stage.promises.deliveries[each] == before[each]]
        assert not late, f"idle, and not woken: {late}"

    async def _work_for(self, time: timedelta, pause: timedelta) -> None:
        """Claim, finish steps, ack, sweep, again and again until so much time has passed."""
        end = self.stage.clock.now + time
        while self.stage.clock.now < end:
            await self.stage.world.sweep()
            for topic in TOPICS:
                if self.stage.promises.dead:
                    # The leases of dead workers end meanwhile, of some messages once too often.
                    await self.queue.redrive_all(topic)
                while messages := await self.queue.claim_of(topic, 50, 30):
                    for message in messages:
                        run = self.stage.promises.run(message.run_id or "")
                        name = message.payload.get("stepId")
                        if name is not None and run.is_live and run.steps.get(name):
                            await self.stage.world.events.create(
                                run.run_id, e.step_completed(name)
                            )
                        acked = await self.stage.world.queue.ack(message)
                        assert acked, f"{message.message_id} has lost its lease"
            await self._look()
            await self.stage.set_clock(pause.total_seconds())

    async def _assert_nothing_is_left(self) -> None:
        stage = self.stage
        lost = stage.promises.undelivered
        assert not lost, f"content was lost: {lost}"
        base = stage.world.connection.keys.base
        patterns = ("queue:*", "run:*:queue", "run:*:held", "owed", "parked")
        found = await stage.world.connection.execute(
            *(("KEYS", f"{base}{pattern}") for pattern in patterns)
        )
        left = [key.decode() for keys in found for key in keys]
        assert not left, f"keys are left: {left}"
        await check_invariants(stage.world)
