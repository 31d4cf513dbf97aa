"""Random events: of few names, so that they meet, in orders that mostly make sense."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from redis_world.queue import Enqueue
from support import events as e
from support.model_twins import START

TOKENS: Final = ("t1", "t2")
WORKFLOWS: Final = ("orders", "refunds")

Params = dict[str, Any]

ZERO_RETENTION: Final = {
    "attributes": {"color": "red", "$retention": "0"},
    "allowReservedAttributes": True,
}
_PAYLOADS: Final = tuple(e.PAYLOADS.values())


@dataclass(frozen=True)
class Scene:
    """What events are about at present: their few names change in time, so that life goes on."""

    now: datetime
    number: int
    known: frozenset[str]
    """Ids that the run has seen."""
    chance: Random

    def is_new(self, name: str) -> bool:
        """Whether something of this id is to be created: as a rule when there is none."""
        return (name not in self.known) == (self.chance.random() < 0.85)

    @property
    def moments(self) -> list[datetime]:
        """Past and to come, soon and late."""
        return [self.now + timedelta(seconds=s) for s in (-60, 0.5, 1, 3600, 10**7)]

    def names(self, kind: str) -> list[str]:
        """The ids of steps (`s`), hooks (`h`) or waits (`w`)."""
        return [f"{kind}{self.number}", f"{kind}{self.number + 1}"]


def some(chance: Random, /, **values: Any) -> dict[str, Any]:
    """Some of these, each one of several; often none."""
    if chance.random() < 0.5:
        return {}
    return {
        name: chance.choice(choices) for name, choices in values.items() if chance.random() < 0.5
    }


def params(chance: Random, scene: Scene, wire: e.Wire) -> Params:
    """Optional parameters of the creation of an event."""
    slots = range(10)
    found = some(
        chance,
        resolve_data=("all", "none"),
        since_cursor=[f"eid:{e.event_id(slot)}" for slot in slots],
        event_count=slots,
        skip_preload=(True, False),
        preload_events=(True, False),
        occurred_at=scene.moments,
    )
    if wire["eventType"] == "hook_received" and chance.random() < 0.6:
        found["resume_id"] = chance.choice(["r1", "r1", "r2", ""])
        found["payload_digest"] = chance.choice(["d1", "d2", "", None])
    return found


def creation(chance: Random, *, resilient: bool = False) -> e.Wire:
    """A run_created, or a run_started that creates its run if need be."""
    kind = "run_started" if resilient or chance.random() < 0.3 else "run_created"
    # Without an input it would create nothing.
    data = some(chance, input=_PAYLOADS)
    if kind == "run_started":
        data = {"input": chance.choice(_PAYLOADS)}
    return _event(
        kind,
        None,
        **data,
        deploymentId="d",
        workflowName=chance.choice(WORKFLOWS),
        **chance.choice([{}, {}, ZERO_RETENTION]),
        **some(
            chance,
            executionContext=[
                {"workflowCoreVersion": "5", "traceCarrier": {"a": "b"}},
                {"workflowCoreVersion": 5, "hookResumeInputVersion": 2},
            ],
            encryptionPublicKey=["key"],
        ),
    )


def end_of_run(chance: Random) -> e.Wire:
    match chance.choice(["completed", "failed", "cancelled"]):
        case "completed":
            return _event("run_completed", None, **some(chance, output=_PAYLOADS))
        case "failed":
            data = some(chance, error=_PAYLOADS, errorCode=("E", None))
            return _event("run_failed", None, **data)
        case _:
            return e.event("run_cancelled", **some(chance, cancelReason=("why", None)))


def changes_of_run(chance: Random, scene: Scene) -> list[e.Wire]:
    """What happens to a run between its creation and its end."""
    return [
        e.event("run_started") if chance.random() < 0.2 else _attr_set(chance, scene)
        for _ in range(chance.randint(1, 2))
    ]


def _attr_set(chance: Random, scene: Scene) -> e.Wire:
    keys = chance.sample(["color", "size", "$x", "$retention"], chance.randint(0, 2))
    reserved = {"allowReservedAttributes": True} if {"$x", "$retention"} & {*keys} else {}
    return e.attr_set(
        {key: chance.choice(["red", "0", "0", None]) for key in keys},
        chance.choice([*scene.names("a"), None]),
        step=chance.choice([None, None, None, *scene.names("s")]),
        **chance.choice([reserved, reserved, {}]),
    )


def rivals_of_run(chance: Random, scene: Scene) -> list[e.Wire]:
    """A creation that comes too late, or an end."""
    return [chance.choice([creation, end_of_run])(chance)]


def life_of_step(chance: Random, scene: Scene) -> list[e.Wire]:
    """Some events of a step."""
    step = chance.choice(scene.names("s"))
    kinds = _some_of(chance, ["started", "started", "retrying", "completed", "failed"])
    if scene.is_new(step):
        kinds.insert(0, chance.choice(["created", "created", "lazy"]))
    return [_step_event(chance, scene, step, kind) for kind in kinds]


def life_of_hook(chance: Random, scene: Scene) -> list[e.Wire]:
    """Some events of a hook."""
    hook = chance.choice(scene.names("h"))
    kinds = _some_of(chance, ["received", "received", "received", "disposed"])
    if scene.is_new(hook):
        kinds.insert(0, "created")
    return [_hook_event(chance, scene, hook, kind) for kind in kinds]


def life_of_wait(chance: Random, scene: Scene) -> list[e.Wire]:
    """Some events of a wait."""
    wait = chance.choice(scene.names("w"))
    found = []
    if scene.is_new(wait):
        found.append(e.wait_created(wait, chance.choice(scene.moments)))
    if chance.random() < 0.7:
        data = some(chance, resumeAt=scene.moments)
        found.append(e.event("wait_completed", wait, **data))
    return found


def batch(chance: Random, scene: Scene) -> list[Any]:
    """Events of steps and waits, at most one of each but for steps that are born running."""
    found: list[e.Wire] = []
    for step in chance.sample(scene.names("s"), chance.randint(0, 2)):
        kinds = chance.choice([["created", "started"], ["created"], *[["any"]] * 3])
        if kinds == ["any"]:
            kinds = [chance.choice(["started", "retrying", "completed", "failed"])]
        found += [_step_event(chance, scene, step, kind) for kind in kinds]
    found += [
        e.wait_created(wait, chance.choice(scene.moments))
        if scene.is_new(wait)
        else e.wait_completed(wait)
        for wait in chance.sample(scene.names("w"), chance.randint(0, 1))
    ]
    if chance.random() < 0.05:
        found.insert(chance.randint(0, len(found)), _end_of_a_batch(chance))
    if chance.random() < 0.1:
        found.append(chance.choice([e.event("step_created", "s"), e.hook_disposed("h")]))
    return [
        {"event": wire, "occurredAt": chance.choice(scene.moments)}
        if chance.random() < 0.2
        else wire
        for wire in found
    ]


def _end_of_a_batch(chance: Random) -> e.Wire:
    while True:
        wire = end_of_run(chance)
        if wire["eventType"] != "run_cancelled":
            return wire


def _some_of(chance: Random, kinds: list[str]) -> list[str]:
    """Some of these, mostly in their order, which makes sense."""
    chosen = chance.sample(range(len(kinds)), chance.choice([0, 1, 1, 2, 3]))
    return [kinds[i] for i in (sorted(chosen) if chance.random() < 0.8 else chosen)]


def _step_event(chance: Random, scene: Scene, step: str, kind: str) -> e.Wire:
    name = {"stepName": chance.choice(["charge", "ship"])}
    match kind:
        case "created":
            data = some(chance, input=_PAYLOADS, unknown=(1, "two"))
            return _event("step_created", step, **name, **data)
        case "lazy":
            return e.lazy_start(step, input=chance.choice(_PAYLOADS))
        case "started":
            return e.step_started(step, **some(chance, attempt=(1, 2), stepName=("charge",)))
        case "completed":
            return _event("step_completed", step, **some(chance, result=_PAYLOADS))
        case "failed":
            return _event("step_failed", step, **some(chance, error=_PAYLOADS))
        case _:
            data = some(chance, error=_PAYLOADS)
            if chance.random() < 0.7:
                data["retryAfter"] = chance.choice([*scene.moments, None])
            return _event("step_retrying", step, **data)


def _hook_event(chance: Random, scene: Scene, hook: str, kind: str) -> e.Wire:
    match kind:
        case "created":
            data = some(
                chance,
                metadata=_PAYLOADS,
                isWebhook=(True, False),
                isSystem=(True, None),
                tokenRetentionUntil=[*scene.moments, None],
            )
            return e.hook_created(hook, chance.choice(TOKENS), **data)
        case "received":
            return _event("hook_received", hook, **some(chance, payload=_PAYLOADS, token=("t1",)))
        case _:
            return e.event("hook_disposed", hook, **some(chance, token=("t1", "t9")))


def _event(kind: str, corr: str | None, /, **data: Any) -> e.Wire:
    """An event whose data may be empty, but is there."""
    return {**e.event(kind, corr), "eventData": data}


FAMILIES: Final = (life_of_step, life_of_hook, life_of_wait, changes_of_run, rivals_of_run)
"""What makes events of a run."""

INVALID: Final[tuple[tuple[e.Wire, Params], ...]] = (
    ({"eventType": "noop"}, {}),
    ({"eventType": "hook_conflict", "correlationId": "h1"}, {}),
    ({"eventType": "run_paused"}, {}),
    ({}, {}),
    (e.event("run_completed"), {}),
    (e.event("step_created", "s1", input=b""), {}),
    (e.event("step_created", stepName="s"), {}),
    (e.hook_created(tokenRetentionUntil=START + timedelta(days=4000)), {}),
    (e.run_created(attributes={"$x": "y"}), {}),
    (e.resilient_start(attributes={"": "y"}), {}),
    (e.attr_set({"k": "v" * 300}, "a9"), {}),
    (e.attr_set({f"k{i}": "v" for i in range(65)}, "a9"), {}),
    (e.event("run_cancelled", cancelReason="x" * 513), {}),
    (e.event("run_started") | {"specVersion": 8}, {}),
    (e.run_created() | {"specVersion": 1}, {}),
    (e.step_started("s1", input=b"x" * 2000), {}),
    (e.event("run_started"), {"since_cursor": "steps:1"}),
    (e.event("run_started"), {"event_count": -1}),
    (e.event("run_started"), {"resolve_data": "some"}),
    (e.event("run_started"), {"v1_compat": True}),
    (e.event("run_started"), {"occurred_at": datetime(2030, 1, 1)}),
    (e.event("run_started"), {"enqueue": Enqueue("orders", {})}),
    (
        e.event("run_started"),
        {"enqueue": Enqueue("__wkf_workflow_orders", {"runId": "wrun_other"})},
    ),
)
"""Events and parameters that are refused whatever the state."""
