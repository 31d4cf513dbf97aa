"""Payloads of any size: small ones lie in the log, large ones beside it, and nobody can tell."""

# Contract: 3.payloads

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

import fakeredis
import pytest

from redis_world import RedisWorld, payloads
from redis_world.connection import Connection
from redis_world.models import Event
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend

SMALL: Final = 4096
"""Bytes of the largest payload that lies in its entry."""
SIZES: Final = (0, 1, SMALL - 1, SMALL, SMALL + 1, 100_000)
RETENTION: Final = {"$retention": "0"}


def of_size(size: int, name: str = "x") -> bytes:
    return (name.encode() * size)[:size]


def payloads_of(events: list[Event]) -> list[Any]:
    """What the events of a log carry, in its order."""
    found = []
    for event in events:
        data = getattr(event, "event_data", None)
        if data is not None and data.payload_field in data.model_fields_set:
            found.append(getattr(data, data.payload_field))
    return found


async def write_everything(world: RedisWorld, size: int, **attributes: str) -> str:
    """A run with payloads wherever there may be some; each answer has what it must."""
    run_id = e.new_run_id()
    options: dict[str, Any] = {"attributes": attributes} if attributes else {}
    if attributes:
        options["allowReservedAttributes"] = True
    value = {name: of_size(size, name) for name in "iabcdefgmp"}
    create = world.events.create
    await create(run_id, e.run_created(input=value["i"], **options))
    started = await create(run_id, e.event("run_started"))
    assert started.run is not None
    assert started.run.input == value["i"]
    assert payloads_of([*(started.events or ())]) == [value["i"]]
    await create(run_id, e.step_created("a", input=value["a"]))
    result = await create(run_id, e.step_started("a"))
    assert result.step is not None
    assert result.step.input == value["a"]
    result = await create(run_id, e.step_retrying("a", error=value["b"]))
    result = await create(run_id, e.step_started("a"))
    assert result.step is not None
    assert (result.step.input, result.step.error) == (value["a"], value["b"])
    result = await create(run_id, e.step_completed("a", result=value["c"]))
    assert result.step is not None
    assert (result.step.input, result.step.output) == (value["a"], value["c"])
    await create(run_id, e.lazy_start("d", input=value["d"]))
    batch = await world.events.create_batch(
        run_id, [e.step_failed("d", error=value["e"]), e.step_created("f", input=value["f"])]
    )
    failed = batch.results[0].step
    assert failed is not None
    assert (failed.input, failed.error) == (value["d"], value["e"])
    await create(run_id, e.hook_created("h", "token", metadata=value["m"]))
    for _ in range(2):
        result = await create(run_id, e.hook_received("h", payload=value["p"]), resume_id="r")
        assert result.event is not None
        assert payloads_of([result.event]) == [value["p"]]
    return run_id


@pytest.mark.parametrize("size", SIZES)
async def test_each_reader_gets_them(world: RedisWorld, size: int) -> None:
    run_id = await write_everything(world, size)
    await check_invariants(world)
    value = {name: of_size(size, name) for name in "iabcdefgmp"}
    run = await world.runs.get(run_id)
    assert run.input == value["i"]
    assert await world.runs.get_many([run_id]) == [run]
    assert (await world.runs.list()).data == [run]
    steps = (await world.steps.list(run_id)).data
    assert [(step.input, step.output, step.error) for step in steps] == [
        (value["a"], value["c"], value["b"]),
        (value["d"], None, value["e"]),
        (value["f"], None, None),
    ]
    assert [await world.steps.get(run_id, step.step_id) for step in steps] == steps
    hook = await world.hooks.get("h")
    assert hook.metadata == value["m"]
    assert (await world.hooks.get_by_token("token")).metadata == value["m"]
    assert (await world.hooks.list(run_id)).data == (await world.hooks.list()).data == [hook]
    log = await e.log(world, run_id)
    assert payloads_of(log) == [value[name] for name in "iabcdefmp"]
    assert [await world.events.get(run_id, each.event_id or "") for each in log] == log
    assert (await world.events.list(run_id, sort_order="desc")).data == log[::-1]
    found = (await world.events.list_by_correlation_id(run_id, "a")).data
    assert found == [each for each in log if each.correlation_id == "a"]
    replay = await world.events.begin_replay(run_id, e.event("run_started"))
    assert [*replay.events] == log
    assert replay.result.run == run
    since = await world.events.create(
        run_id, e.step_started("f"), since_cursor=f"eid:{e.event_id(1)}"
    )
    assert (since.events or [])[:-1] == log[1:]
    unseen = await world.events.create(run_id, e.step_completed("f", result=b""), event_count=3)
    assert (unseen.events or [])[: len(log) - 3] == log[3:]
    ended = await world.events.create(run_id, e.event("run_completed", output=value["g"]))
    assert ended.run is not None
    assert (ended.run.input, ended.run.output) == (value["i"], value["g"])
    again = await world.runs.get(run_id)
    assert (again.input, again.output) == (value["i"], value["g"])


@pytest.mark.parametrize("size", SIZES)
async def test_none_is_left_out_by_its_size(world: RedisWorld, size: int) -> None:
    """`resolve_data` leaves all of them out."""
    run_id = await write_everything(world, size)
    log = (await world.events.list(run_id, resolve_data="none")).data
    assert payloads_of(log) == []
    for entity in (
        await world.runs.get(run_id, resolve_data="none"),
        *(await world.steps.list(run_id, resolve_data="none")).data,
        await world.hooks.get("h", resolve_data="none"),
    ):
        wire = entity.to_wire()
        assert not {*wire} & {"input", "output", "error", "metadata"}


# Contract: 5.user data
@pytest.mark.parametrize("size", [1, SMALL + 1])
@pytest.mark.parametrize("more", [0, 100, 250])
async def test_user_data_of_a_long_log_goes_at_once(
    clocked: tuple[RedisWorld, ManualClock], backend: Backend, size: int, more: int
) -> None:
    """For every reader; the server has got rid of all of it after the next sweep."""
    world, _ = clocked
    run_id = await write_everything(world, size, **RETENTION)
    for begin in range(0, more, 50):
        names = [f"s{number}" for number in range(begin, begin + 50)]
        await world.events.create_batch(
            run_id, [e.step_created(name, input=of_size(size, "i")) for name in names]
        )
    before = await e.log(world, run_id)
    await world.events.create(run_id, e.step_started("f"))
    await world.events.create(run_id, e.event("run_completed", output=of_size(size, "g")))

    async def look() -> None:
        log = await e.log(world, run_id)
        assert payloads_of(log) == []
        kinds = [(each.event_type, each.event_id, each.created_at) for each in before]
        assert [(each.event_type, each.event_id, each.created_at) for each in log][
            : len(kinds)
        ] == kinds
        assert payloads_of((await world.events.list_by_correlation_id(run_id, "a")).data) == []
        assert payloads_of([await world.events.get(run_id, e.event_id(3))]) == []
        run = await world.runs.get(run_id)
        assert (run.input, run.output) == (None, None)
        for step in (await world.steps.list(run_id, limit=1000)).data:
            assert (step.input, step.output, step.error) == (None, None, None)
        assert (await world.steps.get(run_id, "a")).input is None
        await check_invariants(world)

    await look()
    # What ran on is recorded, in the middle of it.
    result = await world.events.create(run_id, e.step_completed("f", result=of_size(size, "c")))
    assert result.step is not None
    assert (result.step.input, result.step.status) == (None, "completed")
    await look()
    await world.sweep()
    await look()
    assert len(await e.log(world, run_id)) == len(before) + 3
    if size > SMALL:
        kept = repr(backend.dump())
        assert not any(of_size(99, name).decode() in kept for name in "iabcdefgmp")


# Contract: 5.user data
async def test_one_that_is_deleted_while_it_is_read(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the script that finds it and the command that reads it its run ends."""
    run_id = await write_everything(world, SMALL + 1, **RETENTION)
    load = payloads.load
    ends = [e.event("run_completed", output=b"out")]

    async def late(connection: Connection, found: Any) -> bool:
        found = [*found]
        if ends:
            event = ends.pop()
            await world.events.create(run_id, event)
        return await load(connection, found)

    monkeypatch.setattr(payloads, "load", late)
    run = await world.runs.get(run_id)
    assert run.status == "completed"
    assert run.input is None
    assert run.expired_at is not None


READS: Final[dict[str, Callable[[RedisWorld, str], Awaitable[object]]]] = {
    "runs.get": lambda world, run_id: world.runs.get(run_id),
    "runs.list": lambda world, _: world.runs.list(),
    "steps.get": lambda world, run_id: world.steps.get(run_id, "a"),
    "steps.list": lambda world, run_id: world.steps.list(run_id),
    "hooks.get": lambda world, _: world.hooks.get("h"),
    "hooks.list": lambda world, _: world.hooks.list(),
    "step_started": lambda world, run_id: world.events.create(run_id, e.step_started("f")),
    "run_started": lambda world, run_id: world.events.create(run_id, e.event("run_started")),
    "a resume that is repeated": lambda world, run_id: world.events.create(
        run_id, e.hook_received("h", payload=of_size(100_000, "p")), resume_id="r"
    ),
}


@pytest.mark.parametrize("name", READS)
async def test_large_ones_go_through_no_script(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where scripts call commands, by what these answer."""
    async with RedisWorld("memory://", namespace=f"t{secrets.token_hex(4)}") as world:
        run_id = await write_everything(world, 100_000)
        largest = 0
        answer = fakeredis.commands_mixins.scripting_mixin.ScriptingCommandsMixin
        convert = answer._convert_redis_result

        def counted(self: Any, lua_runtime: Any, result: Any) -> Any:
            nonlocal largest
            largest = max(largest, size_of(result))
            return convert(self, lua_runtime, result)

        monkeypatch.setattr(answer, "_convert_redis_result", counted)
        await READS[name](world, run_id)
        assert 0 < largest < SMALL


def size_of(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, (list, tuple)):
        return sum(map(size_of, value))
    return 0
