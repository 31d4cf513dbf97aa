"""What the server has promised by what it did, as its scripts' replies tell."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from redis_world.codec import decode_data
from support.message_fields import head_of, state_of, step_in
from support.simulation_judge import Verdict
from support.simulation_network import Execution
from support.simulation_sent import Sent

__all__ = ["Promises", "SimulatedRun"]

_NEEDS: Final = {"run_created", "step_completed", "step_failed", "hook_received"}
"""Events that a replay has to begin after."""
_ACCEPTED: Final = {"OK", "TOKEN_TAKEN", "RUNNING", "REPEATED"}
_REPLAYS: Final = {b"wake", b"replay"}


@dataclass(slots=True)
class SimulatedRun:
    """A run as its events have made it.

    Attributes:
        steps: whether each step is still open.
        events: how many calls have recorded events of it.
        woken: how often the sweeper woke it for want of a message, with no event behind the
            first of these times; when last, and how many events there were.
        need: when the first event was recorded that no replay has begun after.
        letter_since: a time before a replay of the run has died with its lease.
    """

    run_id: str
    status: str = "missing"
    steps: dict[str, bool] = field(default_factory=dict)
    hooks: set[str] = field(default_factory=set)
    waits: set[str] = field(default_factory=set)
    events: int = 0
    woken: tuple[int, datetime, int] | None = None
    need: datetime | None = None
    letter_since: datetime | None = None

    @property
    def is_live(self) -> bool:
        return self.status in {"pending", "running"}


class Promises:
    """Told of every execution of a script, it raises when a promise is broken by it.

    Args:
        now: the time that the scripts see.
        latest: the latest that they have seen.
        interval: the World's sweep_interval.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        latest: Callable[[], datetime],
        interval: timedelta,
    ) -> None:
        self._now = now
        self._latest = latest
        self._interval = interval
        self.runs: dict[str, SimulatedRun] = {}
        self.number_of: dict[str, int] = {}
        """Message id -> the number that its payload has."""
        self.undelivered: set[int] = set()
        """Numbers of content that was sent and not yet acked."""
        self.receipts: defaultdict[str, set[str]] = defaultdict(set)
        """Message id -> receipts that a worker has got."""
        self.deliveries: Counter[str] = Counter()
        """Replays by run, steps by `<run>/<step>`."""
        self.dead: dict[str, tuple[str, str]] = {}
        """Run and kind of each dead letter, by its id."""
        self.outcomes: Counter[str] = Counter()
        """Scripts with the statuses of their replies."""
        self._not_before: dict[str, datetime] = {}
        self._messages: dict[str, Sent] = {}
        """Messages that were stored, as they were sent first."""
        self._attempts: Counter[str] = Counter()
        self._leased_until: dict[str, datetime] = {}
        self._declined: defaultdict[str, set[str]] = defaultdict(set)
        """Message id -> the workers that have postponed it."""
        self.stored: set[str] = set()
        """Messages that are there, dead or alive."""
        self._seen: set[tuple[str, ...]] = set()
        self._judged_at = now()

    def run(self, run_id: str) -> SimulatedRun:
        return self.runs.setdefault(run_id, SimulatedRun(run_id))

    @property
    def needing(self) -> list[str]:
        """Live runs with an event that no replay has begun after."""
        return [run.run_id for run in self.runs.values() if run.is_live and run.need is not None]

    def watch(self, done: Execution) -> None:
        """Take note of what the server has run."""
        self.outcomes[f"{done.script} {done.status}"] += 1
        folder, _, name = done.script.partition("/")
        if folder == "events" and done.status in _ACCEPTED:
            if self._is_first("event", done.text("op")):
                self._event(done)
        elif folder == "queue":
            handler = getattr(self, f"_{name}", None)
            if handler is not None:
                handler(done)

    def judged(self, verdict: Verdict) -> None:
        """Take note of what the judge has seen; raises for what must not be so."""
        assert not verdict.wrong, verdict.wrong
        for message_id, receipt in verdict.leased.items():
            assert receipt in self.receipts[message_id], f"{message_id} is leased to nobody"
        for message_id, (run_id, kind) in verdict.dead.items():
            run = self.run(run_id)
            if message_id not in self.dead and kind in {"wake", "replay"}:
                # It may have died at any time since the last look, and have been made good.
                run.letter_since = run.letter_since or self._judged_at
        self.dead = dict(verdict.dead)
        self._judged_at = self._now()

    # -- events ----------------------------------------------------------------------------

    def _event(self, done: Execution) -> None:
        run, name = self.run(done.run_id), done.script.removeprefix("events/")
        run.events += done.status in {"OK", "TOKEN_TAKEN"}
        if done.status == "OK":
            self._happened(run, name, done)
        if done.args["outbox"]:
            self._pushed(Sent.along(done.args["outbox"]), done.reply[3].decode())

    def _happened(self, run: SimulatedRun, name: str, done: Execution) -> None:
        corr = done.text("correlation_id")
        match name:
            case "run_created":
                run.status = "pending"
            case "run_started":
                run.status = "running"
            case "run_completed" | "run_failed" | "run_cancelled":
                run.status = name.removeprefix("run_")
                run.hooks.clear()
            case "step_created":
                run.steps[corr] = True
            case "step_started" if done.args["creates"]:
                run.steps[corr] = True
            case "step_completed" | "step_failed":
                run.steps[corr] = False
            case "hook_created":
                run.hooks.add(corr)
            case "hook_disposed":
                run.hooks.discard(corr)
            case "wait_created":
                run.waits.add(corr)
        if name in _NEEDS and run.is_live:
            run.need = run.need or self._now()

    # -- queue -----------------------------------------------------------------------------

    def _pushed(self, sent: Sent, got: str) -> None:
        """A message was to be sent: the id of the one that stands for it now."""
        if got == sent.message_id:
            # Once more, where it was acked before its send was repeated.
            self.stored.add(got)
            if self._is_first("message", got):
                delay = timedelta(milliseconds=float(sent.delay))
                self._not_before[got] = self._now() + delay
                self._messages[got] = sent
                is_over = (
                    sent.step and self.run(sent.run_id).steps.get(sent.step.decode()) is False
                )
                assert not is_over, f"{got} of a step that is over was stored"
                number = decode_data(sent.body).get("number")
                if number is not None:
                    self.number_of[got] = number
        elif got:
            other = self._messages[got]
            is_same = sent.kind == b"step" or (
                sent.kind == b"wake" and sent.envelope == other.envelope
            )
            assert is_same or sent.key, f"{sent.message_id} was merged into {got}"
            assert got in self.stored, f"{sent.message_id} was merged into {got}, which is over"
        else:
            is_open = self.run(sent.run_id).steps.get(sent.step.decode(), True)
            assert sent.kind == b"step", f"{sent.message_id} was not stored"
            assert not is_open, f"{sent.message_id} of an open step was not stored"

    def _send(self, done: Execution) -> None:
        got = "" if done.status == "DONE" else done.reply[1].decode()
        self._pushed(Sent.of(done.args), got)

    def _claim(self, done: Execution) -> None:
        receipt = done.text("receipt")
        for row in done.reply[4]:
            message_id, run_id = row[0].decode(), row[1].decode()
            if not self._is_first("claim", receipt, message_id):
                continue
            self._attempts[message_id] += 1
            lease = timedelta(milliseconds=float(done.args["lease"]))
            self._leased_until[message_id] = self._now() + lease
            assert int(state_of(row[3])["attempt"]) == self._attempts[message_id], message_id
            early = self._not_before.pop(message_id, self._now()) - self._now()
            declined = self._declined[message_id]
            if declined and receipt.partition("/")[0] not in declined:
                early = timedelta(0)
            assert early <= timedelta(0), f"{message_id} is {early} early"
            if head_of(row[2])["kind"] == "step":
                self.deliveries[f"{run_id}/{step_in(row[2])}"] += 1
            elif run_id:
                self.deliveries[run_id] += 1
                run = self.run(run_id)
                run.need = run.letter_since = None

    def _ack(self, done: Execution) -> None:
        message_id, follow_up = done.text("message_id"), done.text("follow_up_id")
        if done.status != "OK" or message_id not in self.stored:
            return
        self.stored.discard(message_id)
        self._leased_until.pop(message_id, None)
        self._attempts.pop(message_id, None)
        is_carried = False
        if follow_up:
            got = done.reply[1].decode()
            is_carried = got == follow_up
            self._pushed(Sent.behind(done.args, self._messages[message_id]), got)
        if not is_carried:
            self._drop(message_id)

    def _drop(self, message_id: str) -> None:
        """Its content, if any, needs no delivery any more."""
        self.undelivered.discard(self.number_of.get(message_id, 0))

    def _retry(self, done: Execution) -> None:
        if done.status == "LEASE_LOST" or not self._is_first("retry", done.text("op")):
            return
        message_id = done.text("message_id")
        self._leased_until.pop(message_id, None)
        if done.status == "OK":
            delay = timedelta(milliseconds=float(done.args["delay"]))
            self._not_before[message_id] = self._now() + delay
            return
        run = self.run(self._messages[message_id].run_id)
        if self._messages[message_id].kind in _REPLAYS and run.is_live:
            run.need = run.need or self._now()

    def _postpone(self, done: Execution) -> None:
        message_id = done.text("message_id")
        if done.status == "OK" and self._is_first("postpone", done.text("op")):
            self._attempts[message_id] -= 1
            self._leased_until.pop(message_id, None)
            delay = timedelta(milliseconds=float(done.args["delay"]))
            self._not_before[message_id] = self._now() + delay
            self._declined[message_id].add(done.text("receipt").partition("/")[0])

    def _release(self, done: Execution) -> None:
        if done.status == "OK" and self._is_first("release", done.text("op")):
            self._attempts[done.text("message_id")] -= 1
            self._leased_until.pop(done.text("message_id"), None)

    def _redrive(self, done: Execution) -> None:
        message_id = done.text("message_id")
        if done.status != "MESSAGE_NOT_FOUND" and self._is_first("redrive", done.text("op")):
            self.dead.pop(message_id, None)
            self._attempts.pop(message_id, None)
            self._declined.pop(message_id, None)
            if done.status == "DONE" or done.reply[1].decode() != message_id:
                self.stored.discard(message_id)
                self._drop(message_id)

    def _purge(self, done: Execution) -> None:
        for member in done.tail:
            message_id = member.partition("/")[0]
            self.dead.pop(message_id, None)
            self.stored.discard(message_id)
            self._drop(message_id)

    # -- the sweeper -----------------------------------------------------------------------

    def _rescued(self, done: Execution) -> SimulatedRun | None:
        """The run that the sweeper sent a message for; it must be one that is left alone."""
        if done.status != "OK" or not self._is_first("rescue", done.text("message_id")):
            return None
        run = self.run(done.text("run_id"))
        self._pushed(Sent.rescuing(done.args), done.reply[1].decode())
        assert run.is_live, f"{run.run_id} is over, and was rescued"
        letters = [letter for letter, (run_id, _) in self.dead.items() if run_id == run.run_id]
        assert not letters, f"{run.run_id} was rescued and has dead letters"
        return run

    def _pay_wake(self, done: Execution) -> None:
        if run := self._rescued(done):
            since = [time for time in (run.need, run.letter_since) if time is not None]
            assert since, f"{run.run_id} was woken, and owed no wake"
            waited = self._now() - min(since)
            assert waited >= self._interval, f"{run.run_id} was woken after {waited}"
            for message_id in self.stored - {done.text("message_id")}:
                message = self._messages[message_id]
                if message.run_id == run.run_id and message.kind in _REPLAYS:
                    not_before = self._not_before.get(message_id, self._now())
                    assert not_before > self._now(), (
                        f"{run.run_id} was woken, and has the replay {message_id}"
                    )

    def _pay_step(self, done: Execution) -> None:
        if run := self._rescued(done):
            step = done.text("step_id")
            assert run.steps.get(step), f"step {step} of {run.run_id} is over, and was queued"

    def _unpark(self, done: Execution) -> None:
        if run := self._rescued(done):
            assert not run.hooks, f"{run.run_id} waits for hooks, and was woken"
            times = 0
            if run.woken is not None and run.woken[2] == run.events:
                times, since, _ = run.woken
                rested = self._now() - since
                pause = min(self._interval * 2**times, timedelta(hours=1))
                assert rested >= pause, f"{run.run_id} was woken in vain, and again after {rested}"
            run.woken = times + 1, self._now(), run.events

    # -- inside ----------------------------------------------------------------------------

    def _is_first(self, *what: str) -> bool:
        """Whether this was not seen yet: a resend tells the same once more."""
        is_first = what not in self._seen
        self._seen.add(what)
        return is_first
