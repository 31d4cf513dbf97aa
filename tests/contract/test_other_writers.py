"""Logs that other Worlds have written to, and what this one claims (contract, sections 2, 5)."""

from __future__ import annotations

import pytest

from redis_world import RedisWorld
from redis_world.errors import EntityConflictError
from redis_world.models import NoopEvent
from redis_world.vercel import VercelWorld
from support import events as e


# Contract: 2.spec versions
async def test_a_sealed_slot_is_read_as_what_it_is(world: RedisWorld) -> None:
    """A `noop` fills a slot that another kind of World gave away and never used."""
    run_id = await e.new_run(world)
    keys = world.connection.partitions.of(run_id).of_run(run_id)
    at = str(int((await world.runs.get(run_id)).created_at.timestamp() * 1000))
    await world.connection.execute(
        ("XADD", keys.events, "0-3", "type", "noop", "at", at, "spec", "7")
    )
    result = await world.events.create(run_id, e.step_created(), event_count=2)
    assert result.event is not None
    assert result.event.event_id == e.event_id(4)
    log = await e.log(world, run_id)
    assert [each.event_type for each in log[2:]] == ["noop", "step_created"]
    noop = log[2]
    assert isinstance(noop, NoopEvent)
    assert (noop.run_id, noop.event_id, noop.spec_version) == (run_id, e.event_id(3), 7)
    assert noop.correlation_id is None
    assert result.events == [noop]
    assert await world.events.get(run_id, e.event_id(3)) == noop
    assert await world.events.get(run_id, e.event_id(3), resolve_data="none") == noop
    preloaded = await world.events.create(run_id, e.event("run_started"))
    assert preloaded.events == log
    page = await world.events.list(run_id, limit=1, cursor=f"eid:{e.event_id(2)}")
    assert (page.data, page.has_more) == ([noop], True)


# Contract: 5.capabilities
async def test_what_is_written_says_version_7(world: RedisWorld) -> None:
    """No event of ours is a `noop`: slots are given away in the script that uses them."""
    run_id = e.new_run_id()
    await world.events.create(run_id, e.resilient_start())
    for wire in (e.lazy_start(), e.hook_created(), e.hook_received(), e.hook_disposed()):
        await world.events.create(run_id, wire)
        for refused in (e.step_created(), e.run_created()):
            assert isinstance(await e.attempt(world, run_id, refused), EntityConflictError)
    await world.events.create(run_id, e.run_ended("completed"))
    log = await e.log(world, run_id)
    assert {each.spec_version for each in log} == {7}
    assert "noop" not in {each.event_type for each in log}
    assert (await world.runs.get(run_id)).spec_version == 7


# Contract: 5.capabilities
@pytest.mark.parametrize("public_key", [None, "key=="])
async def test_there_is_no_key_of_its_own(world: RedisWorld, public_key: str | None) -> None:
    """Payloads are their writer's: what is asked for a key says that there is none."""
    given = {} if public_key is None else {"encryptionPublicKey": public_key}
    run_id = await e.new_run(world, **given)
    assert await VercelWorld(world).run_key(run_id) is None
    assert (await world.runs.get(run_id)).encryption_public_key == public_key
