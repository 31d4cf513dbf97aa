"""Measures what the capacity model of `redis-world doctor --plan` is made of.

    make capacity                              measures, and writes the module and the document
    python benchmarks/capacity.py              measures, and prints the module
    python benchmarks/capacity.py --document   only writes what the module has into the document

Runs of the Python SDK are executed on private servers, by workers in a process of their own. What
they take of the servers' processors and memory, beside what the servers take anyway, is shared out
to their parts; then runs that are mixed of several parts are compared with the model.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Final

from figures_base import control, cpu_seconds
from peers.environments import Ask, program
from peers.servers import private_cluster, private_redis, server_version
from redis import Redis

from redis_world.checkup.capacity import Plan, assess, calculate
from redis_world.checkup.measured import BASIS, MEASURED
from redis_world.cli.plans import parse_plan
from redis_world.testing import Server

__all__ = [
    "DOCUMENT",
    "EXAMPLE",
    "MEANINGS",
    "blocks",
    "constants",
    "documented",
    "main",
    "module_text",
]

ROOT: Final = Path(__file__).resolve().parents[1]
HERE: Final = ROOT / "benchmarks"
MODULE: Final = ROOT / "src" / "redis_world" / "checkup" / "measured.py"
DOCUMENT: Final = ROOT / "docs" / "operations.md"

ROUNDS: Final = 5
WORKERS: Final = 2
MASTERS, PARTITIONS = 3, 12
REST_SECONDS: Final = 3.0
IDLE_SECONDS: Final = 10.0
IDLE_WORKERS: Final = 60
AT_ONCE: Final = 16
"""Runs that are under way at a time."""

MEANINGS: Final[dict[str, tuple[str, str]]] = {
    "run_us": ("µs", "start and end of a run"),
    "step_us": ("µs", "a step, after another one"),
    "hook_us": ("µs", "a hook: created, resumed once, removed"),
    "hook_across_us": ("µs", "the same with several partitions on one server"),
    "sleep_us": ("µs", "a sleep"),
    "stream_us": ("µs", "a stream with one reader, without its chunks"),
    "chunk_us": ("µs", "a chunk of a stream"),
    "chunk_kib_us": ("µs", "a KiB in chunks"),
    "payload_kib_us": ("µs", "a KiB of inputs and outputs of up to 4 KiB"),
    "large_us": ("µs", "an input or output above 4 KiB, which takes one more command"),
    "large_kib_us": ("µs", "a KiB of these"),
    "removal_us": ("µs", "the removal of a finished run"),
    "look_us": ("µs", "a look of an idle worker into one partition, in all topics"),
    "cluster_run_us": ("µs", "start and end of a run, on three masters"),
    "cluster_step_us": ("µs", "a step, on three masters"),
    "cluster_hook_us": ("µs", "a hook, on three masters"),
    "cluster_share_percent": ("%", "the busiest of three masters: its part of the server time"),
    "worker_run_us": ("µs", "processor time of the worker for the start and end of a run"),
    "worker_step_us": ("µs", "processor time of the worker for a step, without its own code"),
    "run_bytes": ("bytes", "a finished run without steps"),
    "step_bytes": ("bytes", "a step"),
    "hook_bytes": ("bytes", "a hook"),
    "sleep_bytes": ("bytes", "a sleep"),
    "free_bytes": ("bytes", "steps, hooks, sleeps and payloads that each run has room for"),
    "payload_percent": ("%", "memory of payloads, by their size"),
    "stream_bytes": ("bytes", "a stream without its chunks"),
    "chunk_bytes": ("bytes", "a chunk"),
    "chunk_percent": ("%", "memory of chunks, by their size"),
    "time_error_percent": ("%", "largest error of the model in server time"),
    "memory_error_percent": ("%", "largest error of the model in memory"),
}
"""The constants, with their units, as the document explains them."""

EXAMPLE: Final = "steps=10 payload=4KB hooks=1 runs_per_day=100000 retention=7d"
"""The plan that the document calculates."""


# -- measuring -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """Runs that are alike.

    Attributes:
        parts: what each has, as `capacity_flows.planned` takes it.
        runs: of a round.
        at_once: of them.
    """

    parts: Mapping[str, int]
    runs: int
    at_once: int = AT_ONCE


KINDS: Final[dict[str, Kind]] = {
    "run": Kind({}, 192),
    "steps": Kind({"steps": 20}, 32),
    "more steps": Kind({"steps": 60}, 16),
    "payload": Kind({"steps": 20, "payload": 3072}, 32),
    "large payload": Kind({"steps": 20, "payload": 8192}, 24),
    "larger payload": Kind({"steps": 20, "payload": 65_536}, 12),
    "hooks": Kind({"hooks": 16}, 32),
    "sleeps": Kind({"sleeps": 12}, 64, at_once=64),
    "chunk": Kind({"chunks": 1, "chunk": 64}, 96),
    "chunks": Kind({"chunks": 41, "chunk": 64}, 48),
    "large chunks": Kind({"chunks": 41, "chunk": 4160}, 48),
}
"""Of each part the model needs, runs with much of it and little else."""
MIXED: Final[dict[str, Kind]] = {
    "short": Kind({"steps": 3, "payload": 256}, 64),
    "usual": Kind({"steps": 10, "payload": 1024}, 32),
    "long": Kind({"steps": 40, "payload": 256}, 16),
    "large": Kind({"steps": 5, "payload": 16_384}, 24),
    "larger": Kind({"steps": 5, "payload": 131_072}, 12),
    "all": Kind(
        {"steps": 5, "payload": 2048, "hooks": 2, "sleeps": 1, "chunks": 20, "chunk": 512}, 32
    ),
}
"""Runs of several parts, with which the model is compared."""
CLUSTERED: Final = ("run", "steps", "hooks")
_NOTHING: Final = {"steps": 0, "payload": 0, "hooks": 0, "sleeps": 0, "chunks": 0, "chunk": 0}


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has taken: of each server and of the worker in µs, and bytes of memory."""

    servers: Sequence[float]
    worker: float
    memory: float
    stored: float
    """Bytes of its output: what the SDK makes of a payload."""

    @property
    def server(self) -> float:
        """Of all servers."""
        return sum(self.servers)


class Place:
    """Servers with workers, and what runs there take."""

    def __init__(self, ask: Ask, servers: Sequence[Redis], rest: Sequence[float]) -> None:
        self._ask = ask
        self._servers = servers
        self._rest = rest
        """Of a processor, which each server takes when nobody uses it."""

    def run(self, kind: Kind) -> Spent:
        """Execute runs, and share out what they have taken."""
        request = {
            "parts": {**_NOTHING, **kind.parts},
            "runs": kind.runs,
            "at_once": kind.at_once,
        }
        memory = self._memory()
        servers, answer = self._measure(request)
        each = 1e6 / kind.runs
        return Spent(
            [seconds * each for seconds in servers],
            answer["cpu"] * each,
            (self._memory() - memory) / kind.runs,
            answer["stored"],
        )

    def remove(self) -> float:
        """Remove all runs; µs of each."""
        servers, answer = self._measure({"prune": True})
        return sum(servers) * 1e6 / answer["done"]

    def idle(self) -> float:
        """Of a processor, which the servers take for workers that have nothing to do."""
        # They sleep by then, after what they have done before.
        time.sleep(2 * REST_SECONDS)
        before, begun = _cpu(self._servers), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        seconds = time.perf_counter() - begun
        used = sum(_cpu(self._servers)) - sum(before)
        return used / seconds - sum(self._rest)

    def _measure(self, request: dict[str, object]) -> tuple[list[float], dict[str, float]]:
        before, begun = _cpu(self._servers), time.perf_counter()
        answer = self._ask(request)
        seconds = time.perf_counter() - begun
        used = [
            max(0.0, now - then - rest * seconds)
            for now, then, rest in zip(_cpu(self._servers), before, self._rest, strict=True)
        ]
        return used, answer

    def _memory(self) -> int:
        return sum(int(each.info("memory")["used_memory_dataset"]) for each in self._servers)


def _cpu(servers: Iterable[Redis]) -> list[float]:
    return [cpu_seconds(each) for each in servers]


@contextmanager
def place(
    url: str, servers: Sequence[Server], *, workers: int = WORKERS, partitions: int = 1
) -> Iterator[Place]:
    """Have workers on servers for the length of a `with` block."""
    with ExitStack() as stack:
        clients = [stack.enter_context(control(server)) for server in servers]
        before = _cpu(clients)
        time.sleep(REST_SECONDS)
        rest = [
            (now - then) / REST_SECONDS for now, then in zip(_cpu(clients), before, strict=True)
        ]
        words = (url, str(workers), str(partitions))
        ask = stack.enter_context(
            program(Path(sys.executable), str(HERE / "capacity_sdk.py"), *words)
        )
        found = Place(ask, clients, rest)
        # So that connections, scripts and imported workflows are there.
        found.run(Kind({"steps": 2, "hooks": 1}, 2 * AT_ONCE))
        yield found


Rounds = dict[str, list[Spent]]


def measure() -> tuple[dict[str, float], str]:
    """The constants, and the server on which they were measured."""
    one: Rounds = defaultdict(list)
    across: Rounds = defaultdict(list)
    three: Rounds = defaultdict(list)
    with (
        private_redis() as server,
        private_redis() as split,
        private_cluster(MASTERS) as cluster,
        place(server.url, [server]) as plain,
        place(split.url, [split], partitions=PARTITIONS) as parted,
        place(cluster.url, cluster.masters, partitions=PARTITIONS) as masters,
    ):
        for number in range(ROUNDS):
            _tell(f"round {number + 1} of {ROUNDS}")
            for name, kind in {**KINDS, **MIXED}.items():
                one[name].append(plain.run(kind))
                if name in CLUSTERED:
                    across[name].append(parted.run(kind))
                    three[name].append(masters.run(kind))
        _tell("removal")
        removal = plain.remove()
        name = server_version(server)
    _tell("idle workers")
    with (
        private_redis() as server,
        place(server.url, [server], workers=IDLE_WORKERS, partitions=PARTITIONS) as idle,
    ):
        # With so many partitions each worker looks once a second.
        look = idle.idle() / IDLE_WORKERS
    return constants(one, across, three, removal, look), name


def constants(
    one: Rounds, across: Rounds, three: Rounds, removal: float, look: float
) -> dict[str, float]:
    """The constants of rounds.

    Args:
        one: on one server, of all kinds.
        across: on one server with several partitions.
        three: on a cluster.
        removal: µs of a run.
        look: of a processor, which an idle worker takes that looks once a second.
    """

    def us(name: str, rounds: Rounds = one) -> float:
        return median(each.server for each in rounds[name])

    def worker(name: str) -> float:
        return median(each.worker for each in one[name])

    def memory(name: str) -> float:
        return median(each.memory for each in one[name])

    def per(name: str, part: str) -> int:
        return KINDS[name].parts[part]

    def hook(rounds: Rounds) -> float:
        return (us("hooks", rounds) - us("run", rounds)) / per("hooks", "hooks")

    def step(rounds: Rounds) -> float:
        return (us("steps", rounds) - us("run", rounds)) / per("steps", "steps")

    steps = per("steps", "steps")
    count = 2 * steps + 2

    def kib(name: str) -> float:
        """Of all payloads of a run, beside what it has without them."""
        return count * (one[name][-1].stored - one["steps"][-1].stored) / 1024

    large_kib = (us("larger payload") - us("large payload")) / (
        kib("larger payload") - kib("large payload")
    )
    large = (us("large payload") - us("steps") - large_kib * kib("large payload")) / count
    # Chunks that are larger, and after that chunks that are more.
    small = per("chunk", "chunk")
    larger = per("large chunks", "chunks") * (per("large chunks", "chunk") - small)
    chunk_kib_us = (us("large chunks") - us("chunks")) / larger * 1024
    chunk_percent = 100 * (memory("large chunks") - memory("chunks")) / larger
    more = per("chunks", "chunks") - per("chunk", "chunks")
    chunk_us = (us("chunks") - us("chunk")) / more
    chunk_bytes = (memory("chunks") - memory("chunk")) / more
    run_us, run_bytes = us("run"), memory("run")
    step_bytes = (memory("more steps") - memory("steps")) / (per("more steps", "steps") - steps)
    free = max(0.0, run_bytes + steps * step_bytes - memory("steps"))
    step_us = step(one)
    found = {
        "run_us": run_us,
        "step_us": step_us,
        "hook_us": hook(one),
        "hook_across_us": hook(across),
        "sleep_us": (us("sleeps") - run_us) / per("sleeps", "sleeps"),
        # A step writes it.
        "stream_us": us("chunk") - run_us - step_us - chunk_us,
        "chunk_us": chunk_us - small / 1024 * chunk_kib_us,
        "chunk_kib_us": chunk_kib_us,
        "payload_kib_us": (us("payload") - us("steps")) / kib("payload"),
        "large_us": large,
        "large_kib_us": large_kib,
        "removal_us": removal,
        "look_us": look * 1e6,
        "cluster_run_us": us("run", three),
        "cluster_step_us": step(three),
        "cluster_hook_us": hook(three),
        "cluster_share_percent": 100 * _largest(three),
        "worker_run_us": worker("run"),
        "worker_step_us": (worker("steps") - worker("run")) / steps,
        "run_bytes": run_bytes,
        "step_bytes": step_bytes,
        "hook_bytes": (memory("hooks") - run_bytes + free) / per("hooks", "hooks"),
        "sleep_bytes": (memory("sleeps") - run_bytes + free) / per("sleeps", "sleeps"),
        "free_bytes": free,
        "payload_percent": 100
        * (memory("large payload") - memory("steps"))
        / (kib("large payload") * 1024),
        "stream_bytes": memory("chunk") - run_bytes - max(0.0, step_bytes - free) - chunk_bytes,
        "chunk_bytes": chunk_bytes - small * chunk_percent / 100,
        "chunk_percent": chunk_percent,
    }
    found = {name: max(0.0, value) for name, value in found.items()}
    times, sizes = zip(
        *(_errors(name, kind, one, found) for name, kind in MIXED.items()), strict=True
    )
    found["time_error_percent"] = max(abs(each) for each in times)
    found["memory_error_percent"] = max(abs(each) for each in sizes)
    return {name: _rounded(found[name]) for name in MEANINGS}


def _largest(rounds: Rounds) -> float:
    """The part of the server time that the busiest master had, of all rounds together."""
    by_master: list[float] = [
        sum(of)
        for of in zip(*(each.servers for of in rounds.values() for each in of), strict=True)
    ]
    return max(by_master) / sum(by_master)


def _errors(
    name: str, kind: Kind, rounds: Rounds, found: Mapping[str, float]
) -> tuple[float, float]:
    """By how many percent the model is above what runs have taken, in time and in memory."""
    parts = {**_NOTHING, **kind.parts}
    has_stream = 1 if parts["chunks"] else 0
    plan = Plan(
        runs_per_day=1,
        # A step writes the stream.
        steps=parts["steps"] + has_stream,
        payload=parts["payload"],
        hooks=parts["hooks"],
        sleeps=parts["sleeps"],
        streams=has_stream,
        chunks=parts["chunks"],
        chunk=parts["chunk"],
    )
    expected = calculate(plan, found)
    server = median(each.server for each in rounds[name])
    memory = median(each.memory for each in rounds[name])
    time_error = 100 * ((expected.run_us - found["removal_us"]) / server - 1)
    memory_error = 100 * (expected.run_bytes / memory - 1)
    _tell(
        f"{name}: {server:,.0f} µs, {memory:,.0f} bytes;"
        f" the model has {time_error:+.0f} %, {memory_error:+.0f} %"
    )
    return time_error, memory_error


def _rounded(value: float) -> float:
    """To three digits: more of them say nothing."""
    return float(f"{value:.3g}")


# -- writing -------------------------------------------------------------------------------


def module_text(basis: Mapping[str, str], measured: Mapping[str, float]) -> str:
    """The module with these constants."""
    head = MODULE.read_text(encoding="utf-8").partition("BASIS: Final")[0]
    lines = [
        "BASIS: Final[dict[str, str]] = {",
        *(f'    "{name}": "{text}",' for name, text in basis.items()),
        "}",
        "MEASURED: Final[dict[str, float]] = {",
        *(f'    "{name}": {value:g},' if value < 1e5 else f'    "{name}": {value:.0f},'
          for name, value in measured.items()),
        "}",
    ]  # fmt: skip
    return head + "\n".join(lines) + "\n"


def blocks() -> dict[str, str]:
    """The parts of the document that follow from the constants, by their names there."""
    rows = [
        f"| `{name}` | {MEASURED[name]:,g} {unit} | {text} |"
        for name, (unit, text) in MEANINGS.items()
    ]
    findings = assess(parse_plan(EXAMPLE.split()))
    return {
        "capacity": "\n".join(["| constant | value | meaning |", "| --- | ---: | --- |", *rows]),
        "capacity example": "\n".join(
            [
                "```bash",
                f"redis-world doctor --plan {EXAMPLE}",
                "```",
                "",
                "| level | name | finding | advice |",
                "| --- | --- | --- | --- |",
                *(
                    f"| {each.level} | {each.name} | {each.text} | {each.advice} |"
                    for each in findings
                ),
            ]
        ),
    }


def documented(text: str) -> str:
    """A document with these parts in place of its own."""
    for name, block in blocks().items():
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)"
        found = re.search(pattern, text, flags=re.DOTALL)
        assert found is not None, f"the document has no part {name!r}"
        text = text[: found.end(1)] + block + text[found.start(2) :]
    return text


def _write_document() -> None:
    DOCUMENT.write_text(documented(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(description="Measure the constants of the capacity model.")
    parser.add_argument("--write", action="store_true", help="write module and document")
    parser.add_argument("--document", action="store_true", help="write the document only")
    options = parser.parse_args(arguments)
    if options.document:
        _write_document()
        return
    measured, server = measure()
    basis = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "server": server,
        "sdk": f"vercel-workflow {version('vercel-workflow')}",
    }
    text = module_text(basis, measured)
    sys.stdout.write(text)
    if options.write:
        MODULE.write_text(text, encoding="utf-8")
        # Of what is written there now, which this process has imported before.
        BASIS.update(basis)
        MEASURED.update(measured)
        _write_document()


if __name__ == "__main__":
    main()
