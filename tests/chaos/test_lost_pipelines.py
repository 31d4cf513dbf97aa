"""Fifty callers share a pipeline that breaks on the way: each gets its own answer, once done.

The fifty do the same, each on a run or a message of its own, so that any of them may be the one
whose reply is lost, or whose request is. `make chaos` breaks it at more places, on every server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.models import EventResult
from redis_world.queue import Enqueue
from redis_world.testing import check_invariants
from support import events as e
from support.backends import KINDS, Backend
from support.losing import (
    IS_LONG,
    MOMENT,
    RUN,
    direct_world,
    fragile_world,
    ids_in_order,  # noqa: F401 - a fixture of all tests here
    load_scripts,
    nth,
    runs,
)
from support.losing_events import EVENTS, create_run, of_run
from support.queue_tools import NAME, TOPIC, send

CALLS: Final = 50

pytestmark = [
    pytest.mark.parametrize("real_backend", KINDS[1:] if IS_LONG else KINDS[1:2], indirect=True),
    pytest.mark.parametrize("answered", [0, 1, 25, 48, 49] if IS_LONG else [25]),
    pytest.mark.parametrize("lost", ["replies", "requests"] if IS_LONG else ["replies"]),
]

Call = Callable[[RedisWorld, int], Awaitable[Any]]


async def fifty(
    backend: Backend,
    namespace: str,
    script: str,
    call: Call,
    lost: str,
    answered: int,
    **options: Any,
) -> list[Any]:
    """What fifty calls in one pipeline are answered, of which one is lost."""
    async with fragile_world(backend, namespace, **options) as (world, proxy):
        drop = proxy.drop_replies if lost == "replies" else proxy.drop_requests
        drop(nth(answered + 1, runs(script)))
        answers = await asyncio.gather(*(call(world, number) for number in range(CALLS)))
        assert proxy.dropped == 1
    return answers


@pytest.fixture
def backend(real_backend: Backend) -> Backend:
    """A real server that has all scripts."""
    load_scripts(real_backend)
    return real_backend


# -- events --------------------------------------------------------------------------------

PLAIN: Final = [name for name, each in EVENTS.items() if each.run_id == RUN and not each.prepare]


def shape(result: EventResult) -> Any:
    """What the answers for equal runs have in common."""
    return (
        result.event and result.event.event_type,
        result.run and result.run.status,
        result.step and (result.step.status, result.step.attempt, result.step_created),
        result.hook and result.hook.hook_id,
        result.wait and result.wait.status,
    )


@pytest.mark.parametrize("name", PLAIN)
async def test_an_event_of_each_caller(
    backend: Backend, name: str, lost: str, answered: int
) -> None:
    recorded, namespace = EVENTS[name], backend.namespace()
    run_ids = [e.run_id_at(MOMENT) for _ in range(CALLS + 1)]
    async with direct_world(backend, namespace) as (world, _):

        async def prepare(number: int) -> None:
            run_id = run_ids[number]
            if recorded.status is not None:
                await create_run(world, run_id, recorded.status)
            for wire in recorded.before:
                await world.events.create(run_id, of_run(wire, number))

        def call(world: RedisWorld, number: int) -> Awaitable[EventResult]:
            return world.events.create(
                run_ids[number],
                of_run(recorded.wire, number),
                enqueue=Enqueue(NAME, {"number": number}),
                **recorded.params,
            )

        await asyncio.gather(*map(prepare, range(CALLS + 1)))
        # The last one has it without a loss.
        control = await call(world, CALLS)
        script = f"events/{recorded.wire['eventType']}"
        answers = await fifty(backend, namespace, script, call, lost, answered)
        expected = await e.log_types(world, run_ids[CALLS])
        for run_id, answer in zip(run_ids, answers, strict=False):
            assert shape(answer) == shape(control)
            log = await e.log(world, run_id)
            assert [each.event_type for each in log] == expected
            if answer.event is not None:
                assert answer.event.run_id == run_id
                assert answer.event.event_id in {each.event_id for each in log}
        messages = await world.queue.claim(TOPIC, limit=1000)
        assert sorted(each.payload["number"] for each in messages) == [*range(CALLS + 1)]
        await check_invariants(world)


# -- messages and streams ------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What fifty callers do, each with a thing of its own.

    Attributes:
        prepare: makes so many things.
        call: does it with one of them.
        check: what has become of them, given things and answers.
    """

    script: str
    prepare: Callable[[RedisWorld], Awaitable[Sequence[Any]]]
    call: Callable[[RedisWorld, Any], Awaitable[Any]]
    check: Callable[[RedisWorld, Sequence[Any], list[Any]], Awaitable[None]]
    options: dict[str, Any] = field(default_factory=dict)


async def send_all(world: RedisWorld) -> list[str]:
    return [await send(world, {"number": number}) for number in range(CALLS)]


async def lease_all(world: RedisWorld) -> Sequence[Any]:
    await send_all(world)
    return await claim_all(world)


async def claim_all(world: RedisWorld) -> Sequence[Any]:
    messages = await world.queue.claim(TOPIC, limit=1000)
    assert len(messages) == CALLS
    return messages


async def bury_all(world: RedisWorld) -> list[str]:
    for message in [*await lease_all(world)]:
        assert await world.queue.retry(message, delay=0)
    for message in [*await claim_all(world)]:
        assert await world.queue.retry(message, delay=0)
    return [each.message_id for each in (await world.queue.dead_letters(TOPIC, limit=100)).data]


async def start_runs(world: RedisWorld) -> list[str]:
    run_ids = [e.run_id_at(MOMENT) for _ in range(CALLS)]
    await asyncio.gather(*(create_run(world, run_id, "running") for run_id in run_ids))
    return run_ids


async def nothing_is_left(world: RedisWorld, _: Sequence[Any], answers: list[Any]) -> None:
    assert answers == [True] * CALLS
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.leased, stats.dead) == (0, 0, 0)


async def all_failed_once(world: RedisWorld, _: Sequence[Any], answers: list[Any]) -> None:
    assert answers == [True] * CALLS
    assert [(each.failures, each.attempt) for each in await claim_all(world)] == [(1, 2)] * CALLS


async def none_was_tried(world: RedisWorld, _: Sequence[Any], answers: list[Any]) -> None:
    assert answers == [True] * CALLS
    assert [(each.failures, each.attempt) for each in await claim_all(world)] == [(0, 1)] * CALLS


async def all_are_leased(world: RedisWorld, _: Sequence[Any], answers: list[Any]) -> None:
    assert answers == [True] * CALLS
    assert (await world.queue.stats(TOPIC)).leased == CALLS


async def each_is_sent(world: RedisWorld, numbers: Sequence[Any], answers: list[Any]) -> None:
    found = {each.message_id: each.payload["number"] for each in await claim_all(world)}
    assert found == dict(zip(answers, numbers, strict=True))


async def each_is_back(world: RedisWorld, letters: Sequence[Any], answers: list[Any]) -> None:
    assert answers == [*letters]
    assert {each.message_id for each in await claim_all(world)} == {*letters}


async def each_is_written(world: RedisWorld, run_ids: Sequence[Any], _: list[Any]) -> None:
    for run_id in run_ids:
        chunks = (await world.streams.get_chunks(run_id, "out")).data
        assert [each.data for each in chunks] == [run_id.encode()]


async def each_is_closed(world: RedisWorld, run_ids: Sequence[Any], _: list[Any]) -> None:
    for run_id in run_ids:
        info = await world.streams.get_info(run_id, "out")
        assert (info.tail_index, info.done) == (-1, True)


async def each_has_its_batch(
    world: RedisWorld, run_ids: Sequence[Any], answers: list[Any]
) -> None:
    for run_id, answer in zip(run_ids, answers, strict=True):
        assert [result.status for result in answer.results] == [200, 200]
        assert await e.log_types(world, run_id) == [
            "run_created", "run_started", "step_created", "step_started"
        ]  # fmt: skip


async def numbers(_: RedisWorld) -> Sequence[Any]:
    return range(CALLS)


WORK: Final = {
    "send": Work(
        "queue/send", numbers, lambda world, number: send(world, {"number": number}), each_is_sent
    ),
    "ack": Work("queue/ack", lease_all, lambda world, it: world.queue.ack(it), nothing_is_left),
    "retry": Work(
        "queue/retry", lease_all, lambda world, it: world.queue.retry(it, delay=0), all_failed_once
    ),
    "release": Work(
        "queue/release", lease_all, lambda world, it: world.queue.release(it), none_was_tried
    ),
    "extend": Work(
        "queue/extend", lease_all, lambda world, it: world.queue.extend(it), all_are_leased
    ),
    "redrive": Work(
        "queue/redrive",
        bury_all,
        lambda world, it: world.queue.redrive(it),
        each_is_back,
        {"max_failures": 2},
    ),
    "write": Work(
        "streams/write",
        start_runs,
        lambda world, it: world.streams.write(it, "out", it.encode()),
        each_is_written,
    ),
    "close": Work(
        "streams/close",
        start_runs,
        lambda world, it: world.streams.close(it, "out"),
        each_is_closed,
    ),
    "batch": Work(
        "events/batch",
        start_runs,
        lambda world, it: world.events.create_batch(it, [e.step_created(), e.step_started()]),
        each_has_its_batch,
    ),
}


@pytest.mark.parametrize("name", WORK)
async def test_other_calls_of_each_caller(
    backend: Backend, name: str, lost: str, answered: int
) -> None:
    work, namespace = WORK[name], backend.namespace()
    async with direct_world(backend, namespace, **work.options) as (world, _):
        things = [*await work.prepare(world)]

        def call(world: RedisWorld, number: int) -> Awaitable[Any]:
            return work.call(world, things[number])

        answers = await fifty(
            backend, namespace, work.script, call, lost, answered, **work.options
        )
        await work.check(world, things, answers)
        await check_invariants(world)
