"""Payloads of any size: small ones lie in the log, large ones beside it, and nobody can tell."""

# Contract: 3.payloads

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import fakeredis
import pytest
import redis

from redis_world import RedisWorld, cleaning, payloads
from redis_world.connection import Connection
from redis_world.errors import ScriptError, WorldUnavailableError
from redis_world.janitor import Janitor
from redis_world.models import Event
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.metering import size_of
from support.private_servers import ONE, private_server

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


async def one_piece(connection: Connection, kind: str, run_id: str) -> None:
    """What a process does that dies in the middle of it."""
    keys = connection.partitions.of(run_id)
    await connection.call(
        "runs/clean",
        {"run": keys.of_run(run_id).run, "cleaning": keys.cleaning},
        {"base": keys.base, "kind": kind, "run_id": run_id, "after": b""},
    )


async def nothing(*_: Any) -> None:
    return None


# Contract: 5.user data
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "a batch", "cancel_many"])
async def test_the_data_of_a_run_are_deleted_when_it_ends(
    world: RedisWorld, backend: Backend, end: str
) -> None:
    """No worker has to sweep, however long the log is."""
    run_id = await write_everything(world, 60, **RETENTION)
    for begin in range(0, 250, 50):
        names = [f"s{number}" for number in range(begin, begin + 50)]
        events = [e.step_created(name, input=of_size(60, "i")) for name in names]
        await world.events.create_batch(run_id, events)
    if end == "a batch":
        await world.events.create_batch(run_id, [e.run_ended("completed")])
    elif end == "cancel_many":
        await world.runs.cancel_many([run_id])
    else:
        await world.events.create(run_id, e.run_ended(end))
    left = repr(backend.dump())
    assert not any(of_size(60, name).decode() in left for name in "iabcdefgmp")
    assert len(await e.log(world, run_id)) > 250


# Contract: 5.user data, 5.create_batch
@pytest.mark.parametrize("size", [1, SMALL + 1])
async def test_a_batch_that_ends_such_a_run_answers_what_it_brought(
    world: RedisWorld, size: int
) -> None:
    run_id = await e.new_run(world, attributes={"$retention": "0"}, allowReservedAttributes=True)
    batch = await world.events.create_batch(
        run_id,
        [e.step_created("a", input=of_size(size)), e.step_started("a"), e.run_ended("completed")],
    )
    steps = [result.step for result in batch.results[:2]]
    assert [step and step.input for step in steps] == [of_size(size)] * 2


# Contract: 5.user data
async def test_a_full_server_deletes_it_all_the_same() -> None:
    """It grows by the copy of a log before it shrinks, and refuses what only grows."""
    with (
        private_server(ONE, "--maxmemory-policy", "noeviction") as own,
        contextlib.closing(redis.Redis.from_url(own.url)) as client,
    ):
        async with RedisWorld(own.url, retention=None) as world:
            run_id = await write_everything(world, 4000, **RETENTION)
            for number in range(50):
                wire = e.step_created(f"s{number}", input=of_size(4000, "i"))
                await world.events.create(run_id, wire)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(cleaning, "go_on", nothing)
                await world.events.create(run_id, e.run_ended("completed"))
            about: Any = client.info("memory")
            client.config_set("maxmemory", int(about["used_memory"]) - 10_000)
            with pytest.raises(WorldUnavailableError):
                await world.events.create(None, e.run_created())
            await world.sweep()
            client.config_set("maxmemory", 0)
            await check_invariants(world)
            assert not client.exists(world.connection.keys.cleaning)


# Contract: 5.user data
async def test_a_server_that_renames_nothing_loses_no_log() -> None:
    """As one whose user lacks that right."""
    with (
        private_server(ONE) as own,
        contextlib.closing(redis.Redis.from_url(own.url)) as client,
    ):
        async with RedisWorld(own.url) as world:
            run_id = await write_everything(world, 60, **RETENTION)
            before = await e.log(world, run_id)
            client.execute_command("ACL", "SETUSER", "default", "-rename")  # type: ignore[no-untyped-call]
            with pytest.raises(ScriptError):
                await world.events.create(run_id, e.run_ended("completed"))
            log = await e.log(world, run_id)
            assert len(log) == len(before) + 1
            assert payloads_of(log) == []
            with pytest.raises(ScriptError):
                await world.sweep()
            client.execute_command("ACL", "SETUSER", "default", "+rename")  # type: ignore[no-untyped-call]
            await world.sweep()
            assert await e.log(world, run_id) == log
            await check_invariants(world)


# Contract: 5.user data
@pytest.mark.parametrize("size", [1, SMALL + 1])
@pytest.mark.parametrize("more", [0, 100, 250])
async def test_user_data_of_a_long_log_goes_at_once(
    clocked: tuple[RedisWorld, ManualClock],
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    more: int,
) -> None:
    """For every reader; the server has got rid of all of it after the next sweep."""
    monkeypatch.setattr(cleaning, "go_on", one_piece)
    world, clock = clocked
    run_id = await write_everything(world, size, **RETENTION)
    until = clock.now + timedelta(hours=1)
    kept = e.hook_created("kept", "kept", metadata=of_size(size, "m"), tokenRetentionUntil=until)
    await world.events.create(run_id, kept)
    await world.events.create(run_id, e.lazy_start("k", input=of_size(size, "i")))
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
        assert (await world.hooks.get("kept")).metadata is None
        again = e.hook_received("h", payload=of_size(size, "p"))
        repeated = await world.events.create(run_id, again, resume_id="r")
        assert repeated.event is not None
        assert payloads_of([repeated.event]) == []
        await check_invariants(world)

    await look()
    # What ran on is recorded, in the middle of it.
    result = await world.events.create(run_id, e.step_completed("f", result=of_size(size, "c")))
    assert result.step is not None
    assert (result.step.input, result.step.status) == (None, "completed")
    result = await world.events.create(run_id, e.step_failed("k", error=of_size(size, "e")))
    assert result.step is not None
    assert (result.step.input, result.step.status) == (None, "failed")
    await look()
    await world.sweep()
    await look()
    assert len(await e.log(world, run_id)) == len(before) + 4
    if size > SMALL:
        left = repr(backend.dump())
        assert not any(of_size(99, name).decode() in left for name in "iabcdefgmp")


# Contract: 5.user data
async def test_a_run_that_is_removed_while_its_data_are_deleted(
    clocked: tuple[RedisWorld, ManualClock], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its janitor died in the middle, and the next one comes after its retention."""
    monkeypatch.setattr(cleaning, "go_on", one_piece)
    world, _ = clocked
    run_id = await write_everything(world, 1, **RETENTION)
    for begin in range(0, 250, 50):
        names = [f"s{number}" for number in range(begin, begin + 50)]
        await world.events.create_batch(run_id, [e.step_created(name) for name in names])
    await world.events.create(run_id, e.run_ended("completed"))
    assert any(key.endswith(b":stripped") for key in backend.dump())

    async def dies(_: Janitor) -> None:
        return None

    monkeypatch.setattr(Janitor, "_finish_cleaning", dies)
    assert await world.prune(older_than=0) == 1
    await check_invariants(world)
    assert not [key for key in backend.dump() if run_id.encode() in key]


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


# Contract: 5.user data
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("size", [60, SMALL + 1])
async def test_a_log_that_is_removed_while_it_is_read(
    clocked: tuple[RedisWorld, ManualClock],
    monkeypatch: pytest.MonkeyPatch,
    order: Any,
    size: int,
) -> None:
    """Between two round trips: the reader ends, and gets no event without what it had."""
    world, _ = clocked
    run_id = await write_everything(world, size)
    for begin in range(0, 200, 50):
        names = [f"s{number}" for number in range(begin, begin + 50)]
        events = [e.step_created(name, input=of_size(size, "i")) for name in names]
        await world.events.create_batch(run_id, events)
    await world.events.create(run_id, e.event("run_completed", output=of_size(size, "g")))
    before = await e.log(world, run_id)
    execute = Connection.execute
    trips = 0

    async def counted(self: Connection, *commands: Any) -> list[Any]:
        nonlocal trips
        trips += 1
        if trips == 2:
            monkeypatch.setattr(Connection, "execute", execute)
            await world.prune(older_than=0)
        return await execute(self, *commands)

    monkeypatch.setattr(Connection, "execute", counted)
    page = await world.events.list(run_id, sort_order=order)
    assert all(event in before for event in page.data)
    assert (await world.events.list(run_id, sort_order=order)).data == []
