"""Callers at work while their server has trouble, and what they were told, held against it.

Every kind of caller is there: writers of events in runs of their own, senders and claimers of
messages, a worker, writers and live readers of streams, waiters for the end of runs. A ledger
keeps what they asked for and what was answered; in the end the server must have just that.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import pytest

from redis_world import RedisWorld
from redis_world.codec import decode_payload
from redis_world.errors import EntityConflictError, WorldError, WorldUnavailableError
from redis_world.ids import event_slot
from redis_world.models import EventResult
from redis_world.queue import Enqueue, Message
from redis_world.testing import check_invariants
from redis_world.worker import Worker
from support import events as e
from support.queue_tools import TOPIC
from support.until import until

__all__ = ["Again", "Ledger", "Load", "all_chunks"]

WORK: Final = "__work_wkf_workflow_"
"""The topic of the worker; claimers take `TOPIC`."""
LEASE: Final = 1.0
_MOST_UNHANDLED: Final = 40
"""Messages beyond which senders wait for the other end."""
_PATIENCE: Final = 30.0

T = TypeVar("T")

Story: TypeAlias = Callable[[RedisWorld, str, str, random.Random], Coroutine[Any, Any, None]]


@dataclass(eq=False)
class Asked:
    """One event that was asked for.

    Attributes:
        run_id: None where the World was to make it, and has not told yet.
        types: the events that it writes, in order; none where it found them done.
        result: what was answered; None where nothing was, or an error.
        refused: whether a rival was first, so that nothing of it may be there.
        shared: whether its event may be that of another request.
    """

    run_id: str | None
    types: tuple[str, ...]
    payloads: list[bytes]
    result: EventResult | None = None
    refused: bool = False
    shared: bool = False


@dataclass(eq=False)
class Stream:
    """What was written to a stream, and whether that was answered."""

    writes: list[list[bytes]] = field(default_factory=list)
    doubtful: set[bytes] = field(default_factory=set)
    read: list[bytes] | None = None


class Ledger:
    """All that was asked for, and what was answered."""

    def __init__(self) -> None:
        self.answers = 0
        self.events: dict[str, Asked] = {}
        self.of_run: defaultdict[str, list[Asked]] = defaultdict(list)
        """The events whose run was known when they were asked for."""
        self.unhandled: dict[int, int] = {}
        """Number of a message -> how often it has still to be handled at least."""
        self.sending: set[int] = set()
        """Numbers of messages whose sending was not answered yet."""
        self.unsent: set[int] = set()
        """Numbers of messages that a full server refused."""
        self._handled: Counter[int] = Counter()
        self.streams: defaultdict[tuple[str, str], Stream] = defaultdict(Stream)
        self.wrong: list[str] = []
        self._acked: dict[str, int] = {}
        self._numbers = 0

    def number(self) -> int:
        """A number for a message."""
        self._numbers += 1
        return self._numbers

    def forget(self) -> None:
        """What was answered so far is not on the server any more."""
        for asked in self.events.values():
            asked.result = None
        self.unhandled.clear()

    def note_event(self, request: str, asked: Asked) -> None:
        self.events[request] = asked
        if asked.run_id is not None:
            self.of_run[asked.run_id].append(asked)

    def note_sent(self, number: int, times: int) -> None:
        """The sending of a message was answered; it has to be handled so many times."""
        self.answers += 1
        self.sending.discard(number)
        if self._handled[number] < times:
            self.unhandled[number] = times

    def note_delivery(self, number: object) -> None:
        """A message came; those that the sweeper sends have no number."""
        if number is None:
            return
        if not isinstance(number, int) or number > self._numbers or number in self.unsent:
            self.wrong.append(f"message {number!r} was delivered, and nobody sent it")
        else:
            self._handled[number] += 1
            if self._handled[number] >= self.unhandled.get(number, 0):
                self.unhandled.pop(number, None)

    def note_claim(self, message: Message, begun: int) -> None:
        """A claim brought a message; `begun` are the answers that there were when it began."""
        if begun >= self._acked.get(message.message_id, begun + 1):
            self.wrong.append(f"message {message.message_id} was acked, and came once more")
        self.note_delivery(message.payload.get("number"))

    def note_ack(self, message: Message) -> None:
        """The ack of a message was answered: it must not come again."""
        self.answers += 1
        self._acked[message.message_id] = self.answers

    async def hold_against(self, world: RedisWorld) -> None:
        """Hold all of it against what a World has, while nobody else writes to it."""
        wrong = [*self.wrong, *(f"message {number} is lost" for number in self.unhandled)]
        keys = world.connection.keys
        (stored,) = await world.connection.execute(("ZRANGE", keys.runs, 0, -1))
        of_run: defaultdict[str | None, dict[str, Asked]] = defaultdict(dict)
        for request, asked in self.events.items():
            of_run[asked.run_id][request] = asked
        for run_id in {*(each.decode() for each in stored), *of_run} - {None}:
            assert run_id is not None
            wrong += await self._hold_run(world, run_id, {**of_run[run_id], **of_run[None]})
        for (run_id, name), stream in self.streams.items():
            chunks = await all_chunks(world, run_id, name)
            wrong += [f"stream {name} of {run_id} {each}" for each in _of_stream(stream, chunks)]
        assert not wrong, "\n".join(wrong[:40])
        await check_invariants(world)

    async def _hold_run(
        self, world: RedisWorld, run_id: str, of_run: dict[str, Asked]
    ) -> list[str]:
        keys = world.connection.partitions.of(run_id).of_run(run_id)
        (entries,) = await world.connection.execute(("XRANGE", keys.events, "-", "+"))
        slots: defaultdict[str, list[int]] = defaultdict(list)
        payloads: defaultdict[str, list[bytes]] = defaultdict(list)
        types: defaultdict[str, list[str]] = defaultdict(list)
        for entry_id, raw in entries:
            fields = dict(zip(raw[::2], raw[1::2], strict=True))
            request = fields[b"op"].decode().partition(":")[2]
            slots[request].append(int(entry_id[2:]))
            types[request].append(fields[b"type"].decode())
            payloads[request] += [fields[b"payload"]] if fields[b"payload"] else []
        if unknown := {*types} - {*of_run}:
            return [f"run {run_id} has events of {unknown}, which nobody asked for"]
        shared = {slot for each in slots if of_run[each].shared for slot in slots[each]}
        wrong: list[str] = []
        for request, asked in of_run.items():
            wrong += _of_event(request, asked, types[request], slots[request][-1:], shared)
            blobs = payloads[request]
            if slots[request] and [*map(decode_payload, blobs)] != asked.payloads:
                wrong.append(f"{asked.types} of {request} has the payloads {blobs}")
        return [f"run {run_id}: {each}" for each in wrong]


def _of_event(
    request: str, asked: Asked, types: list[str], slots: list[int], shared: set[int]
) -> list[str]:
    """What is wrong with the entries of one request; `shared` are slots of such events."""
    what = f"{asked.types} of {request}"
    if types and asked.refused:
        return [f"{what} was refused, and is in slots {slots}"]
    if types and tuple(types) != asked.types:
        return [f"{what} is there as {types} in slots {slots}"]
    if asked.result is None or asked.result.event is None:
        return []
    told = event_slot(asked.result.event.event_id or "")
    if not types and not asked.shared:
        return [f"{what} was answered, and is missing"]
    if told not in (slots or shared):
        return [f"{what} was said to be in slot {told}, and is in {slots}"]
    return []


def _of_stream(stream: Stream, chunks: list[bytes]) -> list[str]:
    wrong = []
    counts = Counter(chunks)
    wrong += [f"has {chunk!r} {n} times" for chunk, n in counts.items() if n > 1]
    known = {chunk for write in stream.writes for chunk in write}
    wrong += [f"has {chunk!r}" for chunk in counts.keys() - known - stream.doubtful]
    places = {chunk: place for place, chunk in enumerate(chunks)}
    last: dict[bytes, int] = {}
    for write in stream.writes:
        found = [places.get(chunk) for chunk in write]
        writer = write[0].partition(b":")[0]
        first = found[0]
        if first is None or found != [*range(first, first + len(write))]:
            wrong.append(f"has the write {write} at {found}")
        elif first <= last.get(writer, -1):
            wrong.append(f"has the write {write} in front of the one before")
        else:
            last[writer] = first
    if stream.read is not None and stream.read != chunks:
        wrong.append(f"has {chunks}, and was read as {stream.read}")
    return wrong


async def all_chunks(world: RedisWorld, run_id: str, name: str) -> list[bytes]:
    """All chunks of a stream."""
    chunks: list[bytes] = []
    cursor = None
    while True:
        page = await world.streams.get_chunks(run_id, name, cursor=cursor)
        chunks += [chunk.data for chunk in page.data]
        if page.cursor is None:
            return chunks
        cursor = page.cursor


PAYLOAD_FIELDS: Final = ("input", "output", "error", "result", "payload", "metadata")


@dataclass(frozen=True)
class Again:
    """A continuation."""

    delay_seconds: float
    idempotency_key: str | None = None


class Load:
    """Callers on some Worlds of one namespace, the last of which is the worker's.

    Args:
        worlds: at least two: rivals are on different ones.
        seed: of what they do.
        tolerated: errors that callers have to expect; any other one fails the test.
        size: how many callers of each kind there are.
        own_ids: whether run ids are made here too, by this machine's clock.
        streams: whether streams are written; what a server forgets has no order.
        loses: whether the server may lose what it has answered to nobody, and others have read:
            live readers then miss what takes its place, and a message that was handled may be
            stored once more with its event.
    """

    def __init__(
        self,
        worlds: Sequence[RedisWorld],
        seed: int,
        *,
        tolerated: tuple[type[WorldError], ...] = (),
        size: int = 4,
        own_ids: bool = True,
        streams: bool = True,
        loses: bool = False,
    ) -> None:
        self.ledger = Ledger()
        self.failures: list[WorldError] = []
        self.runs = 0
        self._worlds = worlds[:-1]
        self._workers_world = worlds[-1]
        self._seed = seed
        self._tolerated = tolerated
        self._size = size
        self._own_ids = own_ids
        self._loses = loses
        self._stories: list[Story] = [
            self._step, self._step, self._hook, self._wait, self._attributes, self._rivals,
        ]  # fmt: skip
        if streams:
            self._stories.append(self._stream)
        self._continued: set[int] = set()
        self._requests = 0
        self._stopping = False
        self._done = False

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """All callers work for the length of a block; at its end they finish what they began.

        Then all messages are handled. A caller that fails ends the block, too.
        """
        self._stopping = self._done = False
        worker = Worker(
            self._workers_world,
            {WORK: self._handle},
            concurrency=8,
            lease=LEASE,
            sweep_interval=0.5,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run())
            claimers = [
                group.create_task(self._again_and_again(self._claim, f"claimer {n}"))
                for n in range(self._size)
            ]
            callers = [
                group.create_task(self._again_and_again(call, f"{call.__name__} {n}"))
                for call in (self._live_one_run, self._send)
                for n in range(self._size)
            ]
            yield
            self._stopping = True
            await asyncio.wait(callers)
            await self._drained()
            self._done = True
            await asyncio.wait(claimers)
            worker.stop()

    async def progress(self, answers: int) -> None:
        """Wait for so many further answers, or failures that callers expect."""
        goal = self.ledger.answers + len(self.failures) + answers
        await until(lambda: self.ledger.answers + len(self.failures) >= goal)

    async def trouble(self, failures: int) -> None:
        """Wait for so many further failures."""
        goal = len(self.failures) + failures
        await until(lambda: len(self.failures) >= goal)

    async def hold_against(self, world: RedisWorld) -> None:
        """Hold the ledger against what a World has; nobody may be at work."""
        await self.ledger.hold_against(world)

    # -- callers ---------------------------------------------------------------------------

    async def _again_and_again(
        self, call: Callable[[random.Random], Awaitable[None]], name: str
    ) -> None:
        chance = random.Random(f"{self._seed} {name}")
        while not (self._done if call == self._claim else self._stopping):
            try:
                await call(chance)
            except self._tolerated as error:
                self.failures.append(error)

    async def _drained(self) -> None:
        """Wait until all messages are handled and gone."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE
        while left := [*self.ledger.unhandled, *await self._messages()]:
            if loop.time() > deadline:
                pytest.fail(f"these were not handled: {left}")
            await asyncio.sleep(0.01)

    async def _messages(self) -> list[str]:
        stats = [await self._worlds[0].queue.stats(topic) for topic in (TOPIC, WORK)]
        return [str(s) for s in stats if s.ready or s.delayed or s.leased or s.held or s.dead]

    async def _send(self, chance: random.Random) -> None:
        await until(lambda: self._stopping or len(self.ledger.unhandled) < _MOST_UNHANDLED)
        world = chance.choice(self._worlds)
        number, name, payload = self._message(chance, chance.choice([None, e.new_run_id()]))
        options: dict[str, Any] = {}
        if chance.random() < 0.3:
            options["idempotency_key"] = f"key {number}"
        if chance.random() < 0.3:
            options["delay"] = chance.choice([0.001, 0.05])
        self.ledger.sending.add(number)
        try:
            message_id = await world.queue.send(name, payload, **options)
        except WorldUnavailableError as error:
            if is_full(error):
                self.ledger.unsent.add(number)
            raise
        assert message_id is not None
        self._note_sent(number, payload)

    def _message(
        self, chance: random.Random, run_id: str | None
    ) -> tuple[int, str, dict[str, Any]]:
        """A number, the queue name and the payload of a message that nothing stands for."""
        number = self.ledger.number()
        topic = chance.choice([TOPIC, WORK])
        payload: dict[str, Any] = {"number": number}
        payload["twice"] = topic == WORK and chance.random() < 0.2
        if run_id is not None:
            payload["runId"] = run_id
        return number, f"{topic}w", payload

    def _note_sent(self, number: int, payload: dict[str, Any]) -> None:
        self.ledger.note_sent(number, 2 if payload["twice"] else 1)

    async def _handle(
        self, payload: dict[str, Any], /, *, attempt: int, queue_name: str, message_id: str
    ) -> Again | None:
        self.ledger.note_delivery(payload.get("number"))
        number = payload.get("number")
        if not payload.get("twice") or number in self._continued:
            return None
        assert isinstance(number, int)
        self._continued.add(number)
        return Again(0.01, f"again {number}")

    async def _claim(self, chance: random.Random) -> None:
        world = chance.choice(self._worlds)
        begun = self.ledger.answers
        messages = await world.queue.claim(TOPIC, limit=chance.randint(1, 5), lease=LEASE)
        for message in messages:
            self.ledger.note_claim(message, begun)
        await together(*(self._finish(world, message, chance) for message in messages))
        if not messages:
            await asyncio.sleep(0.005)

    async def _finish(self, world: RedisWorld, message: Message, chance: random.Random) -> None:
        act = chance.choices(["ack", "retry", "release", "die"], [80, 10, 8, 2])[0]
        if self._stopping or act == "ack":
            # A send that is repeated behind the ack may store it once more.
            number = message.payload.get("number")
            is_sent = number not in self.ledger.sending and not (self._loses and number is None)
            if await world.queue.ack(message) and is_sent:
                self.ledger.note_ack(message)
        elif act == "retry":
            await world.queue.retry(message, error="again", delay=0)
        elif act == "release":
            await world.queue.release(message)

    # -- events ----------------------------------------------------------------------------

    async def _live_one_run(self, chance: random.Random) -> None:
        world = chance.choice(self._worlds)
        run_id = await self._begin(world, chance)
        waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=3600))
        try:
            stories = chance.choices(self._stories, k=chance.randint(2, 5))
            await together(
                *(tell(world, run_id, f"{n}", chance) for n, tell in enumerate(stories))
            )
            await self._read_back(world, run_id)
            status = chance.choice(e.TERMINAL)
            await self._ask(world, run_id, e.run_ended(status))
            if status == "cancelled":
                await self._ask(world, run_id, e.run_ended(status))
            async with asyncio.timeout(_PATIENCE):
                ended = (await waiting).status
                assert ended == status, (run_id, ended, status)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        self.runs += 1

    async def _begin(self, world: RedisWorld, chance: random.Random) -> str:
        match chance.choice(["own", "own, resilient", "made"]):
            case "made":
                created = await self._ask(world, None, e.run_created())
                assert created.run is not None
                run_id = created.run.run_id
            case "own" if self._own_ids:
                run_id = e.new_run_id()
                await self._ask(world, run_id, e.run_created(), bring=chance)
            case _:
                run_id = e.new_run_id()
                started = await self._ask(
                    world, run_id, e.resilient_start(), "run_created", "run_started"
                )
                assert [each.event_type for each in started.events or ()][:2] == [
                    "run_created", "run_started",
                ]  # fmt: skip
                return run_id
        results = await together(
            *(self._ask(each, run_id, e.event("run_started")) for each in self._worlds)
        )
        # All name the event that has started the run.
        assert len({result.event.event_id for result in results if result.event}) == 1
        return run_id

    async def _ask(
        self,
        world: RedisWorld,
        run_id: str | None,
        wire: e.Wire,
        *types: str,
        bring: random.Random | None = None,
        **params: Any,
    ) -> EventResult:
        """Create an event, and note it. With `bring` it may bring a message along."""
        self._requests += 1
        request = f"request {self._requests}"
        data = dict(wire.get("eventData", {}))
        payloads = []
        for name in PAYLOAD_FIELDS:
            if name in data:
                data[name] = b"\0%s\xff" % request.encode()
                payloads.append(data[name])
        asked = Asked(run_id, types or (wire["eventType"],), payloads)
        asked.shared = "resume_id" in params or "run_started" in asked.types
        self.ledger.note_event(request, asked)
        number, kind = None, bring.choice(["none", "plain", "numbered"]) if bring else "none"
        if bring is not None and kind == "numbered":
            number, name, payload = self._message(bring, run_id)
            if wire["eventType"] == "step_created":
                # Its continuation would be dropped with the end of the step.
                payload |= {"stepId": wire["correlationId"], "stepName": "s", "twice": False}
            params["enqueue"] = Enqueue(name, payload)
        elif kind == "plain":
            params["enqueue"] = Enqueue(f"{TOPIC}w", {"runId": run_id})
        wire = {**wire, "eventData": data} if data else wire
        if number is not None and self._loses:
            self.ledger.sending.add(number)
        try:
            result = await world.events.create(run_id, wire, request_id=request, **params)
        except (EntityConflictError, WorldUnavailableError) as error:
            asked.refused = isinstance(error, EntityConflictError) or is_full(error)
            if number is not None and asked.refused:
                self.ledger.unsent.add(number)
            raise
        asked.result = result
        self.ledger.answers += 1
        if run_id is None:
            assert result.run is not None
            asked.run_id = result.run.run_id
        assert (result.message_id is not None) == (kind != "none")
        if number is not None:
            self._note_sent(number, payload)
        return result

    async def _step(
        self, world: RedisWorld, run_id: str, name: str, chance: random.Random
    ) -> None:
        step_id, attempts = f"step {name}", 0
        if chance.random() < 0.3:
            lazy = e.lazy_start(step_id)
            result = await self._ask(world, run_id, lazy, "step_created", "step_started")
            attempts = 1
        else:
            await self._ask(world, run_id, e.step_created(step_id), bring=chance)
        for _ in range(chance.randint(1, 3)):
            result = await self._ask(world, run_id, e.step_started(step_id))
            attempts += 1
            assert result.step is not None
            assert result.step.attempt == attempts
            if chance.random() < 0.4:
                await self._ask(world, run_id, e.step_retrying(step_id))
        end = chance.choice([e.step_completed, e.step_failed])
        result = await self._ask(world, run_id, end(step_id), bring=chance)
        assert result.step is not None
        assert result.step.attempt == attempts

    async def _hook(
        self, world: RedisWorld, run_id: str, name: str, chance: random.Random
    ) -> None:
        hook_id = f"hook {name}"
        made = e.hook_created(hook_id, f"{run_id} {name}", metadata=b"")
        await self._ask(world, run_id, made)
        received = e.hook_received(hook_id)
        for _ in range(chance.randint(0, 3)):
            await self._ask(world, run_id, received, bring=chance)
        # Where answers get lost, a second one may tell the slot of a first that nobody has got.
        if chance.random() < 0.5 and not self._loses:
            results = await together(
                *(
                    self._ask(each, run_id, received, resume_id=f"resume {name}")
                    for each in self._worlds
                )
            )
            first = {result.event.event_id for result in results if result.event is not None}
            assert len(first) == 1
        if chance.random() < 0.5:
            await self._ask(world, run_id, e.hook_disposed(hook_id))

    async def _wait(
        self, world: RedisWorld, run_id: str, name: str, chance: random.Random
    ) -> None:
        await self._ask(world, run_id, e.wait_created(f"wait {name}"))
        if chance.random() < 0.7:
            await self._ask(world, run_id, e.wait_completed(f"wait {name}"))

    async def _attributes(
        self, world: RedisWorld, run_id: str, name: str, chance: random.Random
    ) -> None:
        await self._ask(world, run_id, e.attr_set({name: "1", "all": name}, f"attr {name}"))
        for step in (None, "step"):
            await self._ask(world, run_id, e.attr_set({name: "2", "all": None}, step=step))

    async def _rivals(
        self, world: RedisWorld, run_id: str, name: str, chance: random.Random
    ) -> None:
        """Exactly one of those that do the same wins, whatever is sent again."""
        for wire in (
            e.step_created(f"step {name}"),
            e.step_completed(f"step {name}"),
            e.wait_created(f"wait {name}"),
            e.wait_completed(f"wait {name}"),
            e.hook_created(f"hook {name}", f"{run_id} {name}"),
        ):
            results = await asyncio.gather(
                *(self._ask(each, run_id, wire) for each in self._worlds), return_exceptions=True
            )
            errors = [each for each in results if isinstance(each, BaseException)]
            for error in errors:
                if not isinstance(error, EntityConflictError):
                    raise error
            assert len(errors) == len(results) - 1, (wire, results)

    async def _read_back(self, world: RedisWorld, run_id: str) -> None:
        """What was answered can be read."""
        asked = self.ledger.of_run[run_id]
        results = [each.result for each in asked if each.result is not None and each.types]
        found = {each.event_id for each in (await world.events.list(run_id)).data}
        missing = [
            result.event.event_id
            for result in results
            if result.event is not None and result.event.event_id not in found
        ]
        if missing:
            # Where the server has lost it all, this says so.
            await world.runs.get(run_id)
        assert not missing

    # -- streams ---------------------------------------------------------------------------

    async def _stream(
        self, world: RedisWorld, run_id: str, name: str, chance: random.Random
    ) -> None:
        """Two Worlds write and one reads, until the stream is closed."""
        stream = self.ledger.streams[run_id, name]

        async def write(writer: RedisWorld, number: int) -> None:
            for turn in range(chance.randint(2, 6)):
                size = chance.randint(1, 3)
                chunks = [b"%d: %d %d" % (number, turn, part) for part in range(size)]
                stream.doubtful.update(chunks)
                try:
                    await writer.streams.write_many(run_id, name, chunks)
                except self._tolerated as error:
                    if not is_full(error):
                        self.failures.append(error)
                        continue
                    stream.doubtful.difference_update(chunks)
                    raise
                stream.doubtful.difference_update(chunks)
                stream.writes.append(chunks)
                self.ledger.answers += 1

        async def read() -> list[bytes]:
            return [chunk async for chunk in world.streams.read(run_id, name)]

        reading = asyncio.create_task(read())
        try:
            await together(*(write(each, n) for n, each in enumerate(self._worlds)))
            await self._close(world, run_id, name)
            async with asyncio.timeout(_PATIENCE):
                found = await reading
            if not self._loses:
                stream.read = found
        finally:
            reading.cancel()
            results = await asyncio.gather(reading, return_exceptions=True)
            if isinstance(results[0], Exception):
                self.ledger.wrong.append(f"the reader of {name} of {run_id} gave up: {results[0]}")

    async def _close(self, world: RedisWorld, run_id: str, name: str) -> None:
        """Close a stream, however often it takes: its reader waits for it."""
        while True:
            try:
                await world.streams.close(run_id, name)
            except self._tolerated as error:
                if is_full(error):
                    raise
                self.failures.append(error)
            else:
                return


def is_full(error: WorldError) -> bool:
    """Whether a server had no room: then nothing was done."""
    return "memory" in str(error)


async def together(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """Results of calls that run at a time; the first error, once all have ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    found: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found
