"""What must be there, and what must not, once workers were killed and all runs have ended."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Any, Final

import redis
from vercel import workflow as sdk

from redis_world.keys import Keys
from redis_world.models import Run as StoredRun
from support.killing_effects import effect_key
from support.killing_report import Entry, read_log
from support.killing_specs import Flow

__all__ = ["leftovers", "violations_of_outcome"]

_RUN_ENDS: Final = ("run_completed", "run_failed", "run_cancelled")
_STEP_ENDS: Final = ("step_completed", "step_failed")
_ENDS: Final = {
    "step": _STEP_ENDS,
    "hook": ("hook_disposed",),
    "wait": ("wait_completed",),
}
_OF_FINISHED_RUNS: Final = re.compile(
    r"run:(?P<run>wrun_\w+)(:(attributes|events|payloads|claims|ops|steps|step:\w+))?"
)
_OF_ALL: Final = re.compile(r"topics|finished|runs|runs:status:\w+|runs:workflow:[^:]+:\w+")


async def violations_of_outcome(
    client: redis.Redis, keys: Keys, flow: Flow, run: StoredRun
) -> list[str]:
    """What is wrong with a run that has ended: its end, its log and its effects."""
    wrong = [f"the status is {run.status}"] if run.status not in flow.statuses else []
    log = read_log(client, keys, run.run_id)
    is_whole = run.status != "cancelled"
    wrong += _of_log(log, run.status, is_whole=is_whole)
    wrong += _of_entities(log, is_whole=is_whole)
    wrong += _of_effects(client, run.run_id, log)
    if is_whole:
        wrong += _of_counts(flow, log)
    if not wrong and is_whole:
        wrong += await _of_value(flow, run)
    return wrong


def leftovers(client: redis.Redis, keys: Keys, run_ids: Collection[str]) -> list[str]:
    """Keys that nobody needs once all runs have ended: messages, debts, hooks, strangers."""
    left = []
    for raw in client.scan_iter(count=1000):
        key = raw.decode()
        name = key.removeprefix(keys.base)
        of_run = _OF_FINISHED_RUNS.fullmatch(name)
        is_known = of_run["run"] in run_ids if of_run else bool(_OF_ALL.fullmatch(name))
        # Workers that were killed sleep there until a message passes them over.
        is_known = is_known or name.endswith(":sleepers")
        if not is_known and key != keys.meta and not key.startswith("effect:"):
            left.append(name)
    return sorted(left)


# -- one run -------------------------------------------------------------------------------


def _of_log(log: list[Entry], status: str, *, is_whole: bool) -> Iterable[str]:
    slots = [entry["slot"] for entry in log]
    if slots != [f"0-{number + 1}" for number in range(len(log))]:
        yield f"the slots are {slots}"
    kinds = Counter(entry["type"] for entry in log)
    if log[0]["type"] != "run_created" or kinds["run_created"] != 1:
        yield "run_created is not the first event, and the only one of its kind"
    started = kinds["run_started"]
    if started != 1 and (started or is_whole):
        yield f"{started} run_started"
    ends = [kind for kind in _RUN_ENDS for _ in range(kinds[kind])]
    if ends != [f"run_{status}"]:
        yield f"the ends of the run are {ends}"


def _of_entities(log: list[Entry], *, is_whole: bool) -> Iterable[str]:
    """Every step, hook and wait begins once and ends once, and has nothing behind its end."""
    lives: defaultdict[str, list[str]] = defaultdict(list)
    for entry in log:
        if entry.get("corr"):
            lives[entry["corr"]].append(entry["type"])
    for name, life in lives.items():
        family = life[0].partition("_")[0]
        if family == "attr":
            # Only the workflow's have a name: a step that is tried again sets its own again.
            if len(life) != 1:
                yield f"{name} was set {len(life)} times"
            continue
        if life[0] != f"{family}_created" or life.count(f"{family}_created") != 1:
            yield f"{name} does not begin once: {life}"
        ends = [kind for kind in life if kind in _ENDS[family]]
        has_to_end = is_whole and family != "hook"
        if len(ends) > 1 or (has_to_end and not ends) or (ends and life[-1] != ends[0]):
            yield f"{name} does not end once, and last: {life}"


def _of_counts(flow: Flow, log: list[Entry]) -> Iterable[str]:
    kinds = Counter(entry["type"] for entry in log)
    expected = {
        "step_created": flow.count("steps"),
        "wait_created": flow.count("waits"),
        "hook_created": flow.count("hooks"),
        "hook_received": flow.count("hooks"),
        "hook_disposed": flow.count("disposals"),
        "hook_conflict": 0,
    }
    for kind, count in expected.items():
        if kinds[kind] != count:
            yield f"{kinds[kind]} {kind}, expected are {count}"


def _of_effects(client: redis.Redis, run_id: str, log: list[Entry]) -> Iterable[str]:
    """Whatever has ended took effect, and nothing that was not begun."""
    starts = Counter(entry["corr"] for entry in log if entry["type"] == "step_started")
    ended = {entry["corr"] for entry in log if entry["type"] in _STEP_ENDS}
    for step in {*starts, *ended}:
        effects = int(client.get(effect_key(run_id, step)) or 0)
        if not (step in ended) <= effects <= starts[step]:
            yield f"{step} took effect {effects} times, with {starts[step]} starts"


async def _of_value(flow: Flow, run: StoredRun) -> Iterable[str]:
    wrong = []
    if run.attributes != flow.attributes:
        wrong.append(f"the attributes are {run.attributes}, expected are {flow.attributes}")
    value: Any
    try:
        value = await sdk.get_run(run.run_id).return_value()
    except sdk.WorkflowRunFailedError as error:
        value = str(error.error)
    expected = f"flow {flow.number} fails" if flow.end == "raise" else flow.results
    if value != expected:
        wrong.append(f"the result is {value!r}, expected is {expected!r}")
    return wrong
