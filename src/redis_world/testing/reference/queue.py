"""`world.queue` of the reference: messages that wake runs (contract, section 7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from redis_world.codec import Duration, decode_data, from_ms, to_duration_ms
from redis_world.errors import InvalidInputError, MessageNotFoundError
from redis_world.ids import new_request_id
from redis_world.messages import (
    DeadLetter,
    Enqueue,
    FollowUp,
    Message,
    backoff,
    check_topic,
    postpone_delay,
    step_name_of,
)
from redis_world.models import Page
from redis_world.paging import DEFAULT_LIMIT
from redis_world.queue import MAX_CLAIM, Claim, PostponedName, QueueStats
from redis_world.testing.reference import delivery
from redis_world.testing.reference.debts import restart_looks, tidy
from redis_world.testing.reference.pages import make_page
from redis_world.testing.reference.state import State, StoredMessage

__all__ = ["ReferenceQueue"]

_DEFAULT_LEASE: Final = 60.0


class ReferenceQueue:
    """Sends and delivers messages, at least once each."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._worker = new_request_id()

    async def send(
        self,
        queue_name: str,
        payload: Mapping[str, object],
        *,
        delay: Duration = 0.0,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        deployment_id: str | None = None,
    ) -> str | None:
        """Send a message.

        Returns:
            The id of the message that stands for this one: its own, or that of an outstanding
            one of the same key, of the same step, or of an undelivered plain wake of the same
            run. None when its step is terminal: then nothing was stored.

        Raises:
            InvalidInputError: the name, the delay or the payload is not valid.
        """
        enqueue = Enqueue(queue_name, payload, delay, idempotency_key, headers, deployment_id)
        return delivery.push(self._state, delivery.message_of(self._state, enqueue))

    async def claim(
        self, topic: str, *, limit: int = 10, lease: Duration = _DEFAULT_LEASE
    ) -> list[Message]:
        """Lease messages that are due, oldest first; of the same time, by their ids."""
        return (await self.claim_batch(topic, limit=limit, lease=lease)).messages

    async def claim_batch(
        self,
        topic: str,
        *,
        limit: int = 10,
        lease: Duration = _DEFAULT_LEASE,
        worker: str | None = None,
        partitions: Collection[int] | None = None,
        look: Duration | None = None,
    ) -> Claim:
        """Lease messages as `claim` does, and tell when to come again.

        `more` is always False: this World looks at everything. It has one partition, and wakes
        nobody.
        """
        del partitions, look
        if not 1 <= limit <= MAX_CLAIM:
            raise InvalidInputError(
                f"limit must be a whole number from 1 to {MAX_CLAIM}, not {limit!r}"
            )
        check_topic(topic)
        claimed = delivery.claim(
            self._state,
            topic,
            receipt=f"{worker or self._worker}/{new_request_id()}",
            limit=limit,
            lease_ms=_positive_ms(lease, "lease"),
        )
        times = [
            message.due_at if message.place == "due" else message.lease_ends_at
            for message in self._state.messages.values()
            if message.topic == topic and message.place in ("due", "leased")
        ]
        wait = max(0, min(times) - self._state.now_ms()) / 1000 if times else None
        return Claim([self._message(each) for each in claimed], more=False, wait=wait)

    async def ack(self, message: Message, *, follow_up: FollowUp | None = None) -> bool:
        """End a leased message; with a continuation, in one step.

        The continuation has an id of its own and attempt 1; the queue name, headers, deployment
        and payload, less `runInput`, are its predecessor's, and so is the key, unless it has one.

        Returns:
            False when the lease was lost: then nothing has changed.
        """
        continuation = None
        if follow_up is not None:
            payload = {k: v for k, v in message.payload.items() if k != "runInput"}
            key = follow_up.idempotency_key or message.idempotency_key
            continuation = delivery.message_of(
                self._state,
                Enqueue(
                    message.queue_name,
                    payload,
                    follow_up.delay,
                    key,
                    message.headers,
                    message.deployment_id,
                ),
            )
        leased = delivery.leased(self._state, message)
        if leased is None:
            return False
        delivery.acknowledge(self._state, leased, continuation)
        return True

    async def retry(
        self, message: Message, *, error: str = "", delay: Duration | None = None
    ) -> bool:
        """Free a leased message after a failed attempt, or give it up after too many.

        Args:
            message: the leased message.
            error: what went wrong, kept with the message.
            delay: until it is due again; None: `backoff` of its failures.

        Returns:
            False when the lease was lost: then nothing has changed.
        """
        seconds = backoff(message.failures + 1) if delay is None else delay
        delay_ms = to_duration_ms(seconds, "delay")
        leased = delivery.leased(self._state, message)
        if leased is None:
            return False
        leased.failures += 1
        leased.last_error = error.encode("utf-8", "replace")[:4096].decode("utf-8", "replace")
        if leased.failures >= self._state.config.max_failures:
            delivery.bury(self._state, leased, "max_failures")
        else:
            delivery.free(self._state, leased, due_at=self._state.now_ms() + delay_ms)
        return True

    async def release(self, message: Message) -> bool:
        """Return a leased message untouched: due at once, and the attempt does not count.

        Returns:
            False when the lease was lost: then nothing has changed.
        """
        leased = delivery.leased(self._state, message)
        if leased is None:
            return False
        leased.attempt -= 1
        delivery.free(self._state, leased, due_at=self._state.now_ms())
        return True

    async def postpone(self, message: Message, delay: Duration | None = None) -> bool:
        """Return a leased message that is not for this worker, or not yet.

        Args:
            message: the leased message.
            delay: until it is due; None: `postpone_delay`, which grows with each time.

        Returns:
            False when the lease was lost: then nothing has changed.
        """
        seconds = postpone_delay(message.postponed) if delay is None else delay
        delay_ms = to_duration_ms(seconds, "delay")
        leased = delivery.leased(self._state, message)
        if leased is None:
            return False
        delivery.postpone(
            self._state,
            leased,
            due_at=self._state.now_ms() + delay_ms,
            step_name=step_name_of(message.payload),
        )
        return True

    async def extend(self, message: Message, *, lease: Duration = _DEFAULT_LEASE) -> bool:
        """Make a lease end this long from now.

        Returns:
            False when the lease was lost: then nothing has changed.
        """
        lease_ms = _positive_ms(lease, "lease")
        leased = delivery.leased(self._state, message)
        if leased is None:
            return False
        leased.lease_ends_at = self._state.now_ms() + lease_ms
        return True

    async def stats(self, topic: str) -> QueueStats:
        """Count the messages of a topic."""
        check_topic(topic)
        now = self._state.now_ms()
        of_topic = [m for m in self._state.messages.values() if m.topic == topic]
        ready = [m for m in of_topic if m.place == "due" and m.due_at <= now]
        held = [m for m in of_topic if m.place == "held"]
        oldest = min((m.due_at for m in ready + held), default=now)
        postponed = [m for m in of_topic if m.is_offered]
        names = _postponed_names(postponed, now)
        return QueueStats(
            ready=len(ready),
            delayed=sum(m.place == "due" for m in of_topic) - len(ready),
            leased=sum(m.place == "leased" for m in of_topic),
            held=len(held),
            dead=sum(m.place == "dead" for m in of_topic),
            oldest_due_age=max(0, now - oldest) / 1000,
            postponed=len(postponed),
            longest_postponed=names[0].age if names else 0.0,
            postponed_names=names[:20],
        )

    async def topics(self) -> list[str]:
        """The topics that messages were ever sent to, sorted."""
        return sorted(self._state.topics)

    async def dead_letters(
        self, topic: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[DeadLetter]:
        """List messages that nothing more is tried for, by the time of their death.

        Raises:
            InvalidCursorError: the cursor is not one of this listing.
        """
        check_topic(topic)

        def parse(place: str) -> tuple[int, str]:
            died_at, _, message_id = place.partition(":")
            return int(died_at), message_id

        return make_page(
            "dead_letters",
            self._dead(topic),
            place=lambda letter: (letter.died_at, letter.message_id),
            view=self._dead_letter,
            limit=limit,
            cursor=cursor,
            show=lambda place: f"{place[0]}:{place[1]}",
            parse=parse,
        )

    async def redrive(self, message_id: str) -> str | None:
        """Send a dead letter again, under its id, due now, with its counts at nothing.

        Returns:
            The id of the message that stands for it: another one, where its key or its step has
            got one meanwhile; None when its step is over and nothing is left to deliver.

        Raises:
            MessageNotFoundError: there is no such dead letter.
        """
        letter = self._state.messages.get(message_id)
        if letter is None or letter.place != "dead":
            raise MessageNotFoundError(message_id)
        self._forget(letter)
        now = self._state.now_ms()
        again = replace(
            letter,
            place="due",
            enqueued_at=now,
            due_at=now,
            attempt=0,
            failures=0,
            lost_leases=0,
            last_error=None,
            postponed=0,
            postponed_since=None,
            declined_by=(),
        )
        return delivery.push(self._state, again)

    async def redrive_all(self, topic: str) -> int:
        """Send all dead letters of a topic again, the oldest first, each as `redrive` does.

        Returns:
            How many there were, those included that had nothing left to deliver.
        """
        check_topic(topic)
        letters = sorted(self._dead(topic), key=lambda letter: (letter.died_at, letter.message_id))
        for letter in letters:
            await self.redrive(letter.message_id)
        return len(letters)

    async def purge_dead_letters(self, topic: str) -> int:
        """Delete all dead letters of a topic; how many there were."""
        check_topic(topic)
        letters = self._dead(topic)
        for letter in letters:
            self._forget(letter)
        return len(letters)

    # -- inside ----------------------------------------------------------------------------

    def _dead(self, topic: str) -> list[StoredMessage]:
        return [
            message
            for message in self._state.messages.values()
            if (message.topic, message.place) == (topic, "dead")
        ]

    def _forget(self, letter: StoredMessage) -> None:
        del self._state.messages[letter.message_id]
        if letter.run_id:
            restart_looks(self._state, letter)
            tidy(self._state, letter.run_id)

    def _content(self, stored: StoredMessage) -> tuple[dict[str, Any], dict[str, str] | None]:
        """Payload and headers; of a run whose user data is deleted, only what it is about."""
        run = self._state.runs.get(stored.run_id)
        if run is None or not run.has_expired:
            headers = decode_data(stored.headers) if stored.headers else None
            return decode_data(stored.body), headers
        payload = {"runId": stored.run_id}
        if stored.step_id:
            step = run.steps.get(stored.step_id)
            payload["stepId"] = stored.step_id
            payload["stepName"] = "" if step is None else step.fields["step_name"]
        return payload, None

    def _message(self, stored: StoredMessage) -> Message:
        payload, headers = self._content(stored)
        since = stored.postponed_since
        return Message(
            message_id=stored.message_id,
            queue_name=stored.queue_name,
            payload=payload,
            headers=headers,
            deployment_id=stored.deployment_id or None,
            idempotency_key=stored.key or None,
            attempt=stored.attempt,
            failures=stored.failures,
            receipt=stored.receipt,
            enqueued_at=from_ms(stored.enqueued_at),
            due_at=from_ms(stored.due_at),
            postponed=stored.postponed,
            postponed_since=None if since is None else from_ms(since),
            owner=stored.run_id,
        )

    def _dead_letter(self, stored: StoredMessage) -> DeadLetter:
        payload, headers = self._content(stored)
        run = self._state.runs.get(stored.run_id)
        return DeadLetter(
            message_id=stored.message_id,
            queue_name=stored.queue_name,
            payload=payload,
            headers=headers,
            deployment_id=stored.deployment_id or None,
            idempotency_key=stored.key or None,
            reason=stored.reason,
            last_error=None if run is not None and run.has_expired else stored.last_error,
            attempt=stored.attempt,
            failures=stored.failures,
            lost_leases=stored.lost_leases,
            enqueued_at=from_ms(stored.enqueued_at),
            died_at=from_ms(stored.died_at),
        )


def _postponed_names(postponed: Sequence[StoredMessage], now: int) -> tuple[PostponedName, ...]:
    """What they ask for, each once, the longest postponed first."""
    ages: dict[tuple[str, str], float] = {}
    for message in postponed:
        name = message.queue_name, message.step_name
        age = max(0, now - (message.postponed_since or now)) / 1000
        ages[name] = max(age, ages.get(name, 0.0))
    names = [PostponedName(queue, step or None, age) for (queue, step), age in ages.items()]
    return tuple(sorted(names, key=lambda name: (-name.age, name.queue_name)))


def _positive_ms(duration: Duration, what: str) -> int:
    milliseconds = to_duration_ms(duration, what)
    if milliseconds == 0:
        raise InvalidInputError(f"{what} must be more than 0")
    return milliseconds
