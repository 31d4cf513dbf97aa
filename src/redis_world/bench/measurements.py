"""The measurements: each in rounds, behind a warm-up that does not count."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from redis_world.bench.figures import Figure, Measurement, Round, Spread, collect, percentile
from redis_world.bench.limits import Busy, Usage
from redis_world.bench.observer import Observer, cores
from redis_world.bench.workload import (
    EVENTS_PER_RUN,
    Caller,
    all_of,
    clean,
    create_run,
    in_batches,
    one_by_one,
    together,
)
from redis_world.errors import WorldUnavailableError
from redis_world.queue import Message
from redis_world.worker import Worker
from redis_world.world import RedisWorld

__all__ = ["ROUNDS", "Bench", "OnProgress", "parameters"]

OnProgress = Callable[[str, int, int], None]
"""Called with what is measured now, how many rounds are done, and of how many."""

TOPIC: Final = "__wkf_workflow_"
QUEUE: Final = f"{TOPIC}bench"
CALLERS: Final = (1, 16, 64)
MANY: Final = 64
"""Callers of batches, producers, and acknowledgements at a time."""
CLAIM_LIMIT: Final = 32
"""Messages of a claim: as many as a worker handles at a time by default."""
CHUNKS: Final = 100
CHUNK_BYTES: Final = 1024

ROUNDS: Final = 3
"""The fewest of a measurement."""
_ROUND_SECONDS: Final = 0.8
"""About how long one is: what it writes lies on the server until its end."""
_WARM_UP: Final = 0.2
"""Seconds of each round before it counts, as a part of it."""
_MEASURED: Final = 0.85
"""The part of all seconds that is measured: the rest goes to removing what was written."""
_MIN_MESSAGES: Final = 10
"""Of each round that sends them one at a time."""
_PAUSE_SECONDS: Final = (0.005, 0.025)
"""Between two of these: the worker is idle again."""
_ARRIVAL_SECONDS: Final = 60.0

_WEIGHTS: Final = {
    "roundTrip": 1,
    **{f"runs{callers}": 4 for callers in CALLERS},
    "batches": 4,
    "queue": 4,
    "delivery": 3,
    "streams": 2,
}
"""Shares of the time."""

_CALL_TITLES: Final = {
    "runsPerSecond": "runs",
    "eventsPerSecond": "events",
}


def parameters() -> dict[str, Any]:
    """What is the same in each bench, as JSON has it."""
    return {
        "claimLimit": CLAIM_LIMIT,
        "producers": MANY,
        "chunksPerStream": CHUNKS,
        "chunkBytes": CHUNK_BYTES,
    }


@dataclass(frozen=True)
class _Plan:
    rounds: int
    seconds: float
    """Of each round."""


@dataclass
class Bench:
    """All measurements, one after another, on an open World.

    Attributes:
        world: whose namespace is the bench's own.
        observer: of its server.
        seconds: for all of it, about.
        on_progress: is called after each round.
    """

    world: RedisWorld
    observer: Observer
    seconds: float
    on_progress: OnProgress = lambda _title, _done, _total: None
    busy: Busy | None = None
    _done: int = 0
    _round_trip_ms: float | None = None
    _usage: list[Mapping[str, float]] = field(default_factory=list)

    async def measurements(self) -> AsyncIterator[Measurement]:
        """Measure one thing after another; `busy` is there behind them."""
        yield await self._round_trip()
        for callers in CALLERS:
            noun = "caller" if callers == 1 else "callers"
            title = f"runs of ten steps, {callers} {noun}"
            yield await self._runs(f"runs{callers}", title, one_by_one, callers)
        self.busy = self._busy()
        yield await self._runs("batches", f"the same in batches, {MANY} callers", in_batches, MANY)
        yield await self._queue()
        yield await self._delivery()
        yield await self._streams()

    # -- rounds ----------------------------------------------------------------------------

    def _plan(self, name: str) -> _Plan:
        share = self.seconds * _MEASURED * _WEIGHTS[name] / sum(_WEIGHTS.values())
        # The warm-up is one more.
        rounds = max(ROUNDS, round(share / _ROUND_SECONDS) - 1)
        return _Plan(rounds, share / (rounds + 1))

    async def _rounds(
        self, name: str, title: str, measure: Callable[[float], Awaitable[Round]]
    ) -> list[Round]:
        """Measure a warm-up and the rounds."""
        plan = self._plan(name)
        found = []
        for _ in range(1 + plan.rounds):
            self._tell(title)
            found.append(await measure(plan.seconds))
            self._done += 1
        self._tell(title)
        return found[1:]

    def _tell(self, title: str) -> None:
        total = sum(1 + self._plan(name).rounds for name in _WEIGHTS)
        self.on_progress(title, self._done, total)

    # -- the measurements ------------------------------------------------------------------

    async def _round_trip(self) -> Measurement:
        connection = self.world.connection
        # Nothing has this name.
        read = ("EXISTS", f"{connection.keys.base}-")

        async def measure(seconds: float) -> Round:
            took: list[float] = []
            end = time.perf_counter() + seconds
            while (began := time.perf_counter()) < end or not took:
                await connection.execute(read)
                took.append(time.perf_counter() - began)
            return _latency("roundTrip", took)

        title = "a read that finds nothing"
        rounds = await self._rounds("roundTrip", title, measure)
        figures = collect(rounds, _latency_titles("roundTrip", "round trip"))
        self._round_trip_ms = figures["roundTripP50Ms"].median
        return Measurement("roundTrip", title, figures)

    async def _runs(self, name: str, title: str, caller: Caller, callers: int) -> Measurement:
        is_observed = name == f"runs{CALLERS[-1]}"
        noun = "event" if caller is one_by_one else "call"

        async def measure(seconds: float) -> Round:
            async with together(self.world, caller, callers) as (load, working):
                if is_observed:
                    # Outside of what counts: the answer takes its turn behind the callers.
                    before, cpu, began = await self._look()
                took = await load.count(working, seconds * _WARM_UP, seconds * (1 - _WARM_UP))
                if is_observed:
                    after, cpu_after, ended = await self._look()
                    usage = {"process": (cpu_after - cpu) / (ended - began)}
                    self._usage.append({**usage, **cores(before, after, ended - began)})
            return {
                "runsPerSecond": load.events / EVENTS_PER_RUN / took,
                "eventsPerSecond": load.events / took,
                **_latency(noun, load.latencies),
            }

        rounds = await self._rounds(name, title, measure)
        titles = {**_CALL_TITLES, **_latency_titles(noun, f"one {noun}")}
        ratios = [f"{noun}P50Ms"] if callers == 1 else []
        return Measurement(name, title, self._collect(rounds, titles, ratios))

    async def _look(self) -> tuple[list[Usage] | None, float, float]:
        """CPU time of the server and of this process by now, and the time."""
        usage = await self.observer.usage()
        return usage, time.process_time(), time.perf_counter()

    def _busy(self) -> Busy:
        usage = self._usage[1:]
        process = Spread([each["process"] for each in usage])
        if not all("server" in each for each in usage):
            return Busy(process, is_memory=self.world.is_memory)
        server, main = (Spread([each[name] for each in usage]) for name in ("server", "main"))
        return Busy(process, server, main)

    async def _queue(self) -> Measurement:
        queue = self.world.queue
        numbers = count()

        async def measure(seconds: float) -> Round:
            began = time.perf_counter()
            # Claims and acknowledgements of the same messages take the rest.
            end = began + seconds / 3
            sent = 0

            async def produce() -> None:
                nonlocal sent
                while True:
                    # Each of a run of its own, or one message would stand for the next.
                    payload = {"runId": f"bench_{next(numbers)}", "stepId": "bench"}
                    await queue.send(QUEUE, payload)
                    sent += 1
                    if time.perf_counter() >= end:
                        return

            await all_of(produce() for _ in range(MANY))
            sending = time.perf_counter() - began

            began = time.perf_counter()
            claimed: list[Message] = []
            while len(claimed) < sent:
                messages = await queue.claim(TOPIC, limit=CLAIM_LIMIT)
                if not messages:
                    break
                claimed += messages
            claiming = time.perf_counter() - began

            began = time.perf_counter()
            waiting = iter(claimed)

            async def acknowledge() -> None:
                for message in waiting:
                    await queue.ack(message)

            await all_of(acknowledge() for _ in range(MANY))
            acknowledging = time.perf_counter() - began
            return {
                "sentPerSecond": sent / sending,
                "claimedPerSecond": len(claimed) / claiming,
                "acknowledgedPerSecond": len(claimed) / acknowledging,
            }

        title = f"messages, {MANY} producers"
        titles = {
            "sentPerSecond": "sent",
            "claimedPerSecond": f"claimed, {CLAIM_LIMIT} at a time",
            "acknowledgedPerSecond": "acknowledged",
        }
        rounds = await self._rounds("queue", title, measure)
        return Measurement("queue", title, self._collect(rounds, titles))

    async def _delivery(self) -> Measurement:
        loop = asyncio.get_running_loop()
        arrival: asyncio.Future[float] = loop.create_future()

        async def handle(
            _payload: dict[str, Any], /, *, attempt: int, queue_name: str, message_id: str
        ) -> None:
            del attempt, queue_name, message_id
            # A message may come twice.
            if not arrival.done():
                arrival.set_result(time.perf_counter())

        # It has nothing to sweep up here.
        worker = Worker(self.world, {TOPIC: handle}, sweep_interval=3600)
        working = asyncio.create_task(worker.run())
        numbers = count()

        async def deliver() -> float:
            nonlocal arrival
            arrival = loop.create_future()
            began = time.perf_counter()
            payload = {"runId": f"idle_{next(numbers)}", "stepId": "bench"}
            await self.world.queue.send(QUEUE, payload)
            either: set[asyncio.Future[Any]] = {arrival, working}
            await asyncio.wait(
                either, timeout=_ARRIVAL_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if working.done():
                working.result()
                # By a signal, which is about to cancel this task, too.
                raise asyncio.CancelledError
            if not arrival.done():
                raise WorldUnavailableError(
                    f"an idle worker got no message within {_ARRIVAL_SECONDS:.0f} s: check the "
                    "server and the network, then run bench again"
                )
            return arrival.result() - began

        async def measure(seconds: float) -> Round:
            took: list[float] = []
            end = time.perf_counter() + seconds
            while len(took) < _MIN_MESSAGES or time.perf_counter() < end:
                took.append(await deliver())
                await asyncio.sleep(random.uniform(*_PAUSE_SECONDS))  # noqa: S311 - no secret
            return _latency("delivery", took)

        title = "send to handler of an idle worker"
        try:
            await deliver()
            rounds = await self._rounds("delivery", title, measure)
        finally:
            worker.stop()
            await asyncio.gather(working, return_exceptions=True)
        titles = _latency_titles("delivery", "one message")
        return Measurement("delivery", title, self._collect(rounds, titles, ["deliveryP50Ms"]))

    async def _streams(self) -> Measurement:
        streams = self.world.streams
        chunk = b"x" * CHUNK_BYTES

        async def measure(seconds: float) -> Round:
            run_id = await create_run(self.world)
            writes: list[float] = []
            reading = 0.0
            chunks = 0
            end = time.perf_counter() + seconds
            for number in count():
                name = f"bench_{number}"
                for _ in range(CHUNKS):
                    began = time.perf_counter()
                    await streams.write(run_id, name, chunk)
                    writes.append(time.perf_counter() - began)
                await streams.close(run_id, name)
                began = time.perf_counter()
                async for _ in streams.read(run_id, name):
                    chunks += 1
                reading += time.perf_counter() - began
                if time.perf_counter() >= end:
                    break
            await clean(self.world, [run_id])
            return {
                "writtenPerSecond": len(writes) / sum(writes),
                "readPerSecond": chunks / reading,
                **_latency("write", writes),
            }

        title = f"streams of {CHUNKS} chunks of {CHUNK_BYTES // 1024} KiB"
        titles = {
            "writtenPerSecond": "chunks written, 1 at a time",
            "readPerSecond": "chunks read",
            **_latency_titles("write", "one write"),
        }
        rounds = await self._rounds("streams", title, measure)
        return Measurement("streams", title, self._collect(rounds, titles, ["writeP50Ms"]))

    def _collect(
        self, rounds: Sequence[Round], titles: Mapping[str, str], ratios: Sequence[str] = ()
    ) -> dict[str, Figure]:
        return collect(rounds, titles, round_trip_ms=self._round_trip_ms, as_round_trips=ratios)


def _latency(name: str, seconds: Sequence[float]) -> Round:
    return {
        f"{name}P50Ms": percentile(seconds, 0.5) * 1000,
        f"{name}P99Ms": percentile(seconds, 0.99) * 1000,
    }


def _latency_titles(name: str, title: str) -> dict[str, str]:
    return {f"{name}P50Ms": f"{title}, p50", f"{name}P99Ms": f"{title}, p99"}
