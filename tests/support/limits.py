"""A namespace at the limits of everything, and one call of everything there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

import pytest

from redis_world import RedisWorld
from redis_world.errors import HookNotFoundError
from redis_world.ids import process_id
from redis_world.janitor import Janitor
from redis_world.models import Page
from redis_world.queue import Enqueue
from redis_world.testing import ManualClock
from support import events as e
from support.filling import MARK, Filler, numbered, tokens
from support.queue_tools import NAME, TOPIC, claim_one, send

__all__ = ["Lab", "Size", "use_partitions"]

DAY: Final = timedelta(days=1)
ORDERS: Final[tuple[Literal["asc", "desc"], ...]] = ("asc", "desc")
OTHER_NAME: Final = "__other_wkf_workflow_w"
OTHER_TOPIC: Final = "__other_wkf_workflow_"
FEW: Final = 120
"""Of what one script each sees to."""
PAIRS: Final = 64
"""Steps of the largest batch, two events each."""

Look = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Size:
    """How large everything is."""

    entities: int
    """Steps, hooks, waits, streams and messages of one run."""
    runs: int
    payload: int
    """Bytes of one."""
    chunks: int
    """Of one write."""


@dataclass
class Lab:
    """A World in which everything is large.

    Attributes:
        look: called wherever nothing is under way.
    """

    world: RedisWorld
    clock: ManualClock
    fill: Filler
    size: Size
    look: Look

    async def do_everything(self) -> None:
        """Fill, read, write, end and remove one thing after the other."""
        for part in (
            self._one_large_run,
            self._retained_hooks,
            self._zero_retention,
            self._streams_before_their_run,
            self._runs_of_one_moment,
            self._one_hook_id,
            self._messages,
            self._debts,
            self._lost_records,
            self._payloads,
        ):
            await part()
            await self.look()

    # -- one run -----------------------------------------------------------------------------

    async def _large_run(self, **data: Any) -> str:
        attributes = {f"a{n}": "x" * 100 for n in range(60)}
        run_id = await e.new_run(
            self.world, **{"attributes": attributes, **data}, allowReservedAttributes=True
        )
        await self._steps(run_id)
        await self._hooks(run_id)
        await self._repeat(self._write(run_id, e.wait_created(f"wait_{MARK}")))
        await self._streams(run_id)
        message = {"runId": run_id, "number": MARK}
        await self._repeat(lambda: self.world.queue.send(NAME, message, delay=DAY))
        return run_id

    async def _steps(self, run_id: str) -> None:
        step_id = f"step_{MARK}"
        await self._repeat(
            self._write(run_id, e.step_created(step_id)),
            self._write(run_id, e.step_started(step_id)),
            self._write(run_id, e.step_completed(step_id)),
        )

    async def _hooks(self, run_id: str, **data: Any) -> None:
        token = f"{run_id}/{MARK}"
        hook = e.hook_created(f"hook_{MARK}", token, metadata=b"m", **data)
        items = tokens(token, numbered(self.size.entities - 1))
        await self.fill.fill(items, self._write(run_id, hook))

    async def _streams(self, run_id: str) -> None:
        await self._repeat(lambda: self.world.streams.write(run_id, f"stream_{MARK}", b"x"))

    async def _repeat(self, *acts: Callable[[], Awaitable[Any]]) -> None:
        await self.fill.fill(numbered(self.size.entities - 1), *acts)

    def _write(self, run_id: str, *events: e.Wire) -> Callable[[], Awaitable[Any]]:
        return lambda: e.write(self.world, run_id, *events)

    async def _one_large_run(self) -> None:
        run_id = await self._large_run()
        await self.look()
        await self._read(run_id)
        await self._one_of_each_event(run_id)
        await self._write_streams(run_id)
        await self.look()
        await e.write(self.world, run_id, e.run_ended("completed"))
        await self.look()
        # Before the janitor has come.
        await self._read(run_id)
        await self.world.sweep()
        await self.look()
        await self._read(run_id)
        await self.world.prune(0)

    async def _read(self, run_id: str) -> None:
        world = self.world
        for order in ORDERS:
            pages: list[Callable[..., Awaitable[Page[Any]]]] = [
                lambda **page: world.steps.list(run_id, **page),
                lambda **page: world.waits.list(run_id, **page),
                lambda **page: world.hooks.list(run_id, **page),
                world.hooks.list,
                world.runs.list,
            ]
            for read in pages:
                for limit in (1, 1000):
                    page = await read(limit=limit, sort_order=order)
                    assert page.data or not page.has_more
        await world.runs.get(run_id)
        await world.runs.wait_for_terminal(run_id, timeout=0)
        await world.steps.get(run_id, f"step_{MARK}")
        assert len(await world.streams.list(run_id)) >= self.size.entities
        await world.streams.get_info(run_id, f"stream_{MARK}")
        await world.events.list_by_correlation_id(run_id, f"step_{MARK}")
        for ask in (
            world.hooks.get(f"hook_{MARK}"),
            world.hooks.get(f"hook_{MARK}", run_id=run_id),
            world.hooks.get_by_token(f"{run_id}/{MARK}"),
        ):
            await _or_not_found(ask)

    async def _one_of_each_event(self, run_id: str) -> None:
        world = self.world
        await e.write(
            world,
            run_id,
            e.event("run_started"),
            e.step_created("one"),
            e.step_started("one"),
            e.step_retrying("one"),
            e.step_started("one"),
            e.step_failed("one"),
            e.lazy_start("two"),
            e.step_completed("two"),
            e.hook_created("one", f"{run_id} one"),
            e.hook_created("taken", f"{run_id} one"),
            e.hook_received("one"),
            e.hook_disposed("one"),
            e.wait_created("one"),
            e.wait_completed("one"),
            e.attr_set({f"a{n}": "y" for n in range(60)}, "attributes"),
        )
        await world.waits.get(run_id, "one")
        pairs = [
            each
            for n in range(PAIRS)
            for each in (e.step_created(f"b{n}", input=b"i"), e.step_started(f"b{n}"))
        ]
        message = Enqueue(NAME, {"runId": run_id})
        await world.events.create_batch(run_id, pairs, enqueue=message)
        ends = [e.step_completed(f"b{n}") for n in range(PAIRS)]
        await world.events.create_batch(run_id, ends)

    async def _write_streams(self, run_id: str) -> None:
        """One stream with as many writers as there are entities, and the largest write."""
        world = self.world
        rows = await self.fill.learn(lambda: world.streams.write(run_id, "shared", b"x"))
        # Numbers stand in the middle of a writer's name, which ends with this World's own.
        writer = process_id()
        names = ({writer: f"{writer}{n}"} for n in range(self.size.entities))
        self.fill.repeat(rows, names)
        await world.streams.write_many(run_id, "shared", [b"x"] * self.size.chunks)
        await world.streams.get_info(run_id, "shared")
        await world.streams.get_chunks(run_id, "shared")
        await world.streams.close(run_id, "shared")
        await world.streams.note_run(run_id, "shared")
        await world.streams.find_run("shared")

    async def _retained_hooks(self) -> None:
        """Hooks that outlive their run, and then have had their time, too."""
        world = self.world
        run_id = await e.new_run(world)
        await self._hooks(run_id, tokenRetentionUntil=self.clock.now + DAY)
        await e.write(world, run_id, e.run_ended("failed"))
        await world.prune(0, dry_run=True)
        await self._list_hooks(run_id)
        await self.clock.advance(2 * DAY)
        await self._list_hooks(run_id)
        await self.look()
        await world.sweep()
        await world.prune(0)

    async def _list_hooks(self, run_id: str) -> None:
        for order in ORDERS:
            await self.world.hooks.list(run_id, limit=1000, sort_order=order)
            await self.world.hooks.list(limit=1000, sort_order=order)
        await _or_not_found(self.world.hooks.get(f"hook_{MARK}"))

    async def _zero_retention(self) -> None:
        world = self.world
        run_id = await e.new_run(
            world, attributes={"$retention": "0"}, allowReservedAttributes=True
        )
        await self._hooks(run_id)
        await self._streams(run_id)
        await world.runs.cancel_many([run_id])
        await self.look()
        await world.streams.list(run_id)
        await world.sweep()

    async def _streams_before_their_run(self) -> None:
        world = self.world
        for creation in (e.run_created(), e.resilient_start()):
            run_id = e.run_id_at(self.clock.now)
            await self._streams(run_id)
            await self.look()
            await world.streams.list(run_id)
            await world.events.create(run_id, creation, skip_preload=True)
            assert len(await world.streams.list(run_id)) == self.size.entities
            await e.write(world, run_id, e.run_ended("completed"))
        await world.prune(0)

    # -- many runs ---------------------------------------------------------------------------

    async def _runs_of_one_moment(self) -> None:
        world = self.world

        async def make() -> str:
            run_id = await e.new_run(world, "pending")
            await e.write(world, run_id, e.run_ended("completed"))
            return run_id

        ids = await self.fill.runs(self.size.runs, make)
        for limit in (1, 1000):
            for order in ORDERS:
                statuses = ["pending", "running", "completed", "failed", "cancelled"]
                for name in (None, "workflow//w"):
                    await world.runs.list(
                        workflow_name=name,
                        status=statuses,  # type: ignore[arg-type]
                        limit=limit,
                        sort_order=order,
                    )
        found = set()
        (keys,) = world.connection.partitions
        async for runs in Janitor(world.connection, keys).finished(0):
            found |= {run.run_id for run in runs}
        assert found >= {*ids}
        await world.runs.cancel_many(ids[:FEW])

    async def _one_hook_id(self) -> None:
        """A hook of one id in each of many runs, all of which are over."""
        world = self.world

        async def make() -> str:
            run_id = await e.new_run(world, "pending")
            hook = e.hook_created("same", run_id, tokenRetentionUntil=self.clock.now + DAY)
            await e.write(world, run_id, hook, e.run_ended("completed"))
            return run_id

        await self.fill.runs(self.size.entities, make, token=MARK)
        await world.hooks.get("same")
        await self.clock.advance(2 * DAY)
        with pytest.raises(HookNotFoundError):
            await world.hooks.get("same")
        await world.hooks.list(limit=1000)
        await self.look()
        await world.sweep()

    # -- the queue ---------------------------------------------------------------------------

    async def _messages(self) -> None:
        world = self.world
        queue = world.queue
        await self._repeat(lambda: queue.send(OTHER_NAME, {"number": MARK}))
        await queue.stats(OTHER_TOPIC)
        extended = await claim_one(world, OTHER_TOPIC)
        await queue.extend(extended)
        await queue.retry(extended, error="no", delay=0)
        await queue.release(await claim_one(world, OTHER_TOPIC))
        await queue.postpone(await claim_one(world, OTHER_TOPIC), 0)
        await queue.ack(await claim_one(world, OTHER_TOPIC))
        # Each loses as many leases as it may, and one more, all of them in one moment.
        for _ in range(world.config.max_lost_leases + 1):
            while await queue.claim(OTHER_TOPIC, limit=1000, lease=60):
                pass
            await self.clock.advance(61)
            await world.sweep()
        await self.look()
        cursor = None
        more, count = True, 0
        while more:
            page = await queue.dead_letters(OTHER_TOPIC, limit=1000, cursor=cursor)
            cursor, more, count = page.cursor, page.has_more, count + len(page.data)
        assert count == self.size.entities - 1
        await queue.redrive(page.data[0].message_id)
        await self.look()
        assert await queue.purge_dead_letters(OTHER_TOPIC) == count - 1

    async def _debts(self) -> None:
        """Runs and steps without a message, and a run whose messages are many and late."""
        world = self.world
        await self.fill.runs(min(FEW, self.size.entities), lambda: e.new_run(world))
        run_id = await e.new_run(world)
        await self._repeat(lambda: world.queue.send(NAME, {"runId": run_id, "n": MARK}, delay=DAY))
        count = min(FEW, self.size.entities)
        step = self._write(run_id, e.step_created(f"step_{MARK}"))
        await self.fill.fill(numbered(count - 1), step)
        await e.write(world, run_id, e.lazy_start("done"), e.step_completed("done"))
        resting = await e.new_run(world)
        await send(world, {"runId": resting})
        for message in await world.queue.claim(TOPIC):
            await world.queue.ack(message)
        await self.look()
        await self.clock.advance(60)
        await world.sweep()

    async def _lost_records(self) -> None:
        """Messages of steps of one run whose records are gone, among those of many runs."""
        world = self.world
        run_id = await e.new_run(world)
        count = min(FEW, self.size.entities)
        await self.fill.fill(
            numbered(count - 1), self._write(run_id, e.step_created(f"step_{MARK}"))
        )
        payload = {"runId": run_id, "stepId": f"step_{MARK}", "stepName": "s"}
        await self.fill.fill(numbered(count - 1), lambda: world.queue.send(OTHER_NAME, payload))
        (members,) = await world.connection.execute(
            ("ZRANGE", world.connection.keys.topic(OTHER_TOPIC, "due"), 0, -1)
        )
        lost = [each.decode().partition("/")[0] for each in members]
        fields = [f"{kind}:{each}" for each in lost for kind in ("message", "state")]
        book = world.connection.keys.of_run(run_id).queue
        await world.connection.execute(("HDEL", book, *fields))
        while await world.queue.claim(OTHER_TOPIC, limit=1000):
            pass
        await self.look()
        await self.clock.advance(60)
        await world.sweep()

    # -- payloads ----------------------------------------------------------------------------

    async def _payloads(self) -> None:
        """A few of the largest size of everything that has one."""
        world = self.world
        large = bytes(self.size.payload)
        ids = [await e.new_run(world, input=large, workflowName="large") for _ in range(3)]
        run_id = ids[0]
        for n in range(3):
            step = (e.lazy_start(f"s{n}", input=large), e.step_completed(f"s{n}", result=large))
            hook = e.hook_created(f"h{n}", f"{run_id} {n}", metadata=large)
            for wire in (*step, hook, e.hook_received(f"h{n}", payload=large)):
                await world.events.create(run_id, wire, resolve_data="none")
        for order in ORDERS:
            assert len((await world.steps.list(run_id, sort_order=order)).data) == 3
            assert len((await world.hooks.list(run_id, sort_order=order)).data) == 3
            assert len((await world.hooks.list(sort_order=order)).data) == 3
            runs = (await world.runs.list(workflow_name="large", sort_order=order)).data
            assert {run.run_id for run in runs} == {*ids}
        await world.steps.get(run_id, "s0")
        await world.hooks.get("h0")
        await world.hooks.get_by_token(f"{run_id} 0")
        await world.runs.get(run_id)
        await e.write(world, run_id, e.event("run_completed", output=large))


async def _or_not_found(question: Awaitable[Any]) -> None:
    try:
        await question
    except HookNotFoundError:
        return


async def use_partitions(
    world: RedisWorld, clock: ManualClock, fill: Filler, size: Size, look: Look
) -> None:
    """Hooks of one run whose tokens are the matter of one other partition."""
    partitions = world.connection.partitions
    run_id = await e.new_run(world)
    token = f"{run_id}/{MARK}"
    while partitions.of(token) is partitions.of(run_id):
        token += "+"
    items = [
        names
        for names in numbered(size.entities)
        if partitions.of(token.replace(MARK, names[MARK])) is partitions.of(token)
    ]
    hook = e.hook_created(f"hook_{MARK}", token)
    await fill.fill(tokens(token, items), lambda: e.write(world, run_id, hook))
    await look()
    other = await e.new_run(world)
    await e.write(world, other, e.hook_created("other", token))
    for _ in range(2):
        await clock.advance(60)
        await world.sweep()
        await e.attempt(world, run_id, e.run_ended("completed"))
        await look()
    await world.hooks.list(limit=1000)
    for number in range(3):
        await send(world, {"number": number})
    await world.queue.claim(TOPIC, limit=1)
