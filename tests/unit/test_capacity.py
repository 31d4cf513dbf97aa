"""The capacity model, `redis-world doctor --plan`, and what docs/operations.md says of both."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import pytest

from redis_world.checkup import capacity
from redis_world.checkup.capacity import BUSY, Plan, assess, calculate, looks_per_minute
from redis_world.checkup.finding import Finding
from redis_world.checkup.measured import BASIS, MEASURED
from redis_world.cli.plans import PARAMETERS, PlanError, parse_plan
from support.command_line import environment

ROOT: Final = Path(__file__).parents[2]

COSTS: Final[dict[str, float]] = {
    "run_us": 1000,
    "step_us": 100,
    "hook_us": 200,
    "hook_across_us": 300,
    "sleep_us": 50,
    "stream_us": 40,
    "chunk_us": 2,
    "chunk_kib_us": 4,
    "payload_kib_us": 8,
    "large_us": 20,
    "large_kib_us": 1,
    "removal_us": 10,
    "look_us": 60,
    "cluster_run_us": 2000,
    "cluster_step_us": 200,
    "cluster_hook_us": 500,
    "cluster_share_percent": 40,
    "worker_run_us": 2000,
    "worker_step_us": 1000,
    "run_bytes": 5000,
    "step_bytes": 500,
    "hook_bytes": 300,
    "sleep_bytes": 200,
    "free_bytes": 2000,
    "payload_percent": 125,
    "stream_bytes": 1000,
    "chunk_bytes": 10,
    "chunk_percent": 150,
    "time_error_percent": 1,
    "memory_error_percent": 1,
}
"""Numbers that are easy to add up."""
DAILY: Final = 86_400.0


def plan(**values: Any) -> Plan:
    """One run a second, without anything in it."""
    nothing = {"steps": 0, "payload": 0, "workers": 1, "peak": 1}
    return Plan(**{"runs_per_day": DAILY, **nothing, **values})


# -- the model -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "microseconds"),
    [
        ({}, 1010),
        ({"steps": 3}, 1310),
        ({"hooks": 2}, 1410),
        ({"hooks": 2, "partitions": 2}, 1610),
        ({"sleeps": 2}, 1110),
        ({"streams": 2, "chunks": 5, "chunk": 1024}, 1010 + 2 * (40 + 5 * (2 + 4))),
        # An input and an output of the run, and of each of two steps.
        ({"steps": 2, "payload": 4096}, 1210 + 6 * 4 * 8),
        ({"steps": 2, "payload": 8192}, 1210 + 6 * (20 + 8)),
        ({"steps": 0.5}, 1060),
        ({"masters": 2, "partitions": 2, "steps": 1, "hooks": 1}, 2710),
        ({"masters": 2, "partitions": 2, "sleeps": 1, "streams": 1, "chunks": 0}, 2190),
    ],
)
def test_a_run_is_the_sum_of_its_parts(values: dict[str, Any], microseconds: float) -> None:
    found = calculate(plan(**values), COSTS)
    assert found.run_us == pytest.approx(microseconds)
    assert sum(found.parts.values()) == found.run_us
    assert found.largest == "start and end"


def test_the_load_is_that_of_runs_and_of_idle_workers() -> None:
    found = calculate(plan(steps=1, peak=4, workers=3), COSTS)
    idle = 3 * 20 / 60 * 60e-6
    assert found.idle == pytest.approx(idle)
    assert found.mean == pytest.approx(1110e-6 + idle)
    assert found.peak == pytest.approx(4 * 1110e-6 + idle)
    # At that rate the server is as busy as it may be.
    fits = calculate(plan(steps=1, workers=3, runs_per_day=DAILY * found.runs_per_second), COSTS)
    assert fits.peak == pytest.approx(BUSY)


@pytest.mark.parametrize(
    ("partitions", "looks"), [(1, 20), (3, 60), (16, 60), (20, 60), (40, 120), (1024, 3072)]
)
def test_idle_workers_look_as_often_as_the_manual_says(partitions: int, looks: float) -> None:
    assert looks_per_minute(partitions) == pytest.approx(looks)


@pytest.mark.parametrize(
    ("partitions", "masters", "share"),
    [(1, 1, 1), (16, 1, 1), (12, 3, 0.4), (4, 3, 0.6), (3, 3, 0.4), (2, 2, 0.6), (8, 4, 0.3)],
)
def test_the_busiest_master(partitions: int, masters: int, share: float) -> None:
    """40 % of three masters that have a third of the partitions each: a fifth more than that."""
    found = calculate(plan(partitions=partitions, masters=masters), COSTS)
    assert found.share == pytest.approx(share)
    whole = calculate(plan(partitions=partitions, masters=masters, workers=0), COSTS)
    assert whole.mean == pytest.approx(share * whole.run_us / 1e6)


def test_masters_that_are_needed_carry_the_peak() -> None:
    base = plan(steps=5, peak=2, runs_per_day=DAILY * 600)
    found = calculate(base, COSTS)
    assert found.peak > 1
    assert found.masters is not None
    enough = replace(base, masters=found.masters, partitions=found.partitions)
    assert calculate(enough, COSTS).peak <= BUSY
    fewer = replace(enough, masters=found.masters - 1)
    assert calculate(fewer, COSTS).peak > BUSY


def test_one_master_is_enough_for_little() -> None:
    assert calculate(plan(), COSTS).masters == 1
    # One server instead of the cluster that the plan has.
    assert calculate(plan(masters=3, partitions=12), COSTS).masters == 1


def test_some_plans_fit_nowhere() -> None:
    found = calculate(plan(runs_per_day=1e12), COSTS)
    assert found.masters is None
    load = named(assess(plan(runs_per_day=1e12)))["load"]
    assert load.level == "error"
    assert "no cluster" in load.advice
    assert load.figures["masters_needed"] is load.figures["partitions_needed"] is None


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ({}, 5000),
        ({"steps": 4}, 5000),
        ({"steps": 5}, 5500),
        ({"steps": 4, "hooks": 1, "sleeps": 1}, 5500),
        ({"steps": 4, "payload": 1000}, 5000 + 10 * 1250),
        ({"streams": 2, "chunks": 3, "chunk": 100}, 5000 + 2 * (1000 + 3 * (10 + 150))),
    ],
)
def test_memory_of_a_run(values: dict[str, Any], size: float) -> None:
    found = calculate(plan(retention=100, **values), COSTS)
    assert found.run_bytes == size
    assert found.memory == pytest.approx(100 * size)


def test_memory_is_shared_by_masters() -> None:
    found = calculate(plan(retention=100, masters=3, partitions=12), COSTS)
    assert found.memory == pytest.approx(0.4 * 100 * 5000)


def test_workers() -> None:
    found = calculate(plan(steps=10, hooks=1, sleeps=1, peak=2, step_time=3), COSTS)
    assert found.worker_cores == pytest.approx(2 * (2000 + 12 * 1000) / 1e6)
    assert found.slots == 2 * 10 * 3


# -- findings ------------------------------------------------------------------------------


@pytest.fixture
def simple(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings of numbers that are easy to add up."""
    monkeypatch.setattr(capacity.calculate, "__defaults__", (COSTS,))


def named(findings: list[Finding]) -> dict[str, Finding]:
    return {each.name: each for each in findings}


def levels(one: Plan) -> dict[str, str]:
    return {name: each.level for name, each in named(assess(one)).items()}


@pytest.mark.usefixtures("simple")
def test_levels_of_the_load() -> None:
    assert levels(plan(runs_per_day=DAILY * 500))["load"] == "ok"
    assert levels(plan(runs_per_day=DAILY * 700))["load"] == "warning"
    assert levels(plan(runs_per_day=DAILY * 1100))["load"] == "error"
    found = named(assess(plan(runs_per_day=DAILY * 1100)))["load"]
    needed = calculate(plan(runs_per_day=DAILY * 1100)).masters
    assert found.advice.startswith(f"use {needed} masters and ")


@pytest.mark.usefixtures("simple")
def test_levels_of_the_memory() -> None:
    kept = plan(retention=1000)  # 5 MB
    assert levels(kept)["memory"] == "info"
    assert levels(replace(kept, memory=7e6))["memory"] == "ok"
    assert levels(replace(kept, memory=6e6))["memory"] == "warning"
    assert levels(replace(kept, memory=4.9e6))["memory"] == "error"


@pytest.mark.usefixtures("simple")
def test_levels_of_the_workers() -> None:
    assert levels(plan(runs_per_day=DAILY * 400))["workers"] == "ok"
    assert levels(plan(runs_per_day=DAILY * 401))["workers"] == "warning"
    sleepy = plan(steps=1, step_time=32, concurrency=32)
    assert levels(sleepy)["workers"] == "ok"
    busy = named(assess(replace(sleepy, step_time=33)))["workers"]
    assert (busy.level, busy.advice) == ("warning", "start at least 2 worker processes")
    assert "33 of 32 slots run steps" in busy.text


def test_what_it_was_measured_on_is_told() -> None:
    text = named(assess(plan()))["basis"].text
    for each in BASIS.values():
        assert each in text
    assert f"{MEASURED['time_error_percent']:.0f} % in server time" in text


# -- words ---------------------------------------------------------------------------------


def test_each_name_is_that_of_a_plan() -> None:
    assert {*PARAMETERS} == {each.name for each in fields(Plan)}


def test_words_of_all_kinds() -> None:
    words = (
        "runs_per_day=1,000,000 steps=2.5 payload=4KB hooks=1e1 sleeps=0 streams=1 chunks=1_000"
        " chunk=1KiB peak=1 retention=1.5d partitions=4 masters=2 workers=3 concurrency=8"
        " step_time=200ms memory=2GB"
    )
    assert parse_plan(words.split()) == Plan(
        runs_per_day=1e6,
        steps=2.5,
        payload=4000,
        hooks=10,
        sleeps=0,
        streams=1,
        chunks=1000,
        chunk=1024,
        peak=1,
        retention=1.5 * DAILY,
        partitions=4,
        masters=2,
        workers=3,
        concurrency=8,
        step_time=0.2,
        memory=2e9,
    )
    assert type(parse_plan(words.split()).masters) is int


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("steps", "'steps' is not a word of a plan: write name=value"),
        ("step=1", "'step' is not a name of a plan: did you mean 'steps'?"),
        ("colour=red", "'colour' is not a name of a plan: the names are runs_per_day, steps"),
        ("steps=", "steps= is not a number: write it like steps=10"),
        ("steps=many", "steps=many is not a number"),
        ("steps=nan", "steps=nan is not a number"),
        ("steps=inf", "steps=inf is not a number"),
        ("steps=-1", "steps=-1 is too small: it must be at least 0"),
        ("steps=1e6", "steps=1e6 is too large: it must be at most 25,000"),
        ("steps=1e999", "steps=1e999 is too large"),
        ("payload=4XB", "payload=4XB is not a size: write it like payload=4KB"),
        ("payload=-4KB", "payload=-4KB is too small"),
        ("payload=4GB", "payload=4GB is too large: it must be at most 64.0MiB"),
        ("payload=1.2.3KB", "payload=1.2.3KB is not a size"),
        ("chunk=KB", "chunk=KB is not a size"),
        ("retention=30", "retention=30 is not a duration: write it like retention=30d"),
        ("retention=1s", "retention=1s is too small: it must be at least 60s"),
        ("retention=9999w", "retention=9999w is too large: it must be at most 36500d"),
        ("step_time=-1s", "step_time=-1s is too small"),
        ("peak=0.5", "peak=0.5 is too small: it must be at least 1"),
        ("runs_per_day=0", "runs_per_day=0 is too small: it must be more than 0"),
        ("memory=0", "memory=0 is too small: it must be more than 0"),
        ("masters=0", "masters=0 is too small: it must be at least 1"),
        ("masters=1.5", "masters=1.5 is not a whole number"),
        ("masters=1e999", "masters=1e999 is too large"),
        ("partitions=1025", "partitions=1025 is too large: it must be at most 1,024"),
        ("masters=3", "masters=3 needs at least as many partitions, not 1: add partitions=12"),
        ("runs_per_day=2", "runs_per_day is given twice"),
    ],
)
def test_a_wrong_word(word: str, told: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan([word] if word == "runs_per_day=0" else ["runs_per_day=1", word])
    assert str(caught.value).startswith(told)


def test_what_is_missing() -> None:
    with pytest.raises(PlanError, match="runs_per_day is missing: add it"):
        parse_plan(["steps=1"])


def test_every_largest_plan_is_calculated() -> None:
    """No combination of what is allowed ends in an overflow or a division by nothing."""
    for most in (True, False):
        values = {
            name: (each.most if most else each.least or (1 if each.above else 0))
            for name, each in PARAMETERS.items()
        }
        exact: dict[str, Any] = {
            name: int(value) if PARAMETERS[name].is_whole else value
            for name, value in values.items()
        }
        made = Plan(**exact)
        assert {each.name for each in assess(made)} >= {"load", "memory"}


# -- the command ---------------------------------------------------------------------------


def doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "redis_world", "doctor", *arguments]
    own = environment(**variables)
    own.pop("REDIS_WORLD_URL", None)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=own)


def test_a_plan_needs_no_server() -> None:
    done = doctor("--plan", "steps=10", "payload=4KB", "runs_per_day=1000", NO_COLOR="1")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    expected = assess(parse_plan(["steps=10", "payload=4KB", "runs_per_day=1000"]))
    assert rows == [[each.level, each.name, each.text, each.advice] for each in expected]


def test_a_plan_as_json() -> None:
    done = doctor("--json", "runs_per_day=1e9", "--plan")
    document = json.loads(done.stdout)
    assert (document["level"], document["exitCode"], done.returncode) == ("error", 2, 2)
    (load,) = [each for each in document["findings"] if each["name"] == "load"]
    found = calculate(parse_plan(["runs_per_day=1e9"]))
    assert load["figures"]["peakCore"] == pytest.approx(found.peak, abs=1e-4)
    assert load["figures"]["mastersNeeded"] == found.masters


def test_a_plan_that_hardly_fits_is_a_warning() -> None:
    done = doctor("--plan", "runs_per_day=1000", "step_time=1h", "workers=1")
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--plan"], "runs_per_day is missing"),
        (["--plan", "runs_per_day=1", "steps=-1"], "steps=-1 is too small"),
        (["runs_per_day=1"], "'runs_per_day=1' is an extra argument: add --plan"),
    ],
)
def test_a_wrong_call(arguments: list[str], told: str) -> None:
    done = doctor(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"redis-world: {told}")
    assert done.stderr.count("\n") == 1


# -- the document, and how the constants are measured --------------------------------------


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])
    return importlib.import_module("capacity")


def test_the_manual_has_what_the_code_computes(measuring: Any) -> None:
    text = measuring.DOCUMENT.read_text(encoding="utf-8")
    wrong = [name for name, block in measuring.blocks().items() if block not in text]
    assert measuring.documented(text) == text, (
        f"docs/operations.md has other values than the package in {', '.join(wrong)}: run"
        " `python benchmarks/capacity.py --document`, which writes:\n"
        + "\n".join(measuring.blocks()[name] for name in wrong)
    )


def test_the_manual_has_each_name_and_its_default(measuring: Any) -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in measuring.DOCUMENT.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    defaults = {
        name: default
        for row in rows
        if len(row) == 3
        for name, default in zip(row[0].split(", "), row[2].split(", "), strict=False)
    }
    default = Plan(runs_per_day=1)
    for name, parameter in PARAMETERS.items():
        told = defaults[f"`{name}`"]
        if told not in ("required", "unknown"):
            assert parameter.read(told.replace(" ", "")) == getattr(default, name), name


def test_every_constant_is_explained(measuring: Any) -> None:
    assert {*measuring.MEANINGS} == {*MEASURED} == {*COSTS}


def test_the_module_is_the_one_that_would_be_written(measuring: Any) -> None:
    assert measuring.module_text(BASIS, MEASURED) == measuring.MODULE.read_text(encoding="utf-8")


def test_measured_runs_give_the_constants_that_they_are_made_of(measuring: Any) -> None:
    """Runs as the model would have them: what is found is what they were made of."""

    def spent(kind: Any, costs: Mapping[str, float], partitions: int, masters: int) -> Any:
        parts = {**measuring._NOTHING, **kind.parts}
        has_stream = 1 if parts["chunks"] else 0
        made = plan(
            partitions=partitions,
            masters=masters,
            **{**parts, "steps": parts["steps"] + has_stream, "streams": has_stream},
        )
        found = calculate(made, costs)
        server = found.run_us - costs["removal_us"]
        shares = [0.4, 0.35, 0.25] if masters > 1 else [1.0]
        return measuring.Spent(
            [server * share for share in shares],
            found.worker_cores * 1e6,
            found.run_bytes,
            parts["payload"],
        )

    def rounds(partitions: int = 1, masters: int = 1) -> dict[str, list[Any]]:
        kinds = {**measuring.KINDS, **measuring.MIXED}
        return {name: [spent(kind, COSTS, partitions, masters)] for name, kind in kinds.items()}

    found = measuring.constants(rounds(), rounds(12), rounds(12, 3), 10, 60e-6)
    for name in {*COSTS} - {"time_error_percent", "memory_error_percent"}:
        assert found[name] == pytest.approx(COSTS[name], rel=0.01), name
    assert found["time_error_percent"] < 1
    assert found["memory_error_percent"] < 1
