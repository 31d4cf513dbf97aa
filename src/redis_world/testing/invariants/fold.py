"""A run as it must be stored, with all that it has, rebuilt from its log."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from redis_world.keys import RunKeys
from redis_world.testing.invariants.fold_entities import (
    ENDED,
    Entities,
    fold_hook,
    fold_step,
    fold_wait,
    unknown_type,
)
from redis_world.testing.invariants.logs import Entry
from redis_world.testing.invariants.snapshot import Hash

__all__ = ["Fold"]

_AFTER_THE_END: Final = {
    *("run_cancelled", "step_completed", "step_failed", "step_retrying", "hook_disposed")
}
"""What a finished run may still record: one more cancellation, outcomes of running steps, the end
of a hook that has outlived it."""


class Fold:
    """What a log makes.

    Attributes:
        is_whole: whether the log has its beginning, so that it can be folded at all.
        fields: the run's hash, without its execution context.
        wrong: the events that could not follow those in front of them; they change nothing.
    """

    def __init__(self, run_id: str, log: Sequence[Entry]) -> None:
        self._key = RunKeys("", run_id).events
        self.fields: Hash = {}
        self.execution_context: Any = None
        self.attributes: Hash = {}
        self.entities = Entities(run_id)
        self.wrong: list[str] = []
        self.is_whole = bool(log) and (log[0].slot, log[0].type) == (1, "run_created")
        if log and not self.is_whole:
            self.wrong.append(f"{self._key}: the first event is not run_created, in slot 1")
        for entry in log if self.is_whole else ():
            self._take(entry)

    def settle_hooks(self, stored: Collection[str], now: int, *, is_cleaning: bool) -> None:
        """Forget the hooks whose time is over, but for those that may wait for their deletion.

        Args:
            stored: the hooks of the run that are still there.
            now: the present time, in ms.
            is_cleaning: whether those that did not outlive the run are still being deleted.
        """
        if not self.is_over:
            return
        for hook_id, hook in [*self.entities.hooks.items()]:
            may_stay = is_cleaning or not hook.is_dead
            hook.is_dead |= int(hook.fields.get("token_retention_until", 0)) <= now
            if hook.is_dead and not (may_stay and hook_id in stored):
                del self.entities.hooks[hook_id]

    @property
    def is_over(self) -> bool:
        return self.fields.get("status") in ENDED

    def _take(self, entry: Entry) -> None:
        try:
            problem = self._apply(entry)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"has data that no World writes: {error!r}"
        if problem:
            what = " ".join(filter(None, (entry.type, entry.correlation_id)))
            self.wrong.append(f"{self._key}: slot {entry.slot}, {what}, {problem}")

    def _apply(self, entry: Entry) -> str | None:
        if self.is_over and entry.type not in _AFTER_THE_END:
            return f"comes after the end of the run, which is {self.fields['status'].decode()}"
        family = entry.type.partition("_")[0]
        if family in {"step", "hook", "wait"} and not entry.correlation_id:
            return f"names no {family}"
        match family:
            case "run":
                return self._run(entry)
            case "attr":
                return self._set_attributes(entry)
            case "step":
                return fold_step(self.entities, entry, run_is_over=self.is_over)
            case "hook":
                return fold_hook(self.entities, entry)
            case "wait":
                return fold_wait(self.entities, entry)
            case _:
                return unknown_type(entry)

    def _run(self, entry: Entry) -> str | None:
        status = self.fields.get("status")
        match entry.type:
            case "run_created":
                if self.fields:
                    return "creates the run a second time"
                self._create(entry)
            case "run_started":
                if status != b"pending":
                    return "starts the run a second time"
                self.fields |= {
                    "status": b"running",
                    "started_at": entry.at,
                    "updated_at": entry.at,
                    "started_slot": entry.stored_slot,
                }
            case "run_completed" | "run_failed" | "run_cancelled":
                if not self.is_over:
                    self._end(entry)
                elif (status, entry.type) != (b"cancelled", "run_cancelled"):
                    return "ends the run a second time"
            case _:
                return unknown_type(entry)
        return None

    def _create(self, entry: Entry) -> None:
        data = entry.data
        self.fields = {
            "deployment_id": data["deploymentId"].encode(),
            "workflow_name": data["workflowName"].encode(),
            "spec_version": entry.spec,
            "status": b"pending",
            "created_at": entry.at,
            "updated_at": entry.at,
        }
        if data.get("encryptionPublicKey") is not None:
            self.fields["encryption_public_key"] = data["encryptionPublicKey"].encode()
        if entry.payload:
            self.fields["input_slot"] = entry.stored_slot
        self.execution_context = data.get("executionContext")
        attributes = data.get("attributes") or {}
        self.attributes = {key: value.encode() for key, value in attributes.items()}

    def _end(self, entry: Entry) -> None:
        self.fields |= {
            "status": entry.type.removeprefix("run_").encode(),
            "completed_at": entry.at,
            "updated_at": entry.at,
            "terminal_slot": entry.stored_slot,
        }
        if entry.payload:
            name = "output_slot" if entry.type == "run_completed" else "error_slot"
            self.fields[name] = entry.stored_slot
        if entry.type == "run_failed" and entry.data.get("errorCode") is not None:
            self.fields["error_code"] = entry.data["errorCode"].encode()
        if self.attributes.get("$retention") == b"0":
            self.fields["expired_at"] = entry.at
        # They go with the run's life, in the same instant; but for what was to outlive it.
        for hook in self.entities.hooks.values():
            hook.is_dead = int(hook.fields.get("token_retention_until", 0)) <= int(entry.at)
        self.entities.waits.clear()

    def _set_attributes(self, entry: Entry) -> str | None:
        if entry.type != "attr_set":
            return unknown_type(entry)
        if entry.data["writer"]["type"] != "workflow" or not entry.correlation_id:
            self.entities.remember(entry)
        elif not self.entities.claim(f"attr:{entry.correlation_id}", entry):
            return "is a write of the workflow that comes a second time"
        for change in entry.data["changes"]:
            if change["value"] is None:
                self.attributes.pop(change["key"], None)
            else:
                self.attributes[change["key"]] = change["value"].encode()
        self.fields["updated_at"] = entry.at
        return None
