"""`world.queue`: messages that wake runs (contract, section 7)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from redis_world.claims import CLAIM_SECONDS, NO_ANSWER, Claim, Claims, Found
from redis_world.codec import MAX_BYTES, Duration, decode_data, to_duration_ms
from redis_world.connection import Connection
from redis_world.errors import (
    InvalidInputError,
    MessageNotFoundError,
    WorldError,
)
from redis_world.ids import IdFactory, new_request_id
from redis_world.keys import Keys
from redis_world.messages import (
    DeadLetter,
    Enqueue,
    FollowUp,
    Message,
    Record,
    backoff,
    check_lease,
    check_payload,
    check_topic,
    dead_letter_from,
    encode_body,
    kind_of,
    message_args,
    message_from,
    owner_of,
    postpone_delay,
    read_record,
    step_name_of,
    tell_dropped,
    topic_of,
)
from redis_world.models import Page
from redis_world.outages import Outage
from redis_world.paging import (
    DEFAULT_LIMIT,
    ask_all,
    check_limit,
    make_page,
    merge,
    parse_cursor,
    read_page,
)
from redis_world.requests import current_request
from redis_world.rows import PostponedName, queue_counts
from redis_world.scatter import complete, raise_worst
from redis_world.values import items, shown, text, whole

__all__ = [
    "MAX_CLAIM",
    "Claim",
    "DeadLetter",
    "Enqueue",
    "FollowUp",
    "Message",
    "PostponedName",
    "Queue",
    "QueueStats",
    "backoff",
    "postpone_delay",
    "topic_of",
]

logger = logging.getLogger(__name__)

MAX_CLAIM: Final = 1000
DEFAULT_LEASE: Final = 60.0
_CLAIM_TRIES: Final = 5
_ROOM_FOR_EACH: Final = 2
"""How many messages a claim must have room for in each partition, to be made without a look."""
_MAX_WORKER_ID: Final = 64
_NAMED: Final = 8
"""Partitions that a log line names."""
_LETTERS_AT_ONCE: Final = 500
"""Dead letters of one round trip."""
_BYTES_AT_ONCE: Final = 1024 * 1024
"""What messages of one claim or page may have together, unless one alone has more."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many messages of a topic are in which state.

    Attributes:
        ready: due, and not leased.
        delayed: due later.
        leased: a worker is handling them.
        held: due replays that wait until the leased replay of their run ends.
        dead: dead letters.
        oldest_due_age: seconds since the oldest ready message was due; 0 for none.
        postponed: messages in `ready` and `delayed` that workers have postponed.
        longest_postponed: seconds since the first of them was first postponed; 0 for none.
        postponed_names: their workflows and steps, the longest postponed first, at most 20.
    """

    ready: int
    delayed: int
    leased: int
    held: int
    dead: int
    oldest_due_age: float
    postponed: int = 0
    longest_postponed: float = 0.0
    postponed_names: tuple[PostponedName, ...] = ()


class _Claimant(NamedTuple):
    """Who claims, and how."""

    worker: str
    receipt: str
    """Of all messages that the claim gets, so that a repetition finds them."""
    spot: str
    """Where among what others have postponed it looks, by chance, from 0 to 1."""
    lease_ms: str
    look: float | None = None
    """Seconds after which it looks again by itself; None: nothing wakes it."""
    max_bytes: int = _BYTES_AT_ONCE

    def look_ms(self) -> str:
        """By chance somewhat less, so that looks are spread out."""
        if self.look is None:
            return ""
        return f"{self.look * 1000 * random.uniform(0.85, 1.0):.0f}"  # noqa: S311 - guards nothing


def _chance() -> str:
    return f"{random.random():.6f}"  # noqa: S311 - spreads looks, guards nothing


class _Lease(NamedTuple):
    """Where a leased message is, and what the scripts that end the lease know it by."""

    keys: Keys
    topic: str
    run_id: str
    message_id: str
    receipt: str


def _share_out(counts: Mapping[Keys, int], limit: int) -> dict[Keys, int]:
    """How many of so many to take from each: equal shares, what some don't need for the others."""
    shares: dict[Keys, int] = {}
    left = limit
    while left and (wanting := [k for k, n in counts.items() if shares.get(k, 0) < n]):
        each = max(1, left // len(wanting))
        for keys in wanting:
            taken = min(each, counts[keys] - shares.get(keys, 0), left)
            if taken:
                shares[keys] = shares.get(keys, 0) + taken
                left -= taken
    return shares


def _time_of_death(place: bytes) -> tuple[int, bytes]:
    """What dead letters are listed by: their time, then their id."""
    time, _, message_id = place.partition(b":")
    return int(time), message_id


class Queue:
    """Sends and delivers messages, at least once each."""

    def __init__(self, connection: Connection, ids: IdFactory) -> None:
        self._connection = connection
        self._ids = ids
        self._worker = new_request_id()
        """Who claims, where nobody says so."""
        self._claims: WeakKeyDictionary[asyncio.AbstractEventLoop, Claims] = WeakKeyDictionary()
        self._partial = Outage(connection.outage.where)
        self._lost: dict[int, str] = {}
        """The partitions that did not answer the last time, and why."""

    async def release_claims(self) -> None:
        """Release messages that were leased too late for their claim."""
        claims = self._claims.pop(asyncio.get_running_loop(), None)
        if claims is not None:
            await claims.aclose()

    async def send(
        self,
        queue_name: str,
        payload: Mapping[str, Any],
        *,
        delay: Duration = 0.0,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        deployment_id: str | None = None,
    ) -> str | None:
        """Send a message.

        If an outstanding message already covers this one, nothing is stored and that message's id
        is returned. It has the same key, or is the message of the same step, or is a plain wake-up
        of the same run that was not yet delivered.

        Args:
            queue_name: `__wkf_workflow_<id>` or `__<namespace>_wkf_workflow_<id>`; for steps of
                older clients the same with `step` in the place of `workflow`.
            payload: JSON values, bytes and datetimes; delivered unchanged.
            delay: how long until it is due, by the server's clock.
            idempotency_key: identifies the message among those of its run.
            headers: delivered with the message.
            deployment_id: delivered with the message.

        Returns:
            The id of the message that covers this one. None if its step is terminal: then nothing
            is left to deliver, and nothing was stored.

        Raises:
            InvalidInputError: the name, the delay or the payload is invalid.
        """
        await self._connection.open()
        enqueue = Enqueue(queue_name, payload, delay, idempotency_key, headers, deployment_id)
        args = message_args(enqueue, self._new_id(), self._connection.config.max_payload_bytes)
        # A run's messages lie beside it; the keys of others are their topic's.
        keys = self._connection.partitions.of(args["run_id"] or args["topic"])
        reply = await self._connection.call(
            "queue/send",
            {"due": keys.topic(args["topic"], "due")},
            {"base": keys.base, **args},
        )
        return None if reply[0] == b"DONE" else reply[1].decode()

    async def claim(
        self, topic: str, *, limit: int = 10, lease: Duration = DEFAULT_LEASE
    ) -> list[Message]:
        """Lease due messages, oldest first, then messages that only other workers have postponed.

        Args:
            topic: the prefix of the queue names, `__wkf_workflow_`.
            limit: 1 to 1,000. A call returns fewer where they exceed 1 MiB, but at least one.
            lease: how long no other worker gets them.
        """
        return (await self.claim_batch(topic, limit=limit, lease=lease)).messages

    async def claim_batch(
        self,
        topic: str,
        *,
        limit: int = 10,
        lease: Duration = DEFAULT_LEASE,
        worker: str | None = None,
        partitions: Collection[int] | None = None,
        look: Duration | None = None,
    ) -> Claim:
        """Lease messages as `claim` does, and tell when to claim again.

        Partitions that do not answer at once are skipped. The next claim returns the messages that
        they lease later, or they are released.

        Args:
            topic: as in `claim`.
            limit: as in `claim`.
            lease: as in `claim`.
            worker: the claiming worker, up to 64 letters and digits. It gets messages that it has
                postponed only after their delay. None: this World.
            partitions: where to look; None: in all of them.
            look: the worker then sleeps, where it has room for more than there is: a message wakes
                it by its `worker_channel`, or it looks again after so long. None: it does not.

        Raises:
            WorldUnavailableError: no partition answered.
        """
        limit = whole(limit, "limit", 1, MAX_CLAIM)
        topic = check_topic(topic)
        worker = self._worker if worker is None else _worker_id(worker)
        lease_ms = str(_positive_ms(lease, "lease"))
        seconds = None if look is None else _positive_ms(look, "look") / 1000
        receipt = f"{worker}/{new_request_id()}"
        by = _Claimant(worker, receipt, _chance(), lease_ms, seconds)
        places = self._places(partitions)
        if len(self._connection.partitions) == 1:
            claiming = self._claim_from(places[0], topic, limit, by)
            return await self._claims_of_this_loop().whole(claiming)
        late = self._claims_of_this_loop()
        request = current_request()
        if request is not None and request.is_repeated:
            return await self._claim_again(late, places, topic, limit, by)
        if messages := late.take(topic, limit, worker):
            return Claim(messages=messages, more=True, wait=None)
        if partitions is None:
            claim, lost = await self._claim_from_many(late, places, topic, limit, by)
            self._tell_lost(places, lost)
            return claim
        return await self._claim_where_told(late, places, topic, limit, by)

    async def _claim_again(
        self, late: Claims, places: Sequence[Keys], topic: str, limit: int, by: _Claimant
    ) -> Claim:
        """Claim for a caller who may have leased messages already, and does not know of them.

        A look would not show them, and they may be in any partition, so each is asked for all.
        """
        found = await self._claim_shares(late, dict.fromkeys(places, limit), topic, by)
        claim = _joined([*found.answers.values()])
        surplus = claim.messages[limit:]
        await complete([self.release(message) for message in surplus])
        return replace(claim, messages=claim.messages[:limit], more=claim.more or bool(surplus))

    async def _claim_where_told(
        self, late: Claims, places: Sequence[Keys], topic: str, limit: int, by: _Claimant
    ) -> Claim:
        """Claim from some partitions, and do not wait for what is under way there."""
        asked = [keys for keys in places if not late.is_under_way(topic, keys)]
        lost = {keys: NO_ANSWER for keys in places if keys not in asked}
        claim = Claim([], more=False, wait=None)
        try:
            if asked and _ROOM_FOR_EACH * (len(asked) - 1) < limit:
                claim, unanswered = await self._claim_from_few(late, asked, topic, limit, by)
            elif asked:
                claim, unanswered = await self._claim_from_many(
                    late, asked, topic, limit, by, CLAIM_SECONDS
                )
            else:
                unanswered = {}
        except WorldError as error:
            self._tell_lost(places, {**lost, **dict.fromkeys(asked, str(error))})
            if len(self._lost) == len(self._connection.partitions):
                raise
            return replace(claim, lost=frozenset(keys.number for keys in places))
        lost.update(unanswered)
        self._tell_lost(places, lost)
        return replace(claim, lost=frozenset(keys.number for keys in lost))

    async def _claim_from_few(
        self, late: Claims, places: Sequence[Keys], topic: str, limit: int, by: _Claimant
    ) -> tuple[Claim, Mapping[Keys, str]]:
        """Claim from each an equal share: a look before it would cost as much."""
        shares = dict.fromkeys(places, limit // len(places))
        found = await self._claim_shares(late, shares, topic, by)
        return _joined([*found.answers.values()]), found.lost

    async def _claim_from_many(
        self,
        late: Claims,
        places: Sequence[Keys],
        topic: str,
        limit: int,
        by: _Claimant,
        seconds: float | None = None,
    ) -> tuple[Claim, Mapping[Keys, str]]:
        """Look into partitions, at most for so long, and claim from each a share of what is there.

        Returns:
            What was claimed, and why some partitions did not answer.
        """
        asleep: dict[int, float] = {}
        for _ in range(_CLAIM_TRIES):
            by = by._replace(spot=_chance())
            looks = await self._look_into(late, places, topic, limit, by, seconds)
            asleep = {
                keys.number: _seconds_until(reply[4], reply[2])
                for keys, reply in looks.answers.items()
                if reply[4]
            }
            shares, wait, more = self._share(looks.answers, limit)
            found = await self._claim_shares(late, shares, topic, by)
            claims = [*found.answers.values()]
            # What was seen others may have taken meanwhile.
            if not claims or any(claim.messages for claim in claims):
                break
        looked = Claim([], more=more and bool(claims), wait=wait, asleep=asleep)
        return _joined([looked, *claims]), {**looks.lost, **found.lost}

    async def _claim_shares(
        self, late: Claims, shares: Mapping[Keys, int], topic: str, by: _Claimant
    ) -> Found[Claim]:
        by = by._replace(max_bytes=_BYTES_AT_ONCE // max(1, len(shares)))
        calls = {
            keys: partial(self._claim_from, keys, topic, share, by)
            for keys, share in shares.items()
        }
        return await late.claim(topic, calls, lease=int(by.lease_ms) / 1000)

    def _places(self, partitions: Collection[int] | None) -> list[Keys]:
        """The partitions of these numbers, in an order by chance."""
        every = self._connection.partitions
        if partitions is None:
            places = [*every]
        else:
            last = len(every) - 1
            numbers = [whole(n, "partitions", 0, last) for n in items(partitions, "partitions")]
            places = [every[number] for number in dict.fromkeys(numbers)]
            if not places:
                raise InvalidInputError(f"partitions must not be {shown(partitions)}")
        # Whoever comes first in turn is another one each time.
        random.shuffle(places)
        return places

    def _claims_of_this_loop(self) -> Claims:
        loop = asyncio.get_running_loop()
        claims = self._claims.get(loop)
        if claims is None:
            claims = self._claims[loop] = Claims(self.release)
        return claims

    def _tell_lost(self, asked: Sequence[Keys], lost: Mapping[Keys, str]) -> None:
        """Log that some partitions do not answer, and when all do again."""
        for keys in asked:
            if keys in lost:
                self._lost[keys.number] = lost[keys]
            else:
                self._lost.pop(keys.number, None)
        if not self._lost:
            self._partial.succeeded("claim")
            return
        numbers = sorted(self._lost)
        some = ", ".join(map(str, numbers[:_NAMED])) + (", ..." if numbers[_NAMED:] else "")
        which = f"{len(numbers)} of {len(self._connection.partitions)} partitions ({some}) at"
        self._partial.failed(
            "claim", self._lost[numbers[0]], what=which, meanwhile="claiming from the others"
        )

    async def _look_into(
        self,
        late: Claims,
        places: Sequence[Keys],
        topic: str,
        limit: int,
        by: _Claimant,
        seconds: float | None,
    ) -> Found[list[Any]]:
        looks = {keys: partial(self._look, keys, topic, limit, by) for keys in places}
        return await late.look(topic, looks, limit=seconds)

    @staticmethod
    def _share(
        looks: Mapping[Keys, Sequence[Any]], limit: int
    ) -> tuple[dict[Keys, int], float | None, bool]:
        """How many to claim where, and whether more than that are there.

        And in how many seconds others come, in those partitions that nothing is claimed from.
        """
        counts = {keys: int(reply[1]) for keys, reply in looks.items()}
        shares = _share_out(counts, limit)
        waits = [
            _seconds_until(reply[3], reply[2])
            for keys, reply in looks.items()
            if reply[3] and keys not in shares
        ]
        return shares, min(waits, default=None), sum(counts.values()) > limit

    async def _look(self, keys: Keys, topic: str, limit: int, by: _Claimant) -> list[Any]:
        return await self._connection.call(
            "queue/peek",
            self._sets(keys, topic, "due", "leased"),
            {
                "base": keys.base,
                "topic": topic,
                "limit": str(limit),
                "worker": by.worker,
                "spot": by.spot,
                "look": by.look_ms(),
            },
        )

    async def _claim_from(self, keys: Keys, topic: str, limit: int, by: _Claimant) -> Claim:
        config = self._connection.config
        reply = await self._connection.call(
            "queue/claim",
            self._sets(keys, topic, "due", "declined", "leased", "held"),
            {
                "base": keys.base,
                "topic": topic,
                "receipt": by.receipt,
                "limit": str(limit),
                "max_bytes": str(by.max_bytes),
                "lease": by.lease_ms,
                "serialize": "1" if config.serialize_runs else "",
                "max_lost": str(config.max_lost_leases),
                "spot": by.spot,
                "look": by.look_ms(),
            },
        )
        now, upcoming, asleep_until = reply[1], reply[2], reply[6]
        tell_dropped(topic, reply[5])
        messages = await self._read_all(keys, topic, by.receipt, reply[4])
        return Claim(
            messages=messages,
            more=reply[3] == b"1",
            wait=_seconds_until(upcoming, now) if upcoming else None,
            asleep={keys.number: _seconds_until(asleep_until, now)} if asleep_until else {},
            told=frozenset() if asleep_until or by.look is None else frozenset({keys.number}),
        )

    async def ack(self, message: Message, *, follow_up: FollowUp | None = None) -> bool:
        """End a leased message, and send its continuation in the same script.

        The continuation has a new id and attempt 1. It takes the queue name, headers, deployment
        and payload, without `runInput`, from its predecessor.

        Returns:
            False if the lease was lost: then nothing has changed.
        """
        args: dict[str, Any] = dict.fromkeys(
            ("follow_up_id", "kind", "idempotency", "delay", "body"), ""
        )
        lease = self._lease_of(message)
        if follow_up is not None:
            if not isinstance(follow_up, FollowUp):
                raise InvalidInputError(f"follow_up must be a FollowUp, not {shown(follow_up)}")
            delay_ms = to_duration_ms(follow_up.delay, "delay")
            key = ""
            for each in (message.idempotency_key, follow_up.idempotency_key):
                if each is not None:
                    name_limit = self._connection.config.max_name_bytes
                    key = text(each, "idempotency_key", name_limit) or key
            limit = self._connection.config.max_payload_bytes
            payload = check_payload(await self._payload_of(message, lease), MAX_BYTES)
            payload = {k: v for k, v in payload.items() if k != "runInput"}
            args = {
                "follow_up_id": self._new_id(),
                "kind": kind_of(payload, key, delay_ms),
                "idempotency": key,
                "delay": str(delay_ms),
                "body": encode_body(payload, limit),
            }
        return await self._on_lease("queue/ack", lease, ("leased",), args)

    async def _payload_of(self, message: Message, lease: _Lease) -> Mapping[str, Any]:
        """The whole payload of a message; for one that comes from a handle it is read."""
        if message.is_whole:
            return message.payload
        place = (lease.topic, lease.run_id, lease.message_id)
        message_id = lease.message_id
        (envelope, state), large = await self._connection.execute(
            ("HMGET", lease.keys.book(*place), f"message:{message_id}", f"state:{message_id}"),
            ("HGET", lease.keys.contents(*place), f"body:{message_id}"),
        )
        body = read_record(envelope, state).body if envelope and state else b""
        body = large if body is None else body
        # Without any the lease is lost, or the user data of the run is deleted.
        return decode_data(body) if body else message.payload

    async def retry(
        self, message: Message, *, error: str = "", delay: Duration | None = None
    ) -> bool:
        """Free a leased message after a failed attempt.

        Args:
            message: the leased message.
            error: what went wrong, stored with the message.
            delay: how long until it is due again; None: `backoff` of its failures.

        Returns:
            False if the lease was lost: then nothing has changed.
        """
        lease = self._lease_of(message)
        # What the error of a handler said, of which the beginning is kept.
        error = error if isinstance(error, str) else shown(error)
        seconds = backoff(message.failures + 1) if delay is None else delay
        return await self._free(lease, error, seconds)

    async def release(self, message: Message) -> bool:
        """Return a leased message unchanged. It is due at once, and the delivery does not count.

        Returns:
            False if the lease was lost: then nothing has changed.
        """
        return await self._on_lease(
            "queue/release",
            self._lease_of(message),
            ("leased",),
            {"op": new_request_id()},
        )

    async def postpone(self, message: Message, delay: Duration | None = None) -> bool:
        """Return a leased message that this worker can't handle, or can't handle yet.

        It is due again after the delay. Workers that have not postponed it may get it sooner. The
        delivery does not count as an attempt. The message keeps how often and since when it was
        postponed.

        Args:
            message: the leased message.
            delay: how long until it is due; None: `postpone_delay`, which grows with each time.

        Returns:
            False if the lease was lost: then nothing has changed.

        Raises:
            InvalidInputError: the message or the delay is invalid.
        """
        lease = self._lease_of(message)
        limit = self._connection.config.max_payload_bytes
        payload = check_payload(message.payload, limit, "payload of message")
        seconds = postpone_delay(message.postponed) if delay is None else delay
        return await self._on_lease(
            "queue/postpone",
            lease,
            ("leased", "declined"),
            {
                "op": new_request_id(),
                "delay": str(to_duration_ms(seconds, "delay")),
                "step_name": step_name_of(payload),
            },
        )

    async def extend(self, message: Message, *, lease: Duration = DEFAULT_LEASE) -> bool:
        """Set the end of a lease to this long from now.

        Returns:
            False if the lease was lost: then nothing has changed.
        """
        keys, args = self.extension(message, lease)
        reply = await self._connection.call("queue/extend", keys, args)
        return bool(reply[0] == b"OK")

    def extension(
        self, message: Message, lease: Duration
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Keys and arguments of the script that extends a lease, for callers in a thread."""
        milliseconds = _positive_ms(lease, "lease")
        return self._lease_call(self._lease_of(message), ("leased",), {"lease": str(milliseconds)})

    def failure(
        self, message: Message, error: str, delay: Duration
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Keys and arguments of the script that ends a failed attempt, for callers in a thread."""
        lease = self._lease_of(message)
        return self._lease_call(lease, ("leased",), self._failed(error, delay))

    def returning(self, message: Message) -> tuple[dict[str, str], dict[str, Any]]:
        """Keys and arguments of the script that releases a message, for callers in a thread."""
        lease = self._lease_of(message)
        return self._lease_call(lease, ("leased",), {"op": new_request_id()})

    async def stats(self, topic: str) -> QueueStats:
        """Count the messages of a topic."""
        replies = await ask_all(
            [
                self._connection.call(
                    "queue/stats",
                    self._sets(keys, topic, "due", "leased", "held", "dead", "declined"),
                    {"base": keys.base, "topic": topic},
                )
                for keys in self._connection.partitions
            ]
        )
        return QueueStats(*queue_counts(replies))

    async def topics(self) -> list[str]:
        """All topics that ever had a message, sorted."""
        found = await ask_all([self._topics(keys) for keys in self._connection.partitions])
        return sorted({topic for topics in found for topic in topics})

    async def _topics(self, keys: Keys) -> list[str]:
        (names,) = await self._connection.execute(("SMEMBERS", keys.topics))
        return [name.decode() for name in names]

    async def dead_letters(
        self, topic: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[DeadLetter]:
        """List dead letters, the oldest first: messages that failed too often.

        Args:
            topic: the topic.
            limit: 1 to 1,000.
            cursor: the cursor of an earlier page.

        Raises:
            InvalidCursorError: the cursor does not come from this listing.
        """
        limit = check_limit(limit)
        place = parse_cursor("dead_letters", cursor)

        async def ask(keys: Keys, after: str, count: int) -> Sequence[Any]:
            after_time, _, after_id = after.partition(":")
            reply = await self._connection.call(
                "queue/dead_letters",
                self._sets(keys, topic, "dead"),
                {
                    "base": keys.base,
                    "topic": topic,
                    "after_time": after_time,
                    "after_id": after_id,
                    "limit": str(count),
                    "max_bytes": str(_BYTES_AT_ONCE),
                },
            )
            tell_dropped(topic, reply[4])
            return [*reply[:2], await self._read_letters(keys, topic, reply[2]), reply[3]]

        replies = await ask_all(
            [read_page(partial(ask, keys), place, limit) for keys in self._connection.partitions]
        )
        reply = merge(replies, limit, key=_time_of_death)
        return make_page("dead_letters", reply, dead_letter_from, cursor)

    async def redrive(self, message_id: str) -> str | None:
        """Send a dead letter again, with the same id, due now, with its counts reset.

        Returns:
            The id of the message. It is the id of another message if its key or step has one by
            now. None if its step has ended: then nothing is left to deliver.

        Raises:
            MessageNotFoundError: there is no such dead letter.
        """
        message_id = text(message_id, "message_id", self._connection.config.max_name_bytes)
        found = await asyncio.gather(
            *(self._redrive_in(keys, message_id) for keys in self._connection.partitions),
            return_exceptions=True,
        )
        for reply in found:
            if reply is not None and not isinstance(reply, BaseException):
                return None if reply[0] == b"DONE" else reply[1].decode()
        # It may lie in a partition that could not be asked.
        raise_worst(found)
        raise MessageNotFoundError(message_id)

    async def _redrive_in(self, keys: Keys, message_id: str) -> list[Any] | None:
        topics = await self._topics(keys)
        asked = [("HGET", keys.topic(topic, "letters"), message_id) for topic in topics]
        found = await self._connection.execute(*asked) if asked else []
        for topic, run_id in zip(topics, found, strict=True):
            if run_id is not None:
                reply = await self._redrive(keys, topic, f"{message_id}/{run_id.decode()}")
                if reply[0] != b"MESSAGE_NOT_FOUND":
                    return reply
        return None

    async def redrive_all(self, topic: str) -> int:
        """Send all dead letters of a topic again, the oldest first, each as `redrive` does.

        Returns:
            How many there were, including those with nothing left to deliver. Messages that become
            dead letters during the call are not redriven.
        """
        counts = await complete(
            [self._redrive_all(keys, topic) for keys in self._connection.partitions]
        )
        return sum(counts)

    async def _redrive_all(self, keys: Keys, topic: str) -> int:
        dead = self._sets(keys, topic, "dead")["dead"]
        (left,) = await self._connection.execute(("ZCARD", dead))
        count = 0
        while left > 0 and (members := await self._oldest_dead(dead, left)):
            left -= len(members)
            replies = await asyncio.gather(*(self._redrive(keys, topic, m) for m in members))
            count += sum(reply[0] != b"MESSAGE_NOT_FOUND" for reply in replies)
        return count

    async def purge_dead_letters(self, topic: str) -> int:
        """Delete all dead letters of a topic, and return how many."""
        counts = await complete([self._purge(keys, topic) for keys in self._connection.partitions])
        return sum(counts)

    async def _purge(self, keys: Keys, topic: str) -> int:
        sets = self._sets(keys, topic, "dead")
        total = 0
        while members := await self._oldest_dead(sets["dead"], _LETTERS_AT_ONCE):
            reply = await self._connection.call(
                "queue/purge", sets, {"base": keys.base, "topic": topic, "members": members}
            )
            total += int(reply[1])
        return total

    # -- inside ----------------------------------------------------------------------------

    @staticmethod
    def _sets(keys: Keys, topic: str, *parts: str) -> dict[str, str]:
        check_topic(topic)
        return {part: keys.topic(topic, part) for part in parts}

    async def _oldest_dead(self, dead: str, limit: int) -> list[str]:
        last = min(limit, _LETTERS_AT_ONCE) - 1
        (members,) = await self._connection.execute(("ZRANGE", dead, 0, last))
        return [each.decode() for each in members]

    async def _redrive(self, keys: Keys, topic: str, member: str) -> list[Any]:
        message_id, _, run_id = member.partition("/")
        reply = await self._connection.call(
            "queue/redrive",
            self._sets(keys, topic, "dead", "letters"),
            {
                "base": keys.base,
                "topic": topic,
                "op": new_request_id(),
                "run_id": run_id,
                "message_id": message_id,
            },
        )
        if reply[0] == b"MESSAGE_NOT_FOUND":
            tell_dropped(topic, reply[1])
        return reply

    def _lease_of(self, message: Message) -> _Lease:
        if not isinstance(message, Message):
            raise InvalidInputError(f"message must be a Message, not {shown(message)}")
        config, partitions = self._connection.config, self._connection.partitions
        check_lease(message, config.max_name_bytes, len(partitions))
        keys = partitions[message.partition]
        return _Lease(keys, message.topic, owner_of(message), message.message_id, message.receipt)

    async def _on_lease(
        self, script: str, lease: _Lease, sets: Sequence[str], args: Mapping[str, Any]
    ) -> bool:
        keys, given = self._lease_call(lease, sets, args)
        reply = await self._connection.call(script, keys, given)
        return bool(reply[0] != b"LEASE_LOST")

    @staticmethod
    def _lease_call(
        lease: _Lease, sets: Sequence[str], args: Mapping[str, Any]
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Keys and arguments of a script that ends a lease."""
        return (
            {part: lease.keys.topic(lease.topic, part) for part in sets},
            {
                "base": lease.keys.base,
                "topic": lease.topic,
                "run_id": lease.run_id,
                "message_id": lease.message_id,
                "receipt": lease.receipt,
                **args,
            },
        )

    def _failed(self, error: str, delay: Duration) -> dict[str, Any]:
        return {
            "op": new_request_id(),
            "delay": str(to_duration_ms(delay, "delay")),
            "last_error": error.encode("utf-8", "replace")[:4096],
            "max_failures": str(self._connection.config.max_failures),
        }

    async def _free(self, lease: _Lease, error: str, delay: Duration) -> bool:
        """End a failed attempt."""
        args = self._failed(error, delay)
        return await self._on_lease("queue/retry", lease, ("leased",), args)

    async def _read_all(
        self, keys: Keys, topic: str, receipt: str, rows: Sequence[Sequence[bytes]]
    ) -> list[Message]:
        """Claimed messages; one that can't be read is a failed attempt, and nobody else's."""
        records = await self._read_records(keys, topic, rows)
        messages = []
        for row, record in zip(rows, records, strict=True):
            message_id, run_id, _, _, since, step_name = row
            lease = _Lease(keys, topic, run_id.decode(), message_id.decode(), receipt)
            if record is None:
                await self._return_changed(lease)
                continue
            try:
                if isinstance(record, WorldError):
                    raise record
                messages.append(
                    message_from(
                        lease.message_id, lease.run_id, record, since, step_name, keys.number
                    )
                )
            except WorldError as error:
                await self._fail_unreadable(lease, error)
        return messages

    async def _read_letters(
        self, keys: Keys, topic: str, rows: Sequence[Sequence[bytes]]
    ) -> list[Sequence[Any]]:
        """Dead letters as `dead_letter_from` wants them; without content where that is gone.

        Raises:
            WorldError: the record of one can't be read.
        """
        found = [(row[0].partition(b":")[2], *row[1:4]) for row in rows]
        records = await self._read_records(keys, topic, found)
        letters: list[Sequence[Any]] = []
        for row, record in zip(rows, records, strict=True):
            is_whole = isinstance(record, Record)
            given = record if is_whole else read_record(row[2], row[3]).with_content([])
            letters.append((*row[:2], given, *row[4:]))
        return letters

    async def _read_records(
        self, keys: Keys, topic: str, rows: Sequence[Sequence[bytes]]
    ) -> list[Record | WorldError | None]:
        """Messages from their id, run, envelope and state; large content by a round trip more.

        None for one that was changed in between: with the user data of its run its content has
        gone, or all of it has.
        """
        records: list[Record | WorldError | None] = [_readable(row[2], row[3]) for row in rows]
        asked = []
        for place, (message_id, run_id, *_) in enumerate(rows):
            record = records[place]
            if isinstance(record, Record) and (fields := record.large_fields(message_id.decode())):
                where = (topic, run_id.decode(), message_id.decode())
                book = ("HMGET", keys.book(*where), f"message:{message_id.decode()}", "bare")
                asked.append((place, record, (("HMGET", keys.contents(*where), *fields), book)))
        if asked:
            found = await self._connection.execute(*(each for *_, two in asked for each in two))
            contents, books = found[::2], found[1::2]
            for (place, record, _), values, (envelope, bare) in zip(
                asked, contents, books, strict=True
            ):
                if not any(value is None for value in values):
                    records[place] = record.with_content(values)
                elif envelope == rows[place][2] and bare is None:
                    records[place] = WorldError("its content is gone from the server")
                else:
                    records[place] = None
        return records

    async def _return_changed(self, lease: _Lease) -> None:
        """Release a message that is another one than was claimed: it comes again as it is now."""
        # Without its server it is left to its lease.
        with contextlib.suppress(WorldError):
            await self._on_lease("queue/release", lease, ("leased",), {"op": new_request_id()})

    async def _fail_unreadable(self, lease: _Lease, error: WorldError) -> None:
        """Log that a claimed message can't be read, and end the attempt."""
        logger.error(
            "can't read message %s: %s",
            lease.message_id,
            error,
            extra={
                "event": "message.unreadable",
                "message_id": lease.message_id,
                "topic": lease.topic,
            },
        )
        # Without its server it is left to its lease; the others of the claim must not be.
        with contextlib.suppress(WorldError):
            await self._free(lease, str(error), backoff(1))

    def _new_id(self) -> str:
        return self._ids.message_id(self._connection.server_time())


def _readable(envelope: bytes, state: bytes) -> Record | WorldError:
    """A message as it is stored, or why it can't be read."""
    try:
        return read_record(envelope, state)
    except WorldError as error:
        return error


def _joined(claims: Sequence[Claim]) -> Claim:
    """What claims of several partitions have brought."""
    messages = [message for claim in claims for message in claim.messages]
    return Claim(
        messages=sorted(messages, key=lambda each: (each.due_at, each.message_id)),
        more=any(claim.more for claim in claims),
        wait=min((claim.wait for claim in claims if claim.wait is not None), default=None),
        asleep={n: seconds for claim in claims for n, seconds in claim.asleep.items()},
        told=frozenset(number for claim in claims for number in claim.told),
    )


def _seconds_until(time: bytes, now: bytes) -> float:
    """Between two of the server's times."""
    return max(0.0, (float(time) - int(now)) / 1000)


def _worker_id(worker: str) -> str:
    worker = text(worker, "worker", _MAX_WORKER_ID)
    if not (worker.isascii() and worker.isalnum()):
        raise InvalidInputError(f"worker must be letters and digits, not {shown(worker)}")
    return worker


def _positive_ms(duration: Duration, what: str) -> int:
    milliseconds = to_duration_ms(duration, what)
    if milliseconds == 0:
        raise InvalidInputError(f"{what} must be more than 0, not {shown(duration)}")
    return milliseconds
