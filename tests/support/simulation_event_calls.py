"""What the simulation does with runs: events with their message, before it, or without one."""

from __future__ import annotations

from typing import Any, Final

from redis_world.errors import (
    EntityConflictError,
    HookNotFoundError,
    RunExpiredError,
    RunNotFoundError,
    StepNotFoundError,
    TooEarlyError,
    WaitNotFoundError,
)
from redis_world.messages import Enqueue
from support import events as e
from support.queue_tools import content, step, wake
from support.simulation_promises import SimulatedRun
from support.simulation_stage import KEYS, Stage

__all__ = ["EventCalls"]

LIVE_RUNS: Final = 4
OLD_RUNS: Final = 3
_REFUSALS: Final = (
    EntityConflictError, HookNotFoundError, RunExpiredError, RunNotFoundError, StepNotFoundError,
    TooEarlyError, WaitNotFoundError,
)  # fmt: skip
"""What an event may be answered that comes late, twice, or together with a rival."""


class EventCalls:
    """Random events on one stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    # -- runs ------------------------------------------------------------------------------

    @property
    def live(self) -> list[SimulatedRun]:
        return [run for run in self.stage.promises.runs.values() if run.is_live]

    def _run(self) -> SimulatedRun:
        """A live run, most of the time."""
        live = self.live
        if live and self.stage.random.random() < 0.9:
            return self.stage.random.choice(live)
        return self.stage.promises.run(self.stage.random.choice(self.stage.run_ids))

    async def start_run(self) -> None:
        """Begin a run, in one of the ways that leave it with and without a message."""
        stage = self.stage
        if self.live and stage.random.random() < 0.1:
            # A rival has done so already.
            rival = stage.random.choice(self.live)
            await self._create(rival, e.run_created(), [wake(rival.run_id)])
            return
        if len(self.live) >= LIVE_RUNS:
            return
        run = stage.promises.run(stage.new_run_id())
        over = [each for each in stage.run_ids if stage.promises.run(each).status != "missing"]
        for run_id in [each for each in over if not stage.promises.run(each).is_live][:-OLD_RUNS]:
            stage.run_ids.remove(run_id)
        stage.run_ids.append(run.run_id)
        if stage.random.random() < 0.2:
            # The message of a start may be there before its run.
            make = stage.random.choice([wake, self._content])
            await self._send(make(run.run_id))
        if stage.random.random() < 0.2:
            await self._create(run, e.resilient_start(), [])
        else:
            await self._create(run, e.run_created(), [wake(run.run_id)])

    async def begin_run(self) -> None:
        run = self._run()
        await self._create(run, e.event("run_started"), [wake(run.run_id)])

    async def finish_run(self) -> None:
        run, end = self._run(), self.stage.random.choice(e.TERMINAL)
        await self._create(run, e.run_ended(end), [wake(run.run_id)])

    # -- steps -----------------------------------------------------------------------------

    async def create_step(self) -> None:
        """A new step, or one that a rival has created."""
        run, chance = self._run(), self.stage.random
        if chance.random() < 0.15:
            name = f"lazy{self.stage.new_number()}"
            await self._create(run, e.lazy_start(name), [])
            return
        names = [name for name in run.steps if not name.startswith("lazy")]
        name = chance.choice(names) if names and chance.random() < 0.2 else "a"
        if name in run.steps and name not in names[-1:]:
            name = f"s{self.stage.new_number()}"
        await self._create(run, e.step_created(name), [step(name, run.run_id)])

    async def change_step(self) -> None:
        run, chance = self._run(), self.stage.random
        open_steps = [name for name, is_open in run.steps.items() if is_open]
        name = chance.choice([*run.steps, "none"])
        if open_steps and chance.random() < 0.8:
            name = chance.choice(open_steps)
        make = chance.choices(
            [e.step_started, e.step_retrying, e.step_completed, e.step_failed], [3, 1, 3, 2]
        )[0]
        ends = make in (e.step_completed, e.step_failed)
        message = wake(run.run_id) if ends else step(name, run.run_id)
        await self._create(run, make(name), [message])

    # -- hooks and waits -------------------------------------------------------------------

    async def create_hook(self) -> None:
        run, chance = self._run(), self.stage.random
        if len(run.hooks) >= 2:
            return
        hook_id = f"h{self.stage.new_number()}"
        token = chance.choice(["t1", "t2", "t3", hook_id])
        await self._create(run, e.hook_created(hook_id, token), [])

    async def change_hook(self) -> None:
        run, chance = self._run(), self.stage.random
        hook_id = chance.choice([*sorted(run.hooks), "none"])
        if chance.random() < 0.7:
            options = {"resume_id": f"r{chance.randrange(2)}"} if chance.random() < 0.5 else {}
            await self._create(
                run, e.hook_received(hook_id), [wake(run.run_id), self._content], **options
            )
        else:
            await self._create(run, e.hook_disposed(hook_id), [wake(run.run_id)])

    async def wait(self) -> None:
        run, chance = self._run(), self.stage.random
        if run.waits and chance.random() < 0.5:
            wire = e.wait_completed(chance.choice(sorted(run.waits)))
        else:
            wire = e.wait_created(f"w{self.stage.new_number()}")
        await self._create(run, wire, [wake(run.run_id)])

    # -- inside ----------------------------------------------------------------------------

    def _content(self, run_id: str) -> dict[str, Any]:
        number = self.stage.new_number()
        self.stage.promises.undelivered.add(number)
        return content(number, run_id)

    async def _send(self, payload: dict[str, Any], **options: Any) -> None:
        name, promises = self.stage.queue_name(), self.stage.promises
        number = payload.get("number", 0)
        if number:
            promises.undelivered.add(number)
        message_id = await self.stage.world.queue.send(name, payload, **options)
        self.stage.tell(f"{payload} {options} -> {message_id}")
        if number and promises.number_of.get(message_id or "") != number:
            promises.undelivered.discard(number)

    def _options(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """What a message is sent with: that of a step often under its id, any maybe later."""
        options: dict[str, Any] = {}
        if message is None:
            return options
        chance = self.stage.random
        if "stepId" in message and chance.random() < 0.5:
            options["idempotency_key"] = message["stepId"]
        elif chance.random() < 0.1:
            options["idempotency_key"] = chance.choice(KEYS)
        if chance.random() < 0.15:
            options["delay"] = chance.choice([1, 30])
        return options

    async def _create(
        self, run: SimulatedRun, wire: e.Wire, messages: list[Any], **options: Any
    ) -> None:
        """Create an event; with one of these messages, before it is sent, or without any.

        In the last case its writer has died, and whatever is missing is for the sweeper.
        """
        stage = self.stage
        message = stage.random.choice(messages) if messages else None
        if callable(message):
            message = message(run.run_id)
        way = stage.random.choices(["along", "behind", "dead"], [4, 3, 3])[0]
        number = 0 if message is None else message.get("number", 0)
        sent_with = self._options(message)
        if message is not None and way == "along":
            options["enqueue"] = Enqueue(stage.queue_name(), message, **sent_with)
        stage.tell(f"{wire['eventType']} {wire.get('correlationId', '')} of {run.run_id} {way}")
        try:
            result = await stage.world.events.create(
                run.run_id, wire, skip_preload=True, **options
            )
        except _REFUSALS as error:
            stage.tell(f"-> {error}")
            self._judge(slot=None)
            stage.promises.undelivered.discard(number)
            return
        stage.tell(f"-> {result.event and result.event.event_id} {result.message_id}")
        self._judge(slot=result.event.event_id if result.event else "")
        if number and stage.promises.number_of.get(result.message_id or "") != number:
            # Another message stands for it, or it is sent behind the event.
            stage.promises.undelivered.discard(number)
        if message is not None and way == "behind":
            # Its caller makes sure of it: nothing of this call is lost.
            stage.network.plan([])
            await self._send(message, **sent_with)

    def _judge(self, *, slot: str | None) -> None:
        """A resend is answered as the call was the first time: accepted or not, and where."""
        first = self.stage.network.first
        if first is None or not first.script.startswith("events/"):
            return
        is_accepted = first.status in {"OK", "TOKEN_TAKEN", "RUNNING", "REPEATED"}
        assert is_accepted == (slot is not None), f"{first.status}, and then {slot}"
        if first.status in {"OK", "TOKEN_TAKEN"} and slot:
            assert slot == e.event_id(int(first.reply[1])), f"{first.reply[1]!r}, then {slot}"
