"""Hooks: tokens, conflicts, resumes and what a hook mirrors of its run (contract, section 5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redis_world import RedisWorld
from redis_world.errors import (
    EntityConflictError,
    HookNotFoundError,
    HookResumeConflictError,
    InvalidEventError,
    RunNotFoundError,
)
from redis_world.testing import ManualClock
from support import events as e
from support.backends import Backend
from support.folding import assert_log_folds

Clocked = tuple[RedisWorld, ManualClock]

# -- creation ------------------------------------------------------------------------------


# Contract: 3.hook, 5.hook_created
async def test_a_hook_is_created_with_all_its_fields(backend: Backend) -> None:
    async with backend.world(environment="production") as world:
        run_id = await e.new_run(world)
        until = datetime.now(UTC).replace(microsecond=123000) + timedelta(days=10)
        wire = e.hook_created(
            metadata=e.ALL_BYTES, isWebhook=True, isSystem=True, tokenRetentionUntil=until
        )
        result = await world.events.create(run_id, wire)
        assert result.event is not None
        assert result.hook is not None
        assert result.hook == await world.hooks.get("hook_1", run_id=run_id)
        context = {"deploymentId": "dpl_1", "workflowName": "workflow//w", "runSpecVersion": 7}
        assert result.hook.to_wire() == {
            "runId": run_id,
            "hookId": "hook_1",
            "token": "token_1",
            "metadata": e.ALL_BYTES,
            "ownerId": "",
            "projectId": "",
            "environment": "production",
            "createdAt": result.event.created_at,
            "specVersion": 7,
            "isWebhook": True,
            "isSystem": True,
            "tokenRetentionUntil": until,
            "resumeContext": context,
        }


# Contract: 3.hook
async def test_what_a_hook_does_not_say_is_false_or_empty(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created())
    hook = (await world.hooks.get("hook_1")).to_wire()
    assert (hook["isWebhook"], hook["isSystem"], hook["environment"]) == (False, False, "")
    assert "tokenRetentionUntil" not in hook
    assert "resumeCapabilities" not in hook


CONTEXTS: list[tuple[dict[str, Any] | None, dict[str, Any]]] = [
    (None, {}),
    ({}, {}),
    (
        {
            "workflowCoreVersion": "5.0.0-beta.55",
            "traceCarrier": {"traceparent": "00-1", "tracestate": ""},
            "hookResumeInputVersion": 1,
            "other": {"x": 1},
        },
        {
            "workflowCoreVersion": "5.0.0-beta.55",
            "traceCarrier": {"traceparent": "00-1", "tracestate": ""},
            "hookResumeInputVersion": 1,
        },
    ),
    (
        {"workflowCoreVersion": 5, "traceCarrier": ["x"], "hookResumeInputVersion": "1"},
        {},
    ),
    ({"traceCarrier": {"traceparent": 1}, "hookResumeInputVersion": True}, {}),
    ({"workflowCoreVersion": None, "traceCarrier": None, "hookResumeInputVersion": None}, {}),
]


# Contract: 3.mirrored
@pytest.mark.parametrize(
    ("context", "mirrored"), CONTEXTS, ids=["none", "empty", "full", "types", "inner", "null"]
)
async def test_a_hook_mirrors_what_a_resume_needs_of_its_run(
    world: RedisWorld, context: dict[str, Any] | None, mirrored: dict[str, Any]
) -> None:
    extra = {} if context is None else {"executionContext": context}
    created = await world.events.create(
        None, {**e.run_created(encryptionPublicKey="pk", **extra), "specVersion": 6}
    )
    assert created.run is not None
    run_id = created.run.run_id
    result = await world.events.create(run_id, e.hook_created())
    expected = {
        "deploymentId": "dpl_1",
        "workflowName": "workflow//w",
        "runSpecVersion": 6,
        "encryptionPublicKey": "pk",
        **mirrored,
    }
    assert result.hook is not None
    assert result.hook.to_wire()["resumeContext"] == expected
    assert (await world.hooks.get("hook_1")).to_wire()["resumeContext"] == expected
    by_token = (await world.hooks.get_by_token("token_1")).to_wire()
    assert by_token["resumeContext"] == expected
    assert by_token["resumeCapabilities"] == {"hookResumeDedupVersion": 1}
    listed = (await world.hooks.list(run_id)).data[0].to_wire()
    assert listed["resumeContext"] == expected


# Contract: 5.hook retention
@pytest.mark.parametrize("limit", [timedelta(days=365), timedelta(hours=1)], ids=str)
async def test_a_token_is_kept_no_longer_than_the_limit(
    backend: Backend, limit: timedelta
) -> None:
    async with backend.world(library=ManualClock.library(), hook_retention_limit=limit) as world:
        clock = await ManualClock(world).set()
        run_id = await e.new_run(world)
        # A little slack: the World may know the server's time a moment late.
        near, far = clock.now + limit, clock.now + limit + timedelta(minutes=1)
        result = await world.events.create(run_id, e.hook_created(tokenRetentionUntil=near))
        assert result.hook is not None
        assert result.hook.token_retention_until == near
        before = backend.dump()
        wire = e.hook_created("hook_2", "token_2", tokenRetentionUntil=far)
        with pytest.raises(InvalidEventError):
            await world.events.create(run_id, wire)
        assert backend.dump() == before


# -- tokens --------------------------------------------------------------------------------


# Contract: 5.hook_conflict
async def test_a_taken_token_is_recorded_as_a_conflict(world: RedisWorld) -> None:
    owner, run_id = await e.new_run(world), await e.new_run(world)
    await world.events.create(owner, e.hook_created("hook_0", "shared"))
    wire = {**e.hook_created(token="shared", metadata=b"m"), "specVersion": 6}
    result = await world.events.create(run_id, wire)
    assert (result.hook, result.run) == (None, None)
    assert result.event is not None
    assert result.event.event_type == "hook_conflict"
    assert (result.event.correlation_id, result.event.spec_version) == ("hook_1", 6)
    assert e.data_of(result.event) == {"token": "shared", "conflictingRunId": owner}
    assert result.event == (await e.log(world, run_id))[-1]
    with pytest.raises(HookNotFoundError):
        await world.hooks.get("hook_1")
    assert (await world.hooks.get_by_token("shared")).run_id == owner


# Contract: 5.hook_conflict
async def test_a_run_can_be_in_conflict_with_itself(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created("hook_1", "shared"))
    result = await world.events.create(run_id, e.hook_created("hook_2", "shared"))
    assert result.event is not None
    assert result.event.event_type == "hook_conflict"
    assert e.data_of(result.event) == {"token": "shared", "conflictingRunId": run_id}


# Contract: 5.hook_created
async def test_a_repeated_creation_leaves_the_hook_and_its_token(world: RedisWorld) -> None:
    """Under the same token or another one, while it lives and after its disposal."""
    run_id = await e.new_run(world)
    created = await world.events.create(run_id, e.hook_created(metadata=b"first"))
    for token in ("token_1", "token_2"):
        with pytest.raises(EntityConflictError) as raised:
            await world.events.create(run_id, e.hook_created(token=token, metadata=b"second"))
        assert raised.value.reason == "duplicate"
    assert await world.hooks.get("hook_1") == created.hook
    assert (await world.hooks.get_by_token("token_1")).hook_id == "hook_1"
    with pytest.raises(HookNotFoundError):
        await world.hooks.get_by_token("token_2")
    await world.events.create(run_id, e.hook_disposed())
    for token in ("token_1", "token_2"):
        with pytest.raises(EntityConflictError):
            await world.events.create(run_id, e.hook_created(token=token))
        with pytest.raises(HookNotFoundError):
            await world.hooks.get_by_token(token)
    types = await e.log_types(world, run_id)
    assert types[2:] == ["hook_created", "hook_disposed"]


# Contract: 5.hook_conflict
@pytest.mark.parametrize("holder", ["token taken", "token free", "another token"])
async def test_a_conflict_is_final_for_its_hook(world: RedisWorld, holder: str) -> None:
    owner, run_id = await e.new_run(world), await e.new_run(world)
    await world.events.create(owner, e.hook_created("hook_0", "shared"))
    await world.events.create(run_id, e.hook_created(token="shared"))
    if holder == "token free":
        await world.events.create(owner, e.hook_disposed("hook_0"))
    token = "other" if holder == "another token" else "shared"
    with pytest.raises(EntityConflictError) as raised:
        await world.events.create(run_id, e.hook_created(token=token))
    assert raised.value.reason == "duplicate"
    assert await e.log_types(world, run_id) == ["run_created", "run_started", "hook_conflict"]
    fresh = await world.events.create(run_id, e.hook_created("hook_2", "shared"))
    assert (fresh.hook is not None) is (holder == "token free")


# Contract: 5.hook_disposed, 5.ends of runs
@pytest.mark.parametrize("way", ["disposed", *e.TERMINAL])
async def test_a_token_is_free_at_once(world: RedisWorld, way: str) -> None:
    owner, run_id = await e.new_run(world), await e.new_run(world)
    await world.events.create(owner, e.hook_created("hook_1", "shared"))
    await world.events.create(owner, e.hook_disposed() if way == "disposed" else e.run_ended(way))
    for gone in (world.hooks.get("hook_1"), world.hooks.get_by_token("shared")):
        with pytest.raises(HookNotFoundError):
            await gone
    result = await world.events.create(run_id, e.hook_created("hook_1", "shared"))
    assert result.hook is not None
    assert (await world.hooks.get_by_token("shared")).run_id == run_id
    if way != "disposed":
        return
    # What is left of the old hook must not take the token from the new one.
    await world.events.create(owner, e.run_ended("completed"))
    assert (await world.hooks.get_by_token("shared")).run_id == run_id


# Contract: 5.hook_disposed
async def test_the_token_of_a_disposal_is_not_asked_for(world: RedisWorld) -> None:
    """It is found from the hook: the event may name none, or another one."""
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.hook_created("a", "ta"), e.hook_created("b", "tb"))
    result = await world.events.create(run_id, e.hook_disposed("a", token="tb"))
    assert e.data_of(result.event) == {"token": "tb"}
    with pytest.raises(HookNotFoundError):
        await world.hooks.get_by_token("ta")
    assert (await world.hooks.get_by_token("tb")).hook_id == "b"
    await world.events.create(run_id, e.hook_disposed("b"))
    with pytest.raises(HookNotFoundError):
        await world.hooks.get_by_token("tb")
    assert (await world.hooks.list()).data == []
    await assert_log_folds(world, run_id)


# Contract: 5.hook_created
async def test_tokens_are_compared_exactly(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    tokens = ["t", "T", "t ", "t\x00", "", "\u00e9", "e\u0301", "x" * 5000]
    for i, token in enumerate(tokens):
        result = await world.events.create(run_id, e.hook_created(f"hook_{i}", token))
        assert result.hook is not None
    for i, token in enumerate(tokens):
        assert (await world.hooks.get_by_token(token)).hook_id == f"hook_{i}"


# -- receiving -----------------------------------------------------------------------------


# Contract: 5.hook_received
async def test_what_is_received_is_appended_and_changes_nothing_else(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created())
    hook, run = await world.hooks.get("hook_1"), await world.runs.get(run_id)
    for payload in (e.ALL_BYTES, b"", None):
        wire = e.hook_received(payload=payload, token="token_1", more=1)
        result = await world.events.create(run_id, wire)
        assert (result.hook, result.run) == (None, None)
        assert e.data_of(result.event) == {"payload": payload, "token": "token_1", "more": 1}
        assert result.event == (await e.log(world, run_id))[-1]
        assert "resumeId" not in result.event.to_wire()
    assert len(await e.log(world, run_id)) == 6
    assert (await world.hooks.get("hook_1"), await world.runs.get(run_id)) == (hook, run)


# Contract: 5.resume dedupe
@pytest.mark.parametrize("after", ["while it lives", "disposal", *e.TERMINAL])
async def test_the_same_resume_is_recorded_once(
    world: RedisWorld, backend: Backend, after: str
) -> None:
    """Also when the hook, or the run, is gone by then: the first answer stands."""
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created())
    first = await world.events.create(
        run_id, e.hook_received(payload=e.ALL_BYTES), resume_id="res_1", payload_digest="d1"
    )
    assert first.event is not None
    assert first.event.resume_id == "res_1"
    if after == "disposal":
        await world.events.create(run_id, e.hook_disposed())
    elif after in e.TERMINAL:
        await world.events.create(run_id, e.run_ended(after))
    before = backend.dump()
    for digest in ("d1", None):
        again = await world.events.create(
            run_id, e.hook_received(payload=b"other"), resume_id="res_1", payload_digest=digest
        )
        assert again.event == first.event
        assert e.data_of(again.event) == {"payload": e.ALL_BYTES}
    assert backend.dump() == before


# Contract: 5.resume dedupe, 3.resolve_data
async def test_a_repeated_resume_leaves_payloads_out_on_demand(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created())
    for _ in range(2):
        result = await world.events.create(
            run_id, e.hook_received(token="t"), resume_id="r", resolve_data="none"
        )
        assert e.data_of(result.event) == {"token": "t"}


# Contract: 5.resume dedupe
@pytest.mark.parametrize("state", ["live", "run ended"])
async def test_a_resume_of_another_hook_or_payload_is_a_conflict(
    world: RedisWorld, backend: Backend, state: str
) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.hook_created("a", "ta"), e.hook_created("b", "tb"))
    await world.events.create(run_id, e.hook_received("a"), resume_id="r", payload_digest="d1")
    if state == "run ended":
        await world.events.create(run_id, e.run_ended("completed"))
    before = backend.dump()
    for hook_id, digest in (("b", "d1"), ("b", None), ("a", "d2")):
        with pytest.raises(HookResumeConflictError) as raised:
            await world.events.create(
                run_id, e.hook_received(hook_id), resume_id="r", payload_digest=digest
            )
        assert raised.value.status == 422
    assert backend.dump() == before


# Contract: 5.resume dedupe
async def test_a_digest_that_is_missing_on_either_side_matches(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created())
    for resume_id, digests in (("r1", [None, "d1", "d2"]), ("r2", ["d1", None, "d1"])):
        ids = set()
        for digest in digests:
            result = await world.events.create(
                run_id, e.hook_received(), resume_id=resume_id, payload_digest=digest
            )
            assert result.event is not None
            ids.add(result.event.event_id)
        assert len(ids) == 1


# Contract: 5.resume dedupe
async def test_two_resumes_are_two_events_even_when_alike(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created())
    for resume_id in ("r1", "r2", "R1"):
        await world.events.create(
            run_id, e.hook_received(), resume_id=resume_id, payload_digest="d"
        )
    received = (await e.log(world, run_id))[3:]
    assert [each.resume_id for each in received] == ["r1", "r2", "R1"]


# Contract: 5.resume dedupe
async def test_a_resume_id_is_of_its_run(world: RedisWorld) -> None:
    runs = [await e.new_run(world), await e.new_run(world)]
    for run_id in runs:
        await world.events.create(run_id, e.hook_created("h", run_id))
        result = await world.events.create(
            run_id, e.hook_received("h"), resume_id="r", payload_digest=run_id
        )
        assert result.event is not None
        assert (result.event.run_id, result.event.event_id) == (run_id, e.event_id(4))


# Contract: 5.resume dedupe
async def test_a_resume_id_is_given_back_on_every_read(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.hook_created())
    result = await world.events.create(
        run_id, e.hook_received(), resume_id="r", preload_events=True
    )
    assert result.event is not None
    assert result.events is not None
    event_id = result.event.event_id or ""
    found = [
        result.event,
        result.events[-1],
        await world.events.get(run_id, event_id),
        await world.events.get(run_id, event_id, resolve_data="none"),
        (await e.log(world, run_id))[-1],
        (await world.events.list_by_correlation_id(run_id, "hook_1")).data[-1],
    ]
    assert [each.resume_id for each in found] == ["r"] * 6
    assert all(each.to_wire()["resumeId"] == "r" for each in found)


# Contract: 5.resume dedupe, 5.nothing left behind
async def test_a_refused_resume_does_not_use_up_its_id(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    with pytest.raises(HookNotFoundError):
        await world.events.create(run_id, e.hook_received(), resume_id="r")
    await world.events.create(run_id, e.hook_created())
    result = await world.events.create(run_id, e.hook_received(), resume_id="r")
    assert result.event is not None
    assert result.event.event_id == e.event_id(4)
    with pytest.raises(RunNotFoundError):
        await world.events.create(e.new_run_id(), e.hook_received(), resume_id="r")


# Contract: 5.resume dedupe
async def test_a_resume_id_is_no_attribute_write_nor_hook(world: RedisWorld) -> None:
    """Ids that count once per run are of one kind each."""
    run_id = await e.new_run(world)
    await world.events.create(run_id, e.attr_set({"a": "b"}, "x"))
    await world.events.create(run_id, e.hook_created("x"))
    result = await world.events.create(run_id, e.hook_received("x"), resume_id="x")
    assert result.event is not None
    assert result.event.event_id == e.event_id(5)
    await e.write(world, run_id, e.wait_created("x"), e.step_created("x"))
    assert len(await e.log(world, run_id)) == 7
