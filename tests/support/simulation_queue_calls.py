"""What the simulation does with the queue: senders, workers good and bad, operators, sweepers."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, Final

from redis_world.errors import MessageNotFoundError
from redis_world.queue import FollowUp, Message
from redis_world.rows import pairs
from support.queue_tools import LEASED_CALLS, TOPIC, content, health_check, step, wake
from support.simulation_stage import KEYS, Stage

__all__ = ["TOPICS", "QueueCalls"]

TOPICS: Final = (TOPIC, "__other_wkf_workflow_")


WORKERS: Final = ("w1", "w2", "w3")
MOST_MESSAGES: Final = 60
"""Senders wait then: the judge looks at all of them every time."""


class QueueCalls:
    """Random calls of the queue on one stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.leased: list[tuple[Message, datetime]] = []
        """What workers have, and until when."""
        self.old: list[Message] = []
        """Messages as they were leased once, with receipts that prove nothing any more."""

    # -- senders ---------------------------------------------------------------------------

    async def send(self) -> None:
        stage, chance = self.stage, self.stage.random
        if len(stage.promises.stored) >= MOST_MESSAGES:
            return
        run_id = chance.choice(stage.run_ids)
        kind = chance.choice(["wake", "wake", "content", "step", "health"])
        options: dict[str, Any] = {}
        if chance.random() < 0.3:
            options["delay"] = chance.choice([0.001, 1, 30, 300])
        if chance.random() < 0.3:
            options["idempotency_key"] = chance.choice(KEYS)
        if chance.random() < 0.1:
            options.update(chance.choice([{"headers": {"h": "1"}}, {"deployment_id": "2"}]))
        number = stage.new_number()
        payload: dict[str, Any] = wake(run_id)
        if kind == "content":
            payload = content(number, run_id)
        elif kind == "step":
            # Also one that was over long ago: a rival replay queues it once more.
            payload = step(chance.choice([*stage.promises.run(run_id).steps, "a"]), run_id)
        elif kind == "health":
            payload = health_check(number, runId=run_id)
        if kind == "content":
            stage.promises.undelivered.add(number)
        message_id = await stage.world.queue.send(stage.queue_name(), payload, **options)
        stage.tell(f"{payload} {options} -> {message_id}")
        if kind == "content" and stage.promises.number_of.get(message_id or "") != number:
            assert "idempotency_key" in options, f"{message_id} is not of the content {number}"
            stage.promises.undelivered.discard(number)

    # -- workers ---------------------------------------------------------------------------

    async def claim(self) -> None:
        stage = self.stage
        lease, limit = stage.random.choice([1, 20, 60]), stage.random.randint(1, 4)
        messages = await self.claim_of(stage.random.choice(TOPICS), limit, lease)
        first = stage.network.first
        if first is not None and first.script == "queue/claim" and first.reply[4]:
            given = [row[0].decode() for row in first.reply[4]]
            got = [message.message_id for message in messages]
            assert got == given, f"{given} were leased, and then {got}"
        until = stage.clock.now + timedelta(seconds=lease)
        self.leased += [(message, until) for message in messages]

    async def claim_of(self, topic: str, limit: int, lease: float) -> list[Message]:
        claim = await self.stage.world.queue.claim_batch(
            topic, limit=limit, lease=lease, worker=self.stage.random.choice(WORKERS)
        )
        messages = claim.messages
        self.stage.tell(f"{topic} {limit} {lease} -> {[m.message_id for m in messages]}")
        for message in messages:
            assert message.topic == topic, f"{message} is of another topic"
            self.stage.promises.receipts[message.message_id].add(message.receipt)
        return messages

    def take(self, *, may_be_worst: bool = False) -> tuple[Message, datetime] | None:
        """One of the leased messages, and how long its lease holds.

        `may_be_worst`: often one that has failed most, or none would ever fail for the last time.
        """
        if not self.leased:
            return None
        place = self.stage.random.randrange(len(self.leased))
        if may_be_worst and self.stage.random.random() < 0.5:
            place = max(range(len(self.leased)), key=lambda i: self.leased[i][0].failures)
        message, until = self.leased.pop(place)
        self.old.append(message)
        self.stage.tell(message.message_id)
        return message, until

    def _judge(self, until: datetime, *, done: bool, is_gone: bool = False) -> None:
        """A call on a lease succeeds while it lasts, and a resend answers as the first did.

        `is_gone`: the resend may take a message that others have ended for its own.
        """
        is_sure = until > self.stage.latest and not self.stage.is_disturbed
        assert done or not is_sure, "the lease was lost"
        first = self.stage.network.first
        if first is not None:
            was_done = first.status != "LEASE_LOST"
            assert done == was_done or (done and is_gone), f"{done} after {first.status}"

    async def ack(self) -> None:
        if taken := self.take():
            done = await self.stage.world.queue.ack(taken[0])
            self._judge(taken[1], done=done, is_gone=True)

    async def continue_(self) -> None:
        stage = self.stage
        if not (taken := self.take()):
            return
        message, until = taken
        key = stage.random.choice([None, *KEYS, message.idempotency_key])
        delay = stage.random.choice([0, 0.001, 1, 60, 2000])
        follow_up = FollowUp(delay=delay, idempotency_key=key)
        done = await stage.world.queue.ack(message, follow_up=follow_up)
        stage.tell(f"{key} {delay} -> {done}")
        self._judge(until, done=done, is_gone=True)

    async def retry(self) -> None:
        if taken := self.take(may_be_worst=True):
            delay = self.stage.random.choice([None, 0, 1, 60])
            done = await self.stage.world.queue.retry(taken[0], error="boom", delay=delay)
            self._judge(taken[1], done=done)

    async def release(self) -> None:
        if taken := self.take():
            done = await self.stage.world.queue.release(taken[0])
            self._judge(taken[1], done=done)

    async def postpone(self) -> None:
        if taken := self.take():
            delay = self.stage.random.choice([None, 0, 1, 60])
            done = await self.stage.world.queue.postpone(taken[0], delay)
            self._judge(taken[1], done=done)

    async def extend(self) -> None:
        if taken := self.take():
            message, until = taken
            done = await self.stage.world.queue.extend(message, lease=30)
            self._judge(until, done=done)
            if done:
                self.old.remove(message)
                self.leased.append((message, self.stage.clock.now + timedelta(seconds=30)))

    async def die(self) -> None:
        """A worker is killed: nobody will ever use this lease."""
        if self.take():
            self.old.pop()

    async def use_old_receipt(self) -> None:
        """What a worker does that was only slow, after others have had its message."""
        if not self.old:
            return
        message = self.stage.random.choice(self.old[-20:])
        before = await self._raw(message)
        name = self.stage.random.choice([*LEASED_CALLS])
        self.stage.tell(f"{name} of {message.message_id}")
        # Sent once: sent again, a request can't tell who has ended the message meanwhile.
        self.stage.network.plan([])
        assert await LEASED_CALLS[name](self.stage.world, message) is False, (
            "an old receipt was taken"
        )
        assert await self._raw(message) == before, "an old receipt has changed something"

    async def _raw(self, message: Message) -> list[Any]:
        keys, run_id = self.stage.world.connection.keys, message.run_id or ""
        sets = (
            keys.topic(message.topic, part)
            for part in ("due", "leased", "held", "dead", "declined")
        )
        book, *scores = await self.stage.world.connection.execute(
            ("HGETALL", keys.book(message.topic, run_id, message.message_id)),
            *(("ZSCORE", key, f"{message.message_id}/{run_id}") for key in sets),
        )
        # A large hash has no order that lasts.
        return [pairs(book), *scores]

    # -- operators and sweepers ------------------------------------------------------------

    async def redrive(self) -> None:
        stage = self.stage
        if letters := sorted(stage.promises.dead):
            letter = stage.random.choice(letters)
            stage.tell(letter)
            try:
                await stage.world.queue.redrive(letter)
            except MessageNotFoundError:
                assert stage.is_disturbed, f"{letter} was not found"

    async def redrive_all(self, topic: str | None = None) -> None:
        topic = topic or self.stage.random.choice(TOPICS)
        letters = await self._letters(topic)
        count = await self.stage.world.queue.redrive_all(topic)
        self.stage.tell(f"{topic} {letters} -> {count}")
        assert count == len(letters), f"{count} of {letters}"

    async def purge(self) -> None:
        topic = self.stage.random.choice(TOPICS)
        letters = await self._letters(topic)
        count = await self.stage.world.queue.purge_dead_letters(topic)
        self.stage.tell(f"{topic} {letters} -> {count}")
        assert count == len(letters), f"{count} of {letters}"

    async def _letters(self, topic: str) -> list[str]:
        connection = self.stage.world.connection
        (letters,) = await connection.execute(
            ("ZRANGE", connection.keys.topic(topic, "dead"), 0, -1)
        )
        return [letter.decode() for letter in letters]

    async def sweep(self) -> None:
        sweepers = self.stage.random.choice([1, 1, 2, 3])
        swept = await asyncio.gather(*(self.stage.world.sweep() for _ in range(sweepers)))
        self.stage.tell(f"{swept}")

    async def pass_time(self) -> None:
        """Forward; now and then a little back, as clocks are set."""
        stage, chance = self.stage, self.stage.random
        if chance.random() < 0.15:
            await stage.set_clock(-chance.choice([0.001, 0.5, 3]))
        else:
            steps = [0.001, 0.5, 1, 5, 10, 20, 60, 400]
            await stage.set_clock(chance.choices(steps, [2, 2, 3, 4, 4, 4, 2, 0.3])[0])
