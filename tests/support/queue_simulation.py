"""Random operations on the queue, and what was promised by them."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from redis_world import RedisWorld
from redis_world.codec import decode_data
from redis_world.errors import WorldError
from redis_world.queue import FollowUp, Message
from redis_world.testing import ManualClock
from support.backends import Backend
from support.queue_invariants import QueueState
from support.queue_tools import (
    LEASED_CALLS,
    TOPIC,
    content,
    create_step,
    end_step,
    finish_run,
    health_check,
    start_run,
    step,
    wake,
)

TOPICS = (TOPIC, "__other_wkf_workflow_")


class Simulation:
    """Random calls on one World, what they promised, and whether it was kept."""

    def __init__(self, world: RedisWorld, clock: ManualClock, backend: Backend, seed: int) -> None:
        self.world = world
        self.queue = world.queue
        self.clock = clock
        self.backend = backend
        self.random = random.Random(seed)
        self.runs: list[str] = []
        self.steps: list[tuple[str, str]] = []
        self.leased: list[tuple[Message, datetime]] = []
        self.old: list[Message] = []
        self.not_before: dict[str, datetime] = {}
        self.attempts: Counter[str] = Counter()
        self.numbers = 0
        self.undelivered: set[int] = set()
        """Content that was sent and not yet acked."""
        self.story: list[str] = []

    def state(self) -> QueueState:
        with contextlib.closing(self.backend.client()) as client:
            return QueueState(client, self.world.connection.keys.base)

    async def start(self) -> None:
        self.runs = [await start_run(self.world) for _ in range(2)]
        self.runs.append("wrun_01HZX0000000000000000000ZZ")  # not there, and never will be
        for run_id in self.runs[:2]:
            for name in ("a", "b"):
                await create_step(self.world, run_id, name)
                self.steps.append((run_id, name))
        self.steps.append((self.runs[2], "a"))

    async def run(self, operations: int) -> None:
        await self.start()
        choices = {
            self.send: 30,
            self.claim: 25,
            self.ack: 12,
            self.continue_: 8,
            self.retry: 8,
            self.give_back: 4,
            self.extend: 3,
            self.use_old_receipt: 6,
            self.pass_time: 15,
            self.sweep: 4,
            self.end_something: 1,
        }
        for _ in range(operations):
            operation = self.random.choices([*choices], [*choices.values()])[0]
            self.story.append(operation.__name__)
            await operation()
            violations = self.state().violations()
            assert violations == [], self.story[-12:]
        await self.drain()

    # Each operation tells its details to the story, which a failure prints.

    async def send(self) -> None:
        kind = self.random.choice(["wake", "wake", "content", "step", "health"])
        run_id = self.random.choice(self.runs)
        options: dict[str, Any] = {"name": self.random.choice(TOPICS) + "orders"}
        if self.random.random() < 0.3:
            options["delay"] = self.random.choice([0.001, 1, 30, 300])
        if self.random.random() < 0.3:
            options["idempotency_key"] = self.random.choice(["k1", "k2"])
        if self.random.random() < 0.1:
            options["headers"] = {"h": self.random.choice("12")}
        number = self.numbers = self.numbers + 1
        payload: dict[str, Any] = wake(run_id)
        if kind == "content":
            payload = content(number, run_id)
        elif kind == "step":
            run_id, name = self.random.choice(self.steps)
            payload = step(name, run_id)
        elif kind == "health":
            payload = health_check(number, runId=run_id)
        before = self.state()
        message_id = await self.queue.send(options.pop("name"), payload, **options)
        self.story.append(f"{payload} {options} -> {message_id}")
        if message_id is None:
            assert kind == "step"
        elif message_id in before.messages:
            assert before.is_outstanding(message_id)
            assert kind in {"wake", "step"} or "idempotency_key" in options
        else:
            due = self.clock.now + timedelta(seconds=options.get("delay", 0))
            self.not_before[message_id] = due
            if kind == "content":
                self.undelivered.add(number)

    async def claim(self) -> None:
        lease = self.random.choice([1, 20, 60])
        limit = self.random.randint(1, 4)
        topic = self.random.choice(TOPICS)
        messages = await self.queue.claim(topic, limit=limit, lease=lease)
        self.story.append(f"{topic} {limit} {lease} -> {[m.message_id for m in messages]}")
        for message in messages:
            self.attempts[message.message_id] += 1
            assert message.topic == topic
            assert message.attempt == self.attempts[message.message_id]
            assert self.not_before.pop(message.message_id, self.clock.now) <= self.clock.now
        until = self.clock.now + timedelta(seconds=lease)
        self.leased += [(message, until) for message in messages]

    def _take(self) -> tuple[Message, bool] | None:
        """One of the leased messages, and whether its lease holds for certain."""
        if not self.leased:
            return None
        message, until = self.leased.pop(self.random.randrange(len(self.leased)))
        self.old.append(message)
        self.story.append(message.message_id)
        return message, until > self.clock.now

    def _ended(self, message: Message) -> None:
        self.undelivered.discard(message.payload.get("number", 0))

    async def ack(self) -> None:
        if taken := self._take():
            message, sure = taken
            if await self.queue.ack(message):
                self._ended(message)
            else:
                assert not sure

    async def continue_(self) -> None:
        if not (taken := self._take()):
            return
        message, sure = taken
        key = self.random.choice([None, "k1", "k2", message.idempotency_key])
        delay = self.random.choice([0, 0.001, 1, 2000])
        before = self.state()
        done = await self.queue.ack(message, follow_up=FollowUp(delay=delay, idempotency_key=key))
        after = self.state()
        self.story.append(f"{key} {delay} -> {done}")
        if not done:
            assert not sure
            return
        assert message.message_id not in after.messages
        new = {*after.messages} - {*before.messages}
        for message_id in new:
            self.not_before[message_id] = self.clock.now + timedelta(seconds=delay)
        if not new:
            self._assert_stood_for(message, key or message.idempotency_key, after)
            self._ended(message)

    @staticmethod
    def _assert_stood_for(message: Message, key: str | None, after: QueueState) -> None:
        """A continuation that is no message of its own: another one stands for it."""
        run = message.run_id or ""
        if key is not None and (message.topic, run, key) in after.keys:
            return
        if message.is_step:
            # Its step is over: otherwise the place that its predecessor left was free.
            place = b"step:" + message.payload["stepId"].encode()
            assert place not in after.bookkeeping.get(run, {})
            return
        assert b"wake" in after.bookkeeping[run], message

    async def retry(self) -> None:
        if taken := self._take():
            message, sure = taken
            delay = self.random.choice([None, 0, 1])
            if await self.queue.retry(message, error="boom", delay=delay):
                if message.failures + 1 > self.world.config.max_failures:
                    self._ended(message)
                    assert self.state().place(message.message_id) == "dead"
                else:
                    wait = 5 if delay is None else delay
                    self.not_before[message.message_id] = self.clock.now + timedelta(seconds=wait)
            else:
                assert not sure

    async def give_back(self) -> None:
        if taken := self._take():
            message, sure = taken
            if await self.queue.give_back(message):
                self.attempts[message.message_id] -= 1
            else:
                assert not sure

    async def extend(self) -> None:
        if taken := self._take():
            message, sure = taken
            if await self.queue.extend(message, lease=30):
                self.old.pop()
                self.leased.append((message, self.clock.now + timedelta(seconds=30)))
            else:
                assert not sure

    async def use_old_receipt(self) -> None:
        if not self.old:
            return
        message = self.random.choice(self.old)
        before = self.backend.dump()
        name = self.random.choice([*LEASED_CALLS])
        assert await LEASED_CALLS[name](self.world, message) is False
        assert self.backend.dump() == before

    async def pass_time(self) -> None:
        await self.clock.advance(self.random.choice([0.001, 0.5, 1, 10, 60]))

    async def sweep(self) -> None:
        await self.world.sweep()

    async def end_something(self) -> None:
        with contextlib.suppress(WorldError):
            if self.random.random() < 0.5:
                run_id, name = self.random.choice(self.steps)
                await end_step(self.world, run_id, name)
            else:
                await finish_run(self.world, self.random.choice(self.runs))

    async def drain(self) -> None:
        """Good workers only from now on: all is delivered, nothing is left."""
        self.story.append("drain")
        for _ in range(200):
            await self.clock.advance(timedelta(hours=1))
            found = False
            for topic in TOPICS:
                for message in await self.queue.claim(topic, limit=50, lease=60):
                    found = True
                    assert await self.queue.ack(message)
                    self._ended(message)
            if not found:
                break
        state = self.state()
        assert state.violations() == []
        assert {place for places in state.places.values() for place in places} <= {"dead"}
        dead = {decode_data(f[b"body"]).get("number") for f in state.messages.values()}
        assert self.undelivered <= dead
        assert state.keys == {}
        assert state.held_of_run == {}
