"""Attributes of runs, and the events that write them (contract, section 5, Attributes)."""

# Contract: 5.attributes

from __future__ import annotations

import json
from typing import Any

import pytest

from redis_world import RedisWorld
from redis_world.errors import AttributeValidationError, EntityConflictError, InvalidEventError
from support import events as e
from support.backends import Backend
from support.folding import assert_log_folds

EMOJI = "\U0001f600"  # two UTF-16 units, four UTF-8 bytes


async def attributes(world: RedisWorld, run_id: str) -> dict[str, str]:
    return (await world.runs.get(run_id)).attributes


# Contract: 5.attr_set
@pytest.mark.parametrize("status", ["pending", "running"])
async def test_changes_are_merged_and_null_removes(world: RedisWorld, status: str) -> None:
    run_id = await e.new_run(world, status, attributes={"a": "1", "b": "2"})
    changes = {"b": None, "c": "3", "a": "", "never": None}
    result = await world.events.create(run_id, e.attr_set(changes, "attr_1"))
    assert result.run == await world.runs.get(run_id)
    assert result.run.attributes == {"a": "", "c": "3"}
    assert result.run.status == status
    data = e.data_of(result.event)
    assert data["changes"] == [{"key": key, "value": value} for key, value in changes.items()]
    assert data["writer"] == {"type": "workflow"}
    assert result.event == (await e.log(world, run_id))[-1]
    await assert_log_folds(world, run_id)


# Contract: 5.attr_set
async def test_a_write_without_changes_is_an_event_all_the_same(world: RedisWorld) -> None:
    run_id = await e.new_run(world, attributes={"a": "1"})
    await world.events.create(run_id, e.attr_set({}))
    assert await attributes(world, run_id) == {"a": "1"}
    assert (await e.log_types(world, run_id))[-1] == "attr_set"


# Contract: 5.attr_set
async def test_a_workflow_s_write_counts_once(world: RedisWorld, backend: Backend) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.attr_set({"a": "1"}, "attr_1"))
    before = backend.dump()
    repeated: list[dict[str, str | None]] = [{"a": "1"}, {"a": "2"}, {"a": None, "b": "3"}]
    for changes in repeated:
        with pytest.raises(EntityConflictError) as raised:
            await world.events.create(run_id, e.attr_set(changes, "attr_1"))
        assert raised.value.reason == "duplicate"
    assert backend.dump() == before
    await world.events.create(run_id, e.attr_set({"a": "2"}, "attr_2"))
    assert await attributes(world, run_id) == {"a": "2"}


# Contract: 5.attr_set
async def test_a_step_s_write_counts_every_time(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    for value in ("1", "2", "2"):
        wire = e.attr_set({"a": value}, "attr_1", step="step_1")
        result = await world.events.create(run_id, wire)
        assert e.data_of(result.event)["writer"] == {
            "type": "step",
            "stepId": "step_1",
            "attempt": 1,
        }
    assert await attributes(world, run_id) == {"a": "2"}
    assert (await e.log_types(world, run_id)).count("attr_set") == 3
    # Nor does it stand in the way of the workflow's own write.
    await world.events.create(run_id, e.attr_set({"a": "3"}, "attr_1"))
    await world.events.create(run_id, e.attr_set({"a": "4"}, "attr_1", step="step_1"))
    assert await attributes(world, run_id) == {"a": "4"}


# Contract: 5.attr_set
async def test_a_workflow_s_write_without_an_id_counts_every_time(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    for value in ("1", "2"):
        await world.events.create(run_id, e.attr_set({"a": value}))
    assert await attributes(world, run_id) == {"a": "2"}


# -- limits --------------------------------------------------------------------------------

GOOD: dict[str, dict[str, str]] = {
    "a key of 256 units": {"k" * 256: "v"},
    "a key of 256 units in 128 characters": {EMOJI * 128: "v"},
    "a value of 256 bytes": {"k": "v" * 256},
    "a value of 256 bytes in 64 characters": {"k": EMOJI * 64},
    "an empty value": {"k": ""},
    "a dollar within": {"a$b": "v"},
    "odd characters": {"a\x00\n/: \u00e9": "\x00\U0001f600"},
    "64 keys": {f"k{i}": "v" for i in range(64)},
}

BAD: dict[str, dict[str, str]] = {
    "an empty key": {"": "v"},
    "a key of 257 units": {"k" * 257: "v"},
    "a key of 258 units in 129 characters": {EMOJI * 129: "v"},
    "a value of 257 bytes": {"k": "v" * 257},
    "a value of 260 bytes in 65 characters": {"k": EMOJI * 65},
    "a reserved key": {"$k": "v"},
    "65 keys": {f"k{i}": "v" for i in range(65)},
    "one of many": {"fine": "v", "$": "v"},
}


def writes(values: dict[str, str], **data: Any) -> dict[str, e.Wire]:
    """The three events that can write attributes."""
    return {
        "created": e.run_created(attributes=values, **data),
        "started": e.resilient_start(attributes=values, **data),
        "set": e.attr_set(dict(values), **data),
    }


@pytest.mark.parametrize("how", ["created", "started", "set"])
@pytest.mark.parametrize("case", GOOD)
async def test_attributes_within_the_limits(world: RedisWorld, how: str, case: str) -> None:
    run_id = await e.new_run(world) if how == "set" else e.new_run_id()
    result = await world.events.create(run_id, writes(GOOD[case])[how])
    assert result.run is not None
    assert result.run.attributes == GOOD[case] == await attributes(world, run_id)


# Contract: 5.attributes, 4.bad input
@pytest.mark.parametrize("how", ["created", "started", "set"])
@pytest.mark.parametrize("case", BAD)
async def test_attributes_beyond_a_limit_store_nothing(
    world: RedisWorld, backend: Backend, how: str, case: str
) -> None:
    """They are judged before any state: it makes no difference whether there is a run."""
    runs = [e.new_run_id(), *[await e.new_run(world, status) for status in e.RUN_STATES]]
    before = backend.dump()
    for run_id in runs:
        with pytest.raises(AttributeValidationError):
            await world.events.create(run_id, writes(BAD[case])[how])
    assert backend.dump() == before


@pytest.mark.parametrize("how", ["created", "started", "set"])
async def test_reserved_keys_need_leave(world: RedisWorld, backend: Backend, how: str) -> None:
    values = {"$framework": "x", "plain": "y"}
    run_id = await e.new_run(world) if how == "set" else e.new_run_id()
    before = backend.dump()
    with pytest.raises(AttributeValidationError):
        await world.events.create(run_id, writes(values, allowReservedAttributes=False)[how])
    assert backend.dump() == before
    result = await world.events.create(run_id, writes(values, allowReservedAttributes=True)[how])
    assert result.run is not None
    assert result.run.attributes == values


async def test_removing_a_reserved_key_needs_leave_too(world: RedisWorld) -> None:
    run_id = await e.new_run(world, attributes={"$x": "1"}, allowReservedAttributes=True)
    with pytest.raises(AttributeValidationError):
        await world.events.create(run_id, e.attr_set({"$x": None}))
    await world.events.create(run_id, e.attr_set({"$x": None}, allowReservedAttributes=True))
    assert await attributes(world, run_id) == {}


@pytest.mark.parametrize("second", ["1", "2", None])
async def test_a_key_occurs_once_per_event(
    world: RedisWorld, backend: Backend, second: str | None
) -> None:
    run_id = await e.new_run(world)
    before = backend.dump()
    pairs = [("a", "1"), ("b", "1"), ("a", second)]
    twice: list[e.Wire] = [{"key": key, "value": value} for key, value in pairs]
    with pytest.raises(AttributeValidationError):
        await world.events.create(run_id, e.attr_set(twice))
    assert backend.dump() == before


@pytest.mark.parametrize("step", [None, "step_1"])
async def test_a_full_run_takes_updates_removals_and_exchanges(
    world: RedisWorld, backend: Backend, step: str | None
) -> None:
    """The count after the merge is what counts."""
    full = {f"k{i}": "v" for i in range(64)}
    run_id = await e.new_run(world, attributes=full)
    before = backend.dump()
    too_many: list[dict[str, str | None]] = [
        {"new": "v"},
        {"new": "v", "k0": "w"},
        {"x": "1", "y": "2", "k0": None},
    ]
    for changes in too_many:
        with pytest.raises(AttributeValidationError):
            await world.events.create(run_id, e.attr_set(changes, "attr_1", step=step))
    assert backend.dump() == before
    await world.events.create(run_id, e.attr_set(dict.fromkeys(full, "w"), "attr_1", step=step))
    await world.events.create(run_id, e.attr_set({"new": "v", "k0": None}, "attr_2", step=step))
    await world.events.create(run_id, e.attr_set({"k1": None, "never": None}, "attr_3", step=step))
    await world.events.create(run_id, e.attr_set({"last": "v"}, "attr_4", step=step))
    kept = await attributes(world, run_id)
    assert len(kept) == 64
    assert {"new", "last"} <= set(kept)
    assert not {"k0", "k1"} & set(kept)


# Contract: 5.attr_set, 5.nothing left behind
async def test_a_refused_write_does_not_use_up_its_id(world: RedisWorld) -> None:
    run_id = await e.new_run(world, attributes={f"k{i}": "v" for i in range(64)})
    with pytest.raises(AttributeValidationError):
        await world.events.create(run_id, e.attr_set({"new": "v"}, "attr_1"))
    await world.events.create(run_id, e.attr_set({"k0": None}, "attr_1"))
    assert len(await attributes(world, run_id)) == 63


def padded_to(size: int, unit: str = "x") -> e.Wire:
    """An attr_set whose data is that many bytes of compact UTF-8 JSON."""
    wire = e.attr_set({"k": "v"}, "attr_1", note="")
    text = json.dumps(wire["eventData"], ensure_ascii=False, separators=(",", ":"))
    missing = size - len(text.encode())
    count, rest = divmod(missing, len(unit.encode()))
    wire["eventData"]["note"] = unit * count + "x" * rest
    return wire


@pytest.mark.parametrize("unit", ["x", "\u00e9", EMOJI], ids=["ascii", "2 bytes", "4 bytes"])
async def test_the_data_of_a_write_has_a_size_limit(
    world: RedisWorld, backend: Backend, unit: str
) -> None:
    run_id = await e.new_run(world)
    before = backend.dump()
    for target in (run_id, e.new_run_id()):
        with pytest.raises(AttributeValidationError):
            await world.events.create(target, padded_to(8193, unit))
    assert backend.dump() == before
    wire = padded_to(8192, unit)
    result = await world.events.create(run_id, wire)
    assert e.data_of(result.event) == wire["eventData"]


MALFORMED: dict[str, dict[str, Any]] = {
    "no writer": {"changes": []},
    "no changes": {"writer": {"type": "workflow"}},
    "a writer of no kind": {"changes": [], "writer": {"type": "robot"}},
    "a step without its id": {"changes": [], "writer": {"type": "step", "attempt": 1}},
    "a step without its attempt": {"changes": [], "writer": {"type": "step", "stepId": "s"}},
    "a change without key": {"changes": [{"value": "v"}], "writer": {"type": "workflow"}},
    "a change without value": {"changes": [{"key": "k"}], "writer": {"type": "workflow"}},
    "a number as value": {"changes": [{"key": "k", "value": 1}], "writer": {"type": "workflow"}},
    "bytes as value": {"changes": [{"key": "k", "value": b"v"}], "writer": {"type": "workflow"}},
    "a mapping of changes": {"changes": {"k": "v"}, "writer": {"type": "workflow"}},
}


# Contract: 5.attr_set, 4.bad input
@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_write_stores_nothing(
    world: RedisWorld, backend: Backend, case: str
) -> None:
    runs = [await e.new_run(world), e.new_run_id()]
    before = backend.dump()
    for run_id in runs:
        with pytest.raises((AttributeValidationError, InvalidEventError)) as raised:
            await world.events.create(run_id, e.event("attr_set", **MALFORMED[case]))
        assert raised.value.status == 400
    assert backend.dump() == before
