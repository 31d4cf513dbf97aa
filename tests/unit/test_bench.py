"""`redis-world bench`, as a person or a script runs it: what it says, and that nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from redis_world import RedisWorld
from redis_world.bench import Busy, Figure, Measurement, Spread, fresh_namespace, run_bench
from redis_world.bench.figures import percentile
from redis_world.bench.limits import Usage
from redis_world.bench.observer import cores
from redis_world.bench.workload import _BATCHES, _SINGLE, EVENTS_PER_RUN, all_of
from redis_world.cli.bench import _number, _table
from redis_world.errors import ConfigurationError, WorldError, WorldUnavailableError
from support.backends import Backend, Servers
from support.command_line import environment, on_a_terminal
from support.private_servers import ONE

pytestmark = pytest.mark.slow

PASSWORD = "pass-word"
NOBODY = f"redis://user:{PASSWORD}@127.0.0.1:1/0"
SECONDS = 1.0
EVENT_FIGURES = {"runsPerSecond", "eventsPerSecond", "eventP50Ms", "eventP99Ms"}
FIGURES = {
    "roundTrip": {"roundTripP50Ms", "roundTripP99Ms"},
    "runs1": EVENT_FIGURES,
    "runs16": EVENT_FIGURES,
    "runs64": EVENT_FIGURES,
    "batches": {"runsPerSecond", "eventsPerSecond", "callP50Ms", "callP99Ms"},
    "queue": {"sentPerSecond", "claimedPerSecond", "acknowledgedPerSecond"},
    "delivery": {"deliveryP50Ms", "deliveryP99Ms"},
    "streams": {"writtenPerSecond", "readPerSecond", "writeP50Ms", "writeP99Ms"},
}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "redis_world", "bench", *arguments]


def bench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        check=False,
        env=environment(**variables),
    )
    assert PASSWORD not in done.stdout + done.stderr
    return done


def keys_of(backend: Backend) -> list[bytes]:
    with contextlib.closing(backend.client()) as client:
        return [*client.scan_iter(count=1000)]


@pytest.fixture(autouse=True)
def options_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("REDIS_WORLD_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def real(servers: Servers) -> Iterator[Backend]:
    """One kind of server is enough here."""
    backend = servers.backend(ONE)
    yield backend
    assert not backend.clear(), "keys outside of the test's namespaces"


@pytest.fixture(params=["memory", ONE])
def server(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    backend = servers.backend(request.param)
    yield backend
    assert not backend.clear(), "keys outside of the test's namespaces"


# -- what it measures ----------------------------------------------------------------------


def assert_sane(document: dict[str, Any]) -> None:
    measurements = document["measurements"]
    assert {name: set(each["figures"]) for name, each in measurements.items()} == FIGURES
    for each in measurements.values():
        assert each["title"]
        for name, figure in each["figures"].items():
            assert figure["unit"] == ("ms" if name.endswith("Ms") else "1/s")
            assert_spread(figure)
    for name in ("runs1", "runs16", "runs64", "batches"):
        figures = measurements[name]["figures"]
        runs, events = (figures[f"{each}PerSecond"]["median"] for each in ("runs", "events"))
        assert math.isclose(runs * EVENTS_PER_RUN, events)
    ratios = {
        name
        for each in measurements.values()
        for name, figure in each["figures"].items()
        if figure["roundTrips"] is not None
    }
    assert ratios == {"eventP50Ms", "deliveryP50Ms", "writeP50Ms"}
    assert measurements["runs1"]["figures"]["eventP50Ms"]["roundTrips"] > 0
    assert measurements["runs16"]["figures"]["eventP50Ms"]["roundTrips"] is None
    assert_spread(document["busy"]["processCores"])
    assert document["parameters"]["eventsPerRun"] == 33
    assert document["parameters"]["payloadBytes"] == 256
    assert set(document["versions"]) == {"redisWorld", "python", "redisPy", "hiredis", "server"}
    assert document["machine"]["cpus"] >= 1
    assert document["date"].endswith("+00:00")


def assert_spread(spread: dict[str, Any]) -> None:
    assert len(spread["rounds"]) >= 3
    assert all(math.isfinite(value) and value > 0 for value in spread["rounds"])
    assert spread["lowest"] == min(spread["rounds"])
    assert spread["highest"] == max(spread["rounds"])
    assert spread["lowest"] <= spread["median"] <= spread["highest"]


async def test_all_is_measured_and_nothing_is_left(server: Backend) -> None:
    told: list[tuple[str, int, int]] = []
    report = await run_bench(
        server.url, seconds=SECONDS, on_progress=lambda *each: told.append(each)
    )
    assert keys_of(server) == []
    document = json.loads(json.dumps(report.document()))
    assert_sane(document)
    assert document["parameters"]["seconds"] == SECONDS
    assert document["parameters"]["namespace"].startswith("bench-")
    busy = document["busy"]
    if server.is_memory:
        assert document["versions"]["server"] == {"kind": "memory", "version": None}
        assert (busy["serverCores"], busy["limit"]) == (None, "process")
    else:
        with contextlib.closing(server.client()) as client:
            info: Any = client.info("server")
        version = info.get("valkey_version") or info["redis_version"]
        kind = "valkey" if "valkey_version" in info else "redis"
        assert document["versions"]["server"] == {"kind": kind, "version": version}
        assert_spread(busy["serverCores"])
        assert_spread(busy["serverMainThreadCores"])
    counts = [done for _, done, _ in told]
    assert counts == sorted(counts)
    assert told[-1][1] == told[-1][2]
    assert {title for title, _, _ in told} == {
        each["title"] for each in document["measurements"].values()
    }


def test_json_with_partitions_in_a_namespace_of_the_users(real: Backend) -> None:
    namespace = real.namespace()
    done = bench(
        *("--url", real.url, "--seconds", "1", "--json", "--namespace", namespace),
        REDIS_WORLD_PARTITIONS="3",
    )
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert_sane(document)
    parameters = document["parameters"]
    assert (parameters["namespace"], parameters["partitions"]) == (namespace, 3)
    assert keys_of(real) == []


def test_a_cluster(servers: Servers) -> None:
    backend = servers.backend("cluster")
    # Its user may do what a World needs in namespaces of tests.
    namespace = backend.namespace()
    arguments = ["--url", backend.url, "--seconds", "1", "--json", "--namespace", namespace]
    done = bench(*arguments, REDIS_WORLD_PARTITIONS="16")
    assert (done.returncode, done.stderr) == (0, "")
    assert_sane(json.loads(done.stdout))
    assert keys_of(backend) == []


def test_a_run_is_33_events_either_way() -> None:
    batched = [event for events in _BATCHES for event in events]
    # In front of them there are run_created and run_started.
    assert len(batched) == len(_SINGLE) == EVENTS_PER_RUN - 2
    assert batched == _SINGLE
    assert len(_BATCHES) == 11


# -- how it is shown -----------------------------------------------------------------------


def test_a_pipe_gets_plain_aligned_lines(real: Backend) -> None:
    done = bench("--url", real.url, "--seconds", "1", FORCE_COLOR="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert done.stdout.replace("\n", "").isprintable()
    head, where, _, titles, *lines = done.stdout.splitlines()
    assert head.startswith("redis-world ")
    assert where.startswith("Redis 7.")
    assert titles.split() == ["median", "lowest", "highest", "unit", "round", "trips"]
    figures = [line for line in lines if line.startswith("  ")]
    assert len(figures) == sum(map(len, FIGURES.values()))
    ends = set()
    for line in figures:
        found = re.fullmatch(
            r"  (\S.*?)  +([\d.,]+)  +([\d.,]+)  +([\d.,]+)  (1/s|ms)( +\d+\.\d)?", line
        )
        assert found is not None, line
        ends.add(tuple(found.end(group) for group in (2, 3, 4)))
    # The columns stand below each other.
    assert len(ends) == 1
    assert re.search(r"limit", lines[-1])
    assert lines[-1].endswith(".")
    assert keys_of(real) == []


def test_a_slow_server_cuts_nothing_off() -> None:
    """Of a terminal of 80 columns, however wide the numbers are."""
    title = "send to handler of an idle worker"
    figure = Figure([123_456.0] * 3, "one message, p99", "ms", 1234.5)
    table = _table([Measurement("delivery", title, {"deliveryP99Ms": figure})])
    output = io.StringIO()
    Console(file=output, width=80).print(table)
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    assert f" {title}" in lines
    assert any(re.search(r"p99 ( +123,456){3} +ms +1234\.5$", line) for line in lines)


def test_a_terminal_gets_a_bar_and_a_table(real: Backend) -> None:
    code, text = on_a_terminal(command("--url", real.url, "--seconds", "1"), columns=80)
    assert code == 0
    assert "\x1b[" in text
    # The bar, which is gone at the end.
    assert "━" in text
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")
    assert re.search(r"one event, p50 +[\d.]+ +[\d.]+ +[\d.]+ +ms +[\d.]+", shown)
    # Nothing is cut or wrapped but the sentence at the end.
    for title in ("a read that finds nothing", "send to handler of an idle worker"):
        assert re.search(rf"^ {title} *$", shown, re.MULTILINE)
    assert "limit" in shown
    assert shown.rstrip().endswith(".")
    assert keys_of(real) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (99.96, "100.0"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123")],
)
def test_numbers(value: float, text: str) -> None:
    assert _number(value) == text


def busy(process: float, main: float | None, *, is_memory: bool = False) -> Busy:
    server = None if main is None else Spread([main])
    return Busy(Spread([process]), server, server, is_memory=is_memory)


@pytest.mark.parametrize(
    ("found", "limit", "begin"),
    [
        (busy(0.97, 0.4), "process", "This process is the limit: this process used 0.97 cores"),
        (busy(0.6, 0.95), "server", "The server is the limit: "),
        (busy(0.95, 0.92), "both", "This process and the server are at their limits: "),
        (busy(0.3, 0.1), "neither", "Neither is the limit: "),
        (busy(0.9, None), "process", "This process is the limit: it used 0.90 cores"),
        (busy(0.5, None), "unknown", "The limit is unknown: this process used 0.50"),
        (busy(0.5, None, is_memory=True), "process", "This process is the limit: with the"),
    ],
)
def test_what_is_the_limit(found: Busy, limit: str, begin: str) -> None:
    assert found.limit == limit
    assert found.sentence.startswith(begin)
    assert found.sentence.endswith(".")
    assert found.document()["text"] == found.sentence


def test_percentiles() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([7], 0.99) == 7


# -- how it ends ---------------------------------------------------------------------------


def until(condition: Callable[[], object], what: str, seconds: float = 50.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: it did not happen"
        time.sleep(0.01)


@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP]],
    ids=["SIGINT", "twice", "SIGTERM", "SIGHUP"],
)
def test_a_signal_ends_it_and_nothing_is_left(
    real: Backend, numbers: list[signal.Signals]
) -> None:
    with subprocess.Popen(
        command("--url", real.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        try:
            until(lambda: any(b":run:" in key for key in keys_of(real)), "it writes runs")
            for number in numbers:
                process.send_signal(number)
            out, err = process.communicate(timeout=50)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (1, "", "interrupted\n")
    assert keys_of(real) == []


@pytest.mark.parametrize("what", ["64 callers", "producers", "idle worker", "streams"])
async def test_a_signal_in_the_midst_of_anything(real: Backend, what: str) -> None:
    """While a worker has borrowed the signals, and behind it, too."""
    sent: list[str] = []

    def interrupt(title: str, _done: int, _total: int) -> None:
        if what in title and not sent:
            sent.append(title)
            # Within the round, and not in front of it.
            asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGINT)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run_bench(real.url, seconds=SECONDS, on_progress=interrupt))
    assert sent
    assert keys_of(real) == []


async def test_an_error_ends_it_and_nothing_is_left(server: Backend) -> None:
    def fail(title: str, _done: int, _total: int) -> None:
        if "64 callers" in title:
            raise WorldError("enough")

    with pytest.raises(WorldError, match="enough"):
        await run_bench(server.url, seconds=SECONDS, on_progress=fail)
    assert keys_of(server) == []


async def test_an_error_of_a_caller_ends_the_other_ones() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise WorldError("enough")

    with pytest.raises(WorldError, match="enough"):
        await all_of([wait(), fail(), wait()])
    assert ended == [1, 1]


async def test_a_namespace_that_can_not_be_removed_is_named(
    real: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_world: RedisWorld, _namespace: str) -> int:
        raise WorldUnavailableError("away")

    namespace = real.namespace()
    monkeypatch.setattr("redis_world.bench.run._delete_keys", refuse)
    told = rf"could not remove namespace '{namespace}': .*{namespace} \(away\)"
    with pytest.raises(WorldUnavailableError, match=told):
        await run_bench(real.url, namespace=namespace, seconds=SECONDS)


@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["plain", "json"])
def test_a_server_that_is_not_there(arguments: list[str]) -> None:
    done = bench("--url", NOBODY, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("redis-world: the server at 127.0.0.1:1 can't be reached")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--url", "no url"], 1, "no url"),
        (["--url", "memory://", "--namespace", "{}"], 1, "namespace"),
        (["--seconds", "0"], 2, "Usage"),
    ],
    ids=["url", "namespace", "seconds"],
)
def test_a_bad_option(arguments: list[str], code: int, word: str) -> None:
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert word in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_namespace_that_exists_is_left_alone(server: Backend) -> None:
    namespace = server.namespace()
    async with server.world(namespace=namespace):
        before = server.dump()
        with pytest.raises(ConfigurationError, match="already exists"):
            await run_bench(server.url, namespace=namespace, seconds=SECONDS)
        assert server.dump() == before


@pytest.mark.parametrize("key", ["{{{}}}:precious", "{{{}/7}}:precious"])
async def test_keys_of_others_that_look_like_its_own_stay(server: Backend, key: str) -> None:
    """Bench removes whatever is in its namespace, so nothing may be there."""
    namespace = server.namespace()
    name = key.format(namespace)
    with contextlib.closing(server.client()) as client:
        # Among others, so that it is not in the first part of what the server lists.
        for number in range(3000):
            client.set(f"other:{namespace}:{number}", "")
        client.set(name, "1")
        try:
            with pytest.raises(
                ConfigurationError, match=f"key '{re.escape(name)}' exists, and bench removes"
            ):
                await run_bench(server.url, namespace=namespace, seconds=SECONDS)
            assert client.get(name) == b"1"
        finally:
            client.delete(name, *(f"other:{namespace}:{number}" for number in range(3000)))


async def test_a_user_who_may_not_look_for_keys_begins_nothing(real: Backend) -> None:
    with contextlib.closing(real.client()) as client:
        client.acl_setuser("bench", enabled=True, nopass=True, keys=["*"], channels=["*"],
                           commands=["+@all", "-scan"])  # fmt: skip
        try:
            url = real.url.replace("://", "://bench:any@")
            with pytest.raises(ConfigurationError, match="denies a command"):
                await run_bench(url, seconds=SECONDS)
        finally:
            client.acl_deluser("bench")
    assert keys_of(real) == []


def test_the_namespace_of_the_environment_is_not_touched(real: Backend) -> None:
    namespace = real.namespace()

    async def write() -> None:
        async with real.world(namespace=namespace) as world:
            await world.streams.write("wrun_1", "kept", b"kept")

    asyncio.run(write())
    before = real.dump()
    variables = {"REDIS_WORLD_URL": real.url, "REDIS_WORLD_NAMESPACE": namespace}
    done = bench("--seconds", "1", "--json", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["parameters"]["namespace"] != namespace
    assert real.dump() == before


def test_fresh_namespaces_differ() -> None:
    assert fresh_namespace() != fresh_namespace()


def test_cores_between_two_looks() -> None:
    before = [Usage(1.0, 0.5), Usage(2.0, 2.0)]
    after = [Usage(2.0, 1.0), Usage(3.0, 2.75)]
    assert cores(before, after, 2.0) == {"server": 1.0, "main": 0.375}
    # Nobody told, or the server has begun anew.
    assert cores(None, after, 2.0) == cores(before, None, 2.0) == cores(after, before, 2.0) == {}


def test_a_server_that_tells_nothing_of_itself(real: Backend) -> None:
    namespace, user = real.namespace(), f"unseeing-{os.getpid()}"
    rights = ["on", f">{PASSWORD}", "+@all", "-info", f"~{{{namespace}}}*", f"~{{{namespace}/*"]
    url = real.url.replace("//", f"//{user}:{PASSWORD}@")
    with contextlib.closing(real.client()) as client:
        setting = ["ACL", "SETUSER", user, *rights, f"&{{{namespace}/*"]
        client.execute_command(*setting)  # type: ignore[no-untyped-call]
        done = bench("--url", url, "--namespace", namespace, "--seconds", "1", "--json")
        client.execute_command("ACL", "DELUSER", user)  # type: ignore[no-untyped-call]
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    # HELLO tells at least that.
    assert document["versions"]["server"]["version"].startswith("7.")
    assert document["busy"]["serverCores"] is None
    assert document["busy"]["limit"] in ("process", "unknown")
    assert keys_of(real) == []
