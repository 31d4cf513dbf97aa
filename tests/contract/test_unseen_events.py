"""What `event_count` and `since_cursor` bring with the rarer answers (contract, section 5).

The ordinary ones are tested with the other optional parameters, in `test_event_rules.py`.
"""

# Contract: 5.event_count

from __future__ import annotations

from typing import Any, Literal, cast

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidInputError
from redis_world.models import EventResult
from support import events as e


def slots(result: EventResult) -> list[str | None]:
    return [each.event_id for each in result.events or []]


def ids(*numbers: int) -> list[str]:
    return [e.event_id(number) for number in numbers]


@pytest.mark.parametrize("seen", [2, 1, 0])
async def test_a_lazy_start_brings_the_creation_of_its_step(world: RedisWorld, seen: int) -> None:
    """It is two events: a writer that had seen everything in front of them lacks one."""
    run_id = await e.new_run(world)
    result = await world.events.create(run_id, e.lazy_start(), event_count=seen)
    assert result.event is not None
    assert result.event.event_id == e.event_id(4)
    assert slots(result) == ids(*range(seen + 1, 4))
    assert (result.cursor, result.has_more) == (None, False)
    assert result.events == (await e.log(world, run_id))[seen:3]


async def test_a_resilient_start_brings_the_creation_of_its_run(world: RedisWorld) -> None:
    run_id = e.new_run_id()
    result = await world.events.create(
        run_id, e.resilient_start(), event_count=0, skip_preload=True
    )
    assert slots(result) == ids(1)
    assert (result.cursor, result.has_more) == (None, False)


async def test_a_conflict_of_tokens_brings_what_was_not_seen(world: RedisWorld) -> None:
    holder, run_id = await e.new_run(world), await e.new_run(world)
    await world.events.create(holder, e.hook_created("holder", "shared"))
    await e.write(world, run_id, e.step_created(), e.step_started())
    result = await world.events.create(run_id, e.hook_created(token="shared"), event_count=2)
    assert result.event is not None
    assert result.event.event_type == "hook_conflict"
    assert slots(result) == ids(3, 4)
    assert (result.cursor, result.has_more) == (None, False)
    log = await e.log(world, run_id)
    assert result.events == log[2:4]
    assert log[-1] == result.event


@pytest.mark.parametrize("seen", [1, 2, 9])
async def test_a_start_that_writes_nothing_brings_nothing(world: RedisWorld, seen: int) -> None:
    run_id = await e.new_run(world)
    result = await world.events.create(
        run_id, e.event("run_started"), event_count=seen, skip_preload=True
    )
    assert result.event == (await e.log(world, run_id))[1]
    assert result.events is None


async def test_payloads_are_left_out_of_them_on_demand(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    result = await world.events.create(run_id, e.lazy_start(), event_count=0, resolve_data="none")
    assert result.events is not None
    assert slots(result) == ids(1, 2, 3)
    assert all("input" not in (each.to_wire().get("eventData") or {}) for each in result.events)


@pytest.mark.parametrize("asked", [{"event_count": 0}, {"since_cursor": f"eid:{e.event_id(0)}"}])
@pytest.mark.parametrize(("entity", "delta"), [("none", "all"), ("all", "none"), ("all", None)])
async def test_their_payloads_are_chosen_apart_from_those_of_the_entity(
    world: RedisWorld,
    asked: dict[str, Any],
    entity: Literal["all", "none"],
    delta: Literal["all", "none"] | None,
) -> None:
    run_id = await e.new_run(world)
    result = await world.events.create(
        run_id, e.lazy_start(), resolve_data=entity, resolve_delta=delta, **asked
    )
    assert result.step is not None
    assert result.events is not None
    assert ("input" in result.step.to_wire()) is (entity == "all")
    told = [each.to_wire().get("eventData") or {} for each in result.events[:3]]
    shown = (delta or entity) == "all"
    assert ["input" in data for data in told] == [shown, False, shown]


@pytest.mark.parametrize("asked", [{}, {"event_count": 9}])
async def test_the_preload_of_a_start_is_chosen_apart_where_a_count_asks_for_it(
    world: RedisWorld, asked: dict[str, Any]
) -> None:
    run_id = e.new_run_id()
    await world.events.create(run_id, e.run_created())
    result = await world.events.create(
        run_id, e.event("run_started"), resolve_data="none", resolve_delta="all", **asked
    )
    assert result.events is not None
    assert ("input" in result.events[0].to_wire()["eventData"]) is bool(asked)


async def test_payloads_of_them_are_all_or_none(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    with pytest.raises(InvalidInputError, match="resolve_delta must be 'all' or 'none'"):
        await world.events.create(
            run_id, e.lazy_start(), resolve_delta=cast("Any", "some"), event_count=0
        )
    assert len(await e.log(world, run_id)) == 2


# Contract: 5.since_cursor
async def test_a_start_that_creates_its_run_takes_a_cursor_too(world: RedisWorld) -> None:
    run_id = e.new_run_id()
    result = await world.events.create(
        run_id, e.resilient_start(), since_cursor=f"eid:{e.event_id(1)}", skip_preload=True
    )
    assert slots(result) == ids(2)
    assert result.has_more is False
    assert (await world.events.list(run_id, cursor=result.cursor)).data == []


# Contract: 5.since_cursor
async def test_a_cursor_wins_over_the_preload_of_a_start(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created())
    result = await world.events.create(
        run_id, e.event("run_started"), since_cursor=f"eid:{e.event_id(2)}"
    )
    assert slots(result) == ids(3)
