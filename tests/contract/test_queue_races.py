"""Rivals at the queue, and random operations held against its invariants (contract, section 7)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest

from redis_world import RedisWorld
from redis_world.codec import decode_data
from redis_world.errors import WorldError
from redis_world.queue import FollowUp, Message
from redis_world.testing import ManualClock
from support.backends import Backend
from support.queue_invariants import QueueState
from support.queue_tools import (
    LEASED_CALLS,
    NAME,
    TOPIC,
    claim_one,
    content,
    create_step,
    end_step,
    finish_run,
    health_check,
    send,
    start_run,
    step,
    wake,
)

T = TypeVar("T")

RIVALS = 20


@contextlib.asynccontextmanager
async def several_worlds(backend: Backend, count: int = 4) -> AsyncIterator[list[RedisWorld]]:
    """Worlds of one namespace, each with connections of its own."""
    namespace = backend.namespace()
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(backend.world(namespace=namespace))
            for _ in range(count)
        ]


async def race(worlds: list[RedisWorld], call: Callable[[RedisWorld], Awaitable[T]]) -> list[T]:
    return await asyncio.gather(*(call(worlds[i % len(worlds)]) for i in range(RIVALS)))


def check(backend: Backend, world: RedisWorld) -> None:
    with contextlib.closing(backend.client()) as client:
        assert QueueState(client, world.connection.keys.base).violations() == []


# -- races ----------------------------------------------------------------------------------


async def test_a_message_goes_to_one_of_twenty_claimers(backend: Backend) -> None:
    async with several_worlds(backend) as worlds:
        sent = await send(worlds[0], content(1))
        answers = await race(worlds, lambda world: world.queue.claim(TOPIC))
        claimed = [message.message_id for messages in answers for message in messages]
        assert claimed == [sent]
        check(backend, worlds[0])


async def test_twenty_claimers_share_all_messages(backend: Backend) -> None:
    async with several_worlds(backend) as worlds:
        sent = {await send(worlds[0], content(i, f"run_{i}")) for i in range(60)}
        answers = await race(worlds, lambda world: world.queue.claim(TOPIC, limit=3))
        claimed = [message.message_id for messages in answers for message in messages]
        assert Counter(claimed) == Counter(sent)


async def test_a_run_of_many_replays_gives_one_to_twenty_claimers(backend: Backend) -> None:
    async with several_worlds(backend) as worlds:
        for i in range(RIVALS):
            await send(worlds[0], content(i))
        for _ in range(RIVALS):
            answers = await race(worlds, lambda world: world.queue.claim(TOPIC, limit=3))
            (message,) = [message for messages in answers for message in messages]
            assert await worlds[0].queue.ack(message)
        check(backend, worlds[0])


async def test_one_of_twenty_acks_is_true_and_one_continuation_is_sent(backend: Backend) -> None:
    async with several_worlds(backend) as worlds:
        await send(worlds[0], content(1))
        message = await claim_one(worlds[0])
        answers = await race(
            worlds, lambda world: world.queue.ack(message, follow_up=FollowUp(delay=9))
        )
        assert sorted(answers) == [False] * (RIVALS - 1) + [True]
        stats = await worlds[0].queue.stats(TOPIC)
        assert (stats.ready, stats.delayed, stats.leased) == (0, 1, 0)
        check(backend, worlds[0])


async def test_one_end_of_a_lease_wins(backend: Backend) -> None:
    """Acks, retries and give-backs of one lease: one is True, whichever it is."""
    async with several_worlds(backend) as worlds:
        ends: list[Callable[[RedisWorld, Message], Awaitable[bool]]] = [
            lambda world, message: world.queue.retry(message, delay=9),
            lambda world, message: world.queue.ack(message),
            lambda world, message: world.queue.give_back(message),
        ]
        for first in range(3):
            await send(worlds[0], content(first, f"run_{first}"))
            message = await claim_one(worlds[0])
            calls = [
                ends[(first + i) % 3](worlds[i % len(worlds)], message) for i in range(RIVALS)
            ]
            assert sorted(await asyncio.gather(*calls)) == [False] * (RIVALS - 1) + [True]
            check(backend, worlds[0])
            for again in await worlds[0].queue.claim(TOPIC):
                await worlds[0].queue.ack(again)


@pytest.mark.parametrize(
    ("payload", "options"),
    [(content(1), {"idempotency_key": "k"}), (step(), {}), (wake(), {})],
    ids=["key", "step", "wake"],
)
async def test_twenty_sends_are_one_message(
    backend: Backend, payload: dict[str, Any], options: dict[str, Any]
) -> None:
    async with several_worlds(backend) as worlds:
        ids = await race(worlds, lambda world: send(world, payload, **options))
        assert len({*ids}) == 1
        assert (await worlds[0].queue.stats(TOPIC)).ready == 1
        check(backend, worlds[0])


async def test_an_expired_lease_is_freed_once(backend: Backend) -> None:
    """By twenty sweepers and claimers at once: no lease is counted as lost twice."""
    library = ManualClock.library()
    async with backend.world(library=library) as world:
        clock = await ManualClock(world).set()
        await send(world, content(1))
        await claim_one(world, lease=1)
        await clock.advance(1)
        swept = await asyncio.gather(*(world.sweep() for _ in range(RIVALS)))
        assert sum(counts["expired_leases"] for counts in swept) == 1
        answers = await asyncio.gather(*(world.queue.claim(TOPIC) for _ in range(RIVALS)))
        (message,) = [message for messages in answers for message in messages]
        assert message.attempt == 2
        check(backend, world)


async def test_sends_and_ends_race_without_a_loss(backend: Backend) -> None:
    """A wake that is sent while the one before it is claimed is never lost."""
    async with several_worlds(backend) as worlds:
        number = 0
        for _ in range(RIVALS):
            sends = [send(world, wake()) for world in worlds]
            claims = [world.queue.claim(TOPIC) for world in worlds]
            ids, answers = await asyncio.gather(asyncio.gather(*sends), asyncio.gather(*claims))
            delivered = {message.message_id for messages in answers for message in messages}
            for messages in answers:
                for message in messages:
                    assert await worlds[number % 4].queue.ack(message)
                    number += 1
            while rest := await worlds[0].queue.claim(TOPIC):
                delivered |= {message.message_id for message in rest}
                for message in rest:
                    assert await worlds[0].queue.ack(message)
            assert delivered == {*ids}
        check(backend, worlds[0])


# -- random operations ----------------------------------------------------------------------

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


@pytest.mark.parametrize("seed", range(4))
async def test_random_operations_keep_the_queue_in_order(backend: Backend, seed: int) -> None:
    operations = 300 if backend.is_memory else 150
    print(f"seed {seed}, {operations} operations")  # noqa: T201 - shown when it fails
    async with backend.world(
        library=ManualClock.library(), max_failures=3, max_lost_leases=4
    ) as world:
        clock = await ManualClock(world).set()
        await Simulation(world, clock, backend, seed).run(operations)


async def test_random_operations_without_one_replay_per_run(backend: Backend) -> None:
    """Only what serialized runs promise does not hold then."""
    async with backend.world(library=ManualClock.library(), serialize_runs=False) as world:
        clock = await ManualClock(world).set()
        chance = random.Random(5)
        leased: list[Message] = []
        for i in range(80):
            match chance.choice(["send", "send", "claim", "ack", "time"]):
                case "send":
                    await send(world, chance.choice([wake(), content(i), step()]))
                case "claim":
                    leased += await world.queue.claim(TOPIC, limit=2, lease=20)
                case "ack" if leased:
                    await world.queue.ack(leased.pop(chance.randrange(len(leased))))
                case _:
                    await clock.advance(3)
            with contextlib.closing(backend.client()) as client:
                state = QueueState(client, world.connection.keys.base)
            assert state.violations(serialized=False) == []
            assert "held" not in {place for places in state.places.values() for place in places}
        assert await world.queue.send(NAME, content("last")) is not None
