"""The entities of a run, rebuilt from nothing but its log, as a client may do it."""

from __future__ import annotations

from typing import Any

from redis_world import RedisWorld
from redis_world.models import Event
from support.events import Wire, event_id


class Folded:
    """A run with its steps, hooks and waits, in wire names; times of change are left out."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.run: Wire = {}
        self.steps: dict[str, Wire] = {}
        self.hooks: dict[str, Wire] = {}
        self.waits: dict[str, Wire] = {}

    def apply(self, event: Event) -> None:
        wire = event.to_wire()
        kind: str = wire["eventType"]
        data: Wire = dict(wire.get("eventData") or {})
        family = kind.partition("_")[0]
        if kind == "attr_set":
            self._change_attributes(data["changes"])
        elif kind == "hook_conflict":
            assert wire["correlationId"] not in self.hooks
        elif family == "run":
            self._run(kind, wire, data)
        elif family == "step":
            self._step(kind, wire, data)
        elif family == "hook":
            self._hook(kind, wire, data)
        else:
            self._wait(kind, wire, data)

    def _change_attributes(self, changes: list[Wire]) -> None:
        for change in changes:
            if change["value"] is None:
                self.run["attributes"].pop(change["key"], None)
            else:
                self.run["attributes"][change["key"]] = change["value"]

    def _run(self, kind: str, wire: Wire, data: Wire) -> None:
        at = wire["createdAt"]
        if kind == "run_created":
            assert not self.run, "a second run_created"
            names = ("deploymentId", "workflowName", "input")
            optional = ("executionContext", "encryptionPublicKey")
            self.run = {
                "runId": self.run_id,
                "specVersion": wire["specVersion"],
                "status": "pending",
                "attributes": dict(data.get("attributes") or {}),
                "createdAt": at,
                **{name: data[name] for name in names if name in data},
                **{name: data[name] for name in optional if data.get(name) is not None},
            }
        elif kind == "run_started":
            assert self.run["status"] == "pending", "a second run_started"
            self.run |= {"status": "running", "startedAt": at}
        elif self.run["status"] == "cancelled":
            assert kind == "run_cancelled", f"{kind} on a cancelled run"
        else:
            assert self.run["status"] in ("pending", "running"), f"{kind} on a finished run"
            self.run |= {"status": kind.removeprefix("run_"), "completedAt": at}
            self.run |= {name: data[name] for name in ("output", "error") if name in data}
            if data.get("errorCode") is not None:
                self.run["errorCode"] = data["errorCode"]
            self.hooks = {
                hook_id: hook
                for hook_id, hook in self.hooks.items()
                if (until := hook.get("tokenRetentionUntil")) is not None and until > at
            }
            self.waits.clear()

    def _step(self, kind: str, wire: Wire, data: Wire) -> None:
        at, step_id = wire["createdAt"], wire["correlationId"]
        if kind == "step_created":
            assert step_id not in self.steps, "a second step_created"
            self.steps[step_id] = {
                "runId": self.run_id,
                "stepId": step_id,
                "stepName": data["stepName"],
                "status": "pending",
                "attempt": 0,
                "createdAt": at,
                "specVersion": wire["specVersion"],
                **({"input": data["input"]} if "input" in data else {}),
            }
            return
        step = self.steps[step_id]
        assert step["status"] not in ("completed", "failed"), f"{kind} after the step's end"
        if kind == "step_started":
            step.pop("retryAfter", None)
            step |= {"status": "running", "attempt": step["attempt"] + 1}
            step.setdefault("startedAt", at)
        elif kind == "step_retrying":
            step.pop("retryAfter", None)
            step |= {"status": "pending", "error": data["error"]}
            if data.get("retryAfter") is not None:
                step["retryAfter"] = data["retryAfter"]
        elif kind == "step_completed":
            step |= {"status": "completed", "completedAt": at, "output": data["result"]}
        else:
            step |= {"status": "failed", "completedAt": at, "error": data["error"]}

    def _hook(self, kind: str, wire: Wire, data: Wire) -> None:
        hook_id = wire["correlationId"]
        if kind == "hook_created":
            assert hook_id not in self.hooks, "a second hook_created"
            self.hooks[hook_id] = {
                "runId": self.run_id,
                "hookId": hook_id,
                "token": data["token"],
                "createdAt": wire["createdAt"],
                "specVersion": wire["specVersion"],
                "isWebhook": bool(data.get("isWebhook")),
                "isSystem": bool(data.get("isSystem")),
                **{k: data[k] for k in ("metadata", "tokenRetentionUntil") if k in data},
            }
        elif kind == "hook_received":
            assert hook_id in self.hooks, "hook_received without a live hook"
        else:
            del self.hooks[hook_id]

    def _wait(self, kind: str, wire: Wire, data: Wire) -> None:
        wait_id, at = wire["correlationId"], wire["createdAt"]
        if kind == "wait_created":
            assert wait_id not in self.waits, "a second wait_created"
            self.waits[wait_id] = {
                "waitId": f"{self.run_id}-{wait_id}",
                "runId": self.run_id,
                "status": "waiting",
                "resumeAt": data["resumeAt"],
                "createdAt": at,
                "specVersion": wire["specVersion"],
            }
        else:
            assert self.waits[wait_id]["status"] == "waiting", "a second wait_completed"
            self.waits[wait_id] |= {"status": "completed", "completedAt": at}


async def assert_log_folds(world: RedisWorld, run_id: str) -> Folded:
    """The log has dense slots, and the entities that are read are the ones that it makes."""
    events = (await world.events.list(run_id)).data
    assert [each.event_id for each in events] == [event_id(i + 1) for i in range(len(events))]
    folded = Folded(run_id)
    for each in events:
        folded.apply(each)
    assert _without(await world.runs.get(run_id), "updatedAt") == folded.run
    steps = (await world.steps.list(run_id, limit=1000)).data
    assert [_without(step, "updatedAt") for step in steps] == list(folded.steps.values())
    stamped = ("ownerId", "projectId", "environment", "resumeContext")
    hooks = (await world.hooks.list(run_id, limit=1000)).data
    assert [_without(hook, *stamped) for hook in hooks] == list(folded.hooks.values())
    waits = (await world.waits.list(run_id, limit=1000)).data
    assert [_without(wait, "updatedAt") for wait in waits] == list(folded.waits.values())
    return folded


def _without(model: Any, *names: str) -> Wire:
    return {key: value for key, value in model.to_wire().items() if key not in names}
