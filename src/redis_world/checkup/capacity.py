"""How much of a server a plan takes: arithmetic on what `make capacity` has measured.

The model is a sum. A run, each of its steps, hooks, sleeps and streams, and each KiB of its
payloads take a fixed time of the server. That holds since no script does more where more is stored
(`tests/contract/test_costs_that_stay_flat.py`), and since workers keep the logs that they replay.
No server is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from redis_world.checkup.finding import Finding, Level, amount, size
from redis_world.checkup.measured import BASIS, MEASURED

__all__ = ["BUSY", "Capacity", "Plan", "assess", "calculate"]

BUSY: Final = 0.6
"""Of one core: a server that is busier answers late when many runs come at once."""
WORKER_BUSY: Final = 0.8
"""Of one core of a worker process, likewise."""
FULL: Final = 0.75
"""Of a server's memory: it needs the rest while it saves."""
PER_MASTER: Final = 4
"""Partitions of each master, at least: with fewer, one master has far more runs than another."""
LOG_PAYLOAD: Final = 4096
"""Bytes of the largest payload in a log: a larger one takes one more command to write and one
to read."""
MAX_PARTITIONS: Final = 1024
MAX_MASTERS: Final = MAX_PARTITIONS // PER_MASTER

_DAY: Final = 86_400.0
_KIB: Final = 1024.0
_MEASURED_MASTERS: Final = 3
_MEASURED_PARTITIONS: Final = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """What somebody wants to run. Numbers of a run are means, so they may have fractions.

    Attributes:
        runs_per_day: runs that begin.
        steps: of a run, one after the other.
        payload: bytes of the input and of the output of a run, and of each of its steps.
        hooks: of a run, each resumed once.
        sleeps: of a run.
        streams: of a run, each with one reader.
        chunks: of a stream.
        chunk: bytes of each.
        peak: runs of the busiest second over those of a mean one.
        retention: seconds for which finished runs stay.
        partitions: of the namespace.
        masters: that share them; more than one are a cluster.
        workers: processes.
        concurrency: of each.
        step_time: seconds that a step takes by itself.
        memory: bytes that each server has; None where that is not known.
    """

    runs_per_day: float
    steps: float = 10
    payload: float = 256
    hooks: float = 0
    sleeps: float = 0
    streams: float = 0
    chunks: float = 10
    chunk: float = 256
    peak: float = 3
    retention: float = 30 * _DAY
    partitions: int = 1
    masters: int = 1
    workers: int = 2
    concurrency: int = 32
    step_time: float = 0
    memory: float | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a plan takes.

    Attributes:
        parts: microseconds of all servers per run, by what they go to.
        share: of the runs, that the busiest master has.
        idle: of one core of that master, which idle workers take.
        mean: of one core of that master, on the average of a day.
        peak: of one core of that master, in the busiest second.
        runs_per_second: that all masters carry while the busiest one is busy by `BUSY`.
        masters: how many are needed for that at the peak; None: more than there can be.
        partitions: that these need.
        run_bytes: memory of a finished run.
        memory: bytes of all finished runs on the master that has most of them.
        worker_cores: processors that the SDK takes in workers at the peak, without the steps' own
            code.
        slots: steps under way at a time at the peak.
    """

    parts: Mapping[str, float]
    share: float
    idle: float
    mean: float
    peak: float
    runs_per_second: float
    masters: int | None
    partitions: int
    run_bytes: float
    memory: float
    worker_cores: float
    slots: float

    @property
    def run_us(self) -> float:
        """Microseconds of all servers per run."""
        return sum(self.parts.values())

    @property
    def largest(self) -> str:
        """What most of them go to."""
        return max(self.parts, key=lambda name: self.parts[name])


def calculate(plan: Plan, measured: Mapping[str, float] = MEASURED) -> Capacity:
    """What a plan takes.

    Args:
        plan: with at least one partition for each master.
        measured: other constants, for `make capacity` and for tests.
    """
    parts = _parts(plan, measured)
    run_us = sum(parts.values())
    share = _share(plan, measured)
    idle = _idle(plan, measured) * share
    per_second = plan.runs_per_day / _DAY
    each = per_second * run_us / 1e6 * share
    run_bytes = _run_bytes(plan, measured)
    needed, partitions = _needed(plan, measured)
    steps_per_second = per_second * plan.peak * plan.steps
    return Capacity(
        parts=parts,
        share=share,
        idle=idle,
        mean=each + idle,
        peak=each * plan.peak + idle,
        runs_per_second=max(BUSY - idle, 0) / (run_us / 1e6 * share),
        masters=needed,
        partitions=partitions,
        run_bytes=run_bytes,
        memory=run_bytes * per_second * plan.retention * share,
        worker_cores=per_second * plan.peak * _worker_us(plan, measured) / 1e6,
        slots=steps_per_second * plan.step_time,
    )


def _parts(plan: Plan, of: Mapping[str, float]) -> dict[str, float]:
    run, step, hook, other = of["run_us"], of["step_us"], of["hook_us"], 1.0
    if plan.partitions > 1:
        hook = of["hook_across_us"]
    if plan.masters > 1:
        # Each call goes to one master: more masters than were measured make none dearer.
        run, step, hook = of["cluster_run_us"], of["cluster_step_us"], of["cluster_hook_us"]
        other = of["cluster_step_us"] / of["step_us"]
    chunks = plan.chunks * (of["chunk_us"] + plan.chunk / _KIB * of["chunk_kib_us"])
    return {
        "start and end": run,
        "steps": plan.steps * step,
        "payloads": _payloads(plan) * _payload_us(plan.payload, of),
        "hooks": plan.hooks * hook,
        "sleeps": plan.sleeps * of["sleep_us"] * other,
        "streams": plan.streams * (of["stream_us"] * other + chunks),
        "removal": of["removal_us"],
    }


def _payloads(plan: Plan) -> float:
    """The input and the output of a run, and of each of its steps."""
    return 2 * plan.steps + 2


def _payload_us(payload: float, of: Mapping[str, float]) -> float:
    if payload <= LOG_PAYLOAD:
        return payload / _KIB * of["payload_kib_us"]
    return of["large_us"] + payload / _KIB * of["large_kib_us"]


def _share(plan: Plan, of: Mapping[str, float]) -> float:
    """Of the runs, that the busiest master has."""
    if plan.masters == 1:
        return 1.0
    # Runs don't spread as evenly as partitions do: by as much as with three masters.
    uneven = max(1.0, of["cluster_share_percent"] / 100 * _MEASURED_MASTERS)
    return min(1.0, math.ceil(plan.partitions / plan.masters) / plan.partitions * uneven)


def looks_per_minute(partitions: int) -> float:
    """How often an idle worker looks for messages in any of so many partitions, in each topic."""
    return 60 * partitions / min(max(partitions, 3), 20)


def _idle(plan: Plan, of: Mapping[str, float]) -> float:
    """Of one core, which idle workers take of all masters."""
    return plan.workers * looks_per_minute(plan.partitions) / 60 * of["look_us"] / 1e6


def _run_bytes(plan: Plan, of: Mapping[str, float]) -> float:
    log = plan.steps * of["step_bytes"]
    log += plan.hooks * of["hook_bytes"] + plan.sleeps * of["sleep_bytes"]
    log += _payloads(plan) * plan.payload * of["payload_percent"] / 100
    stream = of["stream_bytes"] + plan.chunks * (
        of["chunk_bytes"] + plan.chunk * of["chunk_percent"] / 100
    )
    # A log has room from its first event on, which the first ones take.
    return of["run_bytes"] + max(0.0, log - of["free_bytes"]) + plan.streams * stream


def _worker_us(plan: Plan, of: Mapping[str, float]) -> float:
    # A replay each, as after a step.
    replays = plan.steps + plan.hooks + plan.sleeps
    return of["worker_run_us"] + replays * of["worker_step_us"]


def _needed(plan: Plan, of: Mapping[str, float]) -> tuple[int | None, int]:
    """The fewest masters that carry the peak, and their partitions."""
    for masters in range(1, MAX_MASTERS + 1):
        partitions = plan.partitions
        if masters > 1:
            partitions = min(MAX_PARTITIONS, max(partitions, PER_MASTER * masters))
        tried = replace(plan, masters=masters, partitions=partitions)
        load = sum(_parts(tried, of).values()) / 1e6 * plan.runs_per_day / _DAY * plan.peak
        if (load + _idle(tried, of)) * _share(tried, of) <= BUSY:
            return masters, partitions
    return None, MAX_PARTITIONS


# -- findings ------------------------------------------------------------------------------


def assess(plan: Plan) -> list[Finding]:
    """What a plan takes, and whether it fits, as findings."""
    found = calculate(plan)
    return [
        _time(plan, found),
        _rate(plan, found),
        _load(plan, found),
        _memory(plan, found),
        _workers(plan, found),
        _basis(),
    ]


def _time(plan: Plan, found: Capacity) -> Finding:
    of_all = f" of all {plan.masters} masters" if plan.masters > 1 else " of Redis"
    shares = ", ".join(
        f"{name} {_percent(us / found.run_us)}"
        for name, us in sorted(found.parts.items(), key=lambda part: -part[1])
        if us
    )
    return Finding(
        name="server time",
        level="info",
        text=f"A run takes {_time_of(found.run_us)}{of_all}: {shares}",
        figures={
            "run_us": round(found.run_us, 1),
            "largest": found.largest,
            **{f"{name.replace(' ', '_')}_us": round(us, 1) for name, us in found.parts.items()},
        },
    )


def _rate(plan: Plan, found: Capacity) -> Finding:
    servers = f"{plan.masters} masters carry" if plan.masters > 1 else "One Redis carries"
    runs = found.runs_per_second
    text = f"{servers} {_number(runs)} runs"
    if plan.steps:
        text += f" and {_number(runs * plan.steps)} steps"
    busiest = "the busiest one" if plan.masters > 1 else "it"
    return Finding(
        name="rate",
        level="info",
        text=f"{text} per second while {busiest} uses {_percent(BUSY)} of a core",
        figures={
            "runs_per_second": round(runs, 2),
            "steps_per_second": round(runs * plan.steps, 2),
        },
    )


def _load(plan: Plan, found: Capacity) -> Finding:
    where = "the busiest master" if plan.masters > 1 else "Redis"
    text = (
        f"{where[0].upper()}{where[1:]} uses {_percent(found.mean)} of a core on average and"
        f" {_percent(found.peak)} at the peak"
    )
    if plan.masters > 1:
        text += f". It has {_percent(found.share)} of the runs"
    level: Level = "ok"
    advice = ""
    if found.peak > BUSY:
        level = "error" if found.peak > 1 else "warning"
        advice = f"no cluster of {MAX_MASTERS} masters carries this plan: use several namespaces"
        if found.masters is not None:
            advice = (
                f"use {amount(found.masters, 'master')} and"
                f" {amount(found.partitions, 'partition')}: at most {_percent(BUSY)} of a core"
                " each at the peak"
            )
    return Finding(
        name="load",
        level=level,
        text=text,
        advice=advice,
        figures={
            "mean_core": round(found.mean, 4),
            "peak_core": round(found.peak, 4),
            "idle_workers_core": round(found.idle, 4),
            "share": round(found.share, 4),
            "masters_needed": found.masters,
            "partitions_needed": found.partitions if found.masters is not None else None,
        },
    )


def _memory(plan: Plan, found: Capacity) -> Finding:
    kept = plan.runs_per_day * plan.retention / _DAY
    where = " on the busiest master" if plan.masters > 1 else ""
    text = (
        f"{_number(kept)} finished runs of {size(found.run_bytes)} each take"
        f" {size(found.memory)}{where}"
    )
    level: Level = "info"
    advice = f"use servers with at least {size(found.memory / FULL)} of memory"
    if plan.memory is not None:
        used = found.memory / plan.memory
        level = "error" if used > 1 else "warning" if used > FULL else "ok"
        text += f", {_percent(used)} of its memory"
        if level == "ok":
            advice = ""
        else:
            advice += ", a shorter retention or more masters"
    return Finding(
        name="memory",
        level=level,
        text=text,
        advice=advice,
        figures={
            "run_bytes": round(found.run_bytes),
            "kept_runs": round(kept),
            "memory": round(found.memory),
        },
    )


def _workers(plan: Plan, found: Capacity) -> Finding:
    slots = plan.workers * plan.concurrency
    needed = max(
        math.ceil(found.worker_cores / WORKER_BUSY), math.ceil(found.slots / plan.concurrency), 1
    )
    text = (
        f"At the peak the SDK uses {found.worker_cores:.2f} cores in {plan.workers} worker"
        f" {'process' if plan.workers == 1 else 'processes'}, without the code of the steps"
    )
    if plan.step_time:
        text += f". {_number(found.slots)} of {slots:,} slots run steps"
    level: Level = "ok"
    advice = ""
    if needed > plan.workers:
        level = "warning"
        advice = f"start at least {amount(needed, 'worker process', 'worker processes')}"
    return Finding(
        name="workers",
        level=level,
        text=text,
        advice=advice,
        figures={
            "cores": round(found.worker_cores, 3),
            "slots": round(found.slots, 1),
            "processes_needed": needed,
        },
    )


def _basis() -> Finding:
    time_error, memory_error = MEASURED["time_error_percent"], MEASURED["memory_error_percent"]
    return Finding(
        name="basis",
        level="info",
        text=(
            f"Measured on {BASIS['date']}: {BASIS['machine']}, {BASIS['server']} without"
            f" persistence, {BASIS['sdk']}. Runs that were measured there differ from this model"
            f" by up to {time_error:.0f} % in server time and {memory_error:.0f} % in memory"
        ),
        figures={
            "date": BASIS["date"],
            "time_error_percent": time_error,
            "memory_error_percent": memory_error,
        },
    )


def _percent(share: float) -> str:
    percent = share * 100
    return f"{percent:,.0f} %" if percent >= 1 or not percent else f"{percent:.2g} %"


def _time_of(microseconds: float) -> str:
    return f"{microseconds:.0f} µs" if microseconds < 1000 else f"{microseconds / 1000:,.1f} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
