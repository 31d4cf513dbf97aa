"""Namespaces share a server unseen."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import HookNotFoundError, RunNotFoundError
from support.backends import Backend
from support.events import (
    event,
    hook_created,
    new_run,
    new_run_id,
    run_created,
    run_ended,
    write,
)
from support.exercise import TOPIC, exercise

Dump = dict[bytes, Any]


def part_of(dump: Dump, namespace: str) -> Dump:
    """The keys of a namespace: the hash tag of each begins with its name and ends it."""
    own = re.compile(rb"\{%s[/}]" % re.escape(namespace.encode()))
    return {key: value for key, value in dump.items() if own.match(key)}


@pytest.mark.large
async def test_two_namespaces_never_touch_each_others_keys(backend: Backend) -> None:
    first, second = backend.namespace(), backend.namespace()
    async with (
        backend.world(namespace=first, partitions=1) as one,
        backend.world(namespace=second, partitions=1) as two,
    ):
        opened = backend.dump()
        assert part_of(opened, first).keys() | part_of(opened, second).keys() == opened.keys()
        await exercise(one)
        after_one = backend.dump()
        assert len(part_of(after_one, first)) > 30
        assert part_of(after_one, second) == part_of(opened, second)
        await exercise(two)
        after_two = backend.dump()
        assert part_of(after_two, first) == part_of(after_one, first)
        assert len(after_two) == len(part_of(after_two, first)) + len(part_of(after_two, second))


@pytest.mark.large
async def test_every_key_of_a_partition_has_one_hash_tag(backend: Backend) -> None:
    """So that each script is of one slot of a cluster, whatever names users choose."""
    namespace = backend.namespace()
    async with backend.world(namespace=namespace, partitions=1) as world:
        run_id = await exercise(world)
        await write(world, run_id, hook_created("}{", "}{*"))
        await world.streams.write(run_id, "{x}", b"1")
        await world.queue.send(TOPIC + "{x}", {"runId": "{x}"}, idempotency_key="{y}")
    tags = {key[: key.index(b"}") + 1] for key in backend.dump()}
    assert tags == {f"{{{namespace}}}".encode(), f"{{{namespace}/0.0}}".encode()}


NAMES: Final = ("a", "a.0", "a-b", "a.", "A", "a_0", "0")
"""Some begin with another one."""


async def test_names_that_look_alike_are_apart(backend: Backend) -> None:
    prefix = backend.namespace()
    names = [*(prefix + name for name in NAMES), prefix.ljust(64, ".")]
    backend.namespaces += names
    run_id = new_run_id()
    async with contextlib.AsyncExitStack() as stack:
        worlds = [await stack.enter_async_context(backend.world(namespace=name)) for name in names]
        for world, name in zip(worlds, names, strict=True):
            with pytest.raises(RunNotFoundError):
                await world.runs.get(run_id)
            await world.events.create(run_id, run_created(workflowName=name))
            await write(world, run_id, hook_created("h", "token"))
            await world.queue.send(TOPIC + "w", {"runId": run_id, "of": name})
            await world.streams.write(run_id, "out", name.encode())
        for world, name in zip(worlds, names, strict=True):
            assert (await world.runs.get(run_id)).workflow_name == name
            assert len((await world.runs.list()).data) == 1
            assert len((await world.hooks.list()).data) == 1
            (message,) = await world.queue.claim(TOPIC)
            assert message.payload["of"] == name
            assert (await world.streams.get_chunks(run_id, "out")).data[0].data == name.encode()


async def test_the_end_of_a_run_is_its_own_namespaces(backend: Backend) -> None:
    """The same ids in both: what ends in one goes on in the other."""
    async with backend.world() as one, backend.world() as two:
        run_id = new_run_id()
        for world in (one, two):
            await world.events.create(run_id, run_created())
            await write(world, run_id, event("run_started"), hook_created("h", "token"))
        waiting = asyncio.create_task(two.runs.wait_for_terminal(run_id, timeout=60))
        await write(one, run_id, run_ended("completed"))
        with pytest.raises(HookNotFoundError):
            await one.hooks.get_by_token("token")
        assert (await two.hooks.get_by_token("token")).run_id == run_id
        assert (await two.runs.get(run_id)).status == "running"
        assert not waiting.done()
        await write(two, run_id, run_ended("failed"))
        assert (await waiting).status == "failed"


async def test_worlds_of_one_namespace_share_it(backend: Backend) -> None:
    namespace = backend.namespace()

    async def use(world: RedisWorld) -> list[str]:
        await new_run(world)
        return [run.run_id for run in (await world.runs.list(limit=1000)).data]

    async with (
        backend.world(namespace=namespace) as one,
        backend.world(namespace=namespace) as two,
    ):
        assert len(await use(one)) == 1
        assert len(await use(two)) == 2
    async with backend.world(namespace=namespace) as later:
        assert len(await use(later)) == 3
