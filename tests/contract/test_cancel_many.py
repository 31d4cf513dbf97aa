"""Cancelling many runs at once (contract, section 6)."""

# Contract: 6.cancel_many

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidInputError
from redis_world.models import CancelManyResult, RunCancelledEvent
from redis_world.testing import check_invariants, cutting_proxy
from support import events as e
from support.backends import Backend
from support.monitor import monitor

pytestmark = pytest.mark.everywhere


def told(result: CancelManyResult) -> list[tuple[str, str | None]]:
    return [(each.outcome, each.status) for each in result.results]


async def test_each_run_has_its_outcome(world: RedisWorld) -> None:
    states = ("running", "completed", "pending", "cancelled", "failed")
    ids = [await e.new_run(world, state) for state in states]
    lengths = [len(await e.log(world, run_id)) for run_id in ids]
    missing = e.new_run_id()
    result = await world.runs.cancel_many([*ids, missing], "no longer wanted")
    assert told(result) == [
        ("cancelled", None),
        ("not_cancellable", "completed"),
        ("cancelled", None),
        ("already_cancelled", None),
        ("not_cancellable", "failed"),
        ("not_found", None),
    ]
    assert [each.run_id for each in result.results] == [*ids, missing]
    assert result.summary.to_wire() == {
        "requested": 6,
        "cancelled": 2,
        "alreadyCancelled": 1,
        "notCancellable": 2,
        "notFound": 1,
        "failed": 0,
    }
    grown = [len(await e.log(world, run_id)) for run_id in ids]
    assert [new - old for new, old in zip(grown, lengths, strict=True)] == [1, 0, 1, 0, 0]
    last = (await e.log(world, ids[0]))[-1]
    assert isinstance(last, RunCancelledEvent)
    assert last.event_data is not None
    assert last.event_data.cancel_reason == "no longer wanted"
    await check_invariants(world)


async def test_without_a_reason(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    assert told(await world.runs.cancel_many([run_id])) == [("cancelled", None)]
    twin = await e.new_run(world, "cancelled")
    assert (await e.log(world, run_id))[-1].to_wire().keys() == (await e.log(world, twin))[
        -1
    ].to_wire().keys()


async def test_hooks_and_waits_go_with_it(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.hook_created(), e.wait_created())
    await world.runs.cancel_many([run_id])
    assert (await world.hooks.list()).data == []
    assert (await world.waits.list(run_id)).data == []
    await check_invariants(world)


# Contract: 6.cancel_many, 1.rivals
async def test_of_rivals_one_cancels(backend: Backend) -> None:
    namespace = backend.namespace()
    async with (
        backend.world(namespace=namespace) as one,
        backend.world(namespace=namespace) as other,
    ):
        ids = [await e.new_run(one) for _ in range(5)]
        found = await asyncio.gather(*(w.runs.cancel_many(ids) for w in (one, other) * 4))
        for place in range(len(ids)):
            outcomes = [result.results[place].outcome for result in found]
            assert sorted(outcomes) == ["already_cancelled"] * 7 + ["cancelled"]
        for run_id in ids:
            assert (await e.log_types(one, run_id)).count("run_cancelled") == 1


@pytest.mark.large
async def test_the_largest_number(world: RedisWorld) -> None:
    made = [e.new_run_id() for _ in range(500)]
    run_id = await e.new_run(world)
    result = await world.runs.cancel_many([*made[:499], run_id])
    assert (result.summary.cancelled, result.summary.not_found) == (1, 499)


BAD: Final[dict[str, tuple[Any, ...]]] = {
    "none": ([],),
    "more than 500": ([f"wrun_{number}" for number in range(501)],),
    "twice": (["wrun_1", "wrun_1"],),
    "no text": ([7],),
    "no unicode": (["\ud800"],),
    "a long reason": (["wrun_1"], "x" * 513),
    "a long reason of wide characters": (["wrun_1"], "\U0001f600" * 257),
    "a reason that is no text": (["wrun_1"], 7),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_cancels_nothing(world: RedisWorld, name: str) -> None:
    run_id = await e.new_run(world)
    ids, *reason = BAD[name]
    if name not in ("none", "more than 500"):
        ids = [run_id, *ids]
    with pytest.raises(InvalidInputError):
        await world.runs.cancel_many(ids, *reason)
    assert (await world.runs.get(run_id)).status == "running"


async def test_the_longest_reason(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    result = await world.runs.cancel_many([run_id], "\U0001f600" * 256)
    assert told(result) == [("cancelled", None)]


async def test_a_server_that_is_gone_is_told_for_each(real_backend: Backend) -> None:
    async with cutting_proxy(real_backend.url) as proxy:
        world = RedisWorld(proxy.url, namespace=real_backend.namespace(), retry_timeout=0)
        ids = [await e.new_run(world) for _ in range(2)]
        proxy.cut()
        result = await world.runs.cancel_many(ids)
        assert [each.outcome for each in result.results] == ["failed"] * 2
        assert [each.retryable for each in result.results] == [True] * 2
        assert all(each.code for each in result.results)
        assert result.summary.failed == 2
        await world.aclose()


async def test_an_unsupported_run_fails_for_good(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.connection.execute(
        ("HSET", world.connection.partitions.of(run_id).of_run(run_id).run, "spec_version", "8")
    )
    (outcome,) = (await world.runs.cancel_many([run_id])).results
    assert (outcome.outcome, outcome.retryable) == ("failed", False)


async def test_it_is_one_round_trip(real_backend: Backend) -> None:
    async with real_backend.world() as world:
        ids = [await e.new_run(world) for _ in range(20)]
        with monitor(real_backend.url) as seen:
            await world.runs.cancel_many(ids)
            assert seen.commands() == ["EVALSHA"] * 20
