"""However much is stored: what one script does, and what it answers, has a bound.

A server does one thing at a time, so that a script that takes long holds up everybody. How long
depends on the machine; how many commands a script calls and how many bytes it answers does not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from redis_world.lua import default_library
from redis_world.sleepers import hand_on
from redis_world.sweeper import elect
from redis_world.testing import ManualClock, check_invariants
from support.backends import Backend, Servers
from support.filling import Filler
from support.limits import Lab, Size, use_partitions
from support.metering import Cost, Meter
from support.queue_tools import TOPIC

IS_LONG: Final = os.environ.get("REDIS_WORLD_CHAOS") == "long"
MB: Final = 1024 * 1024
SMALL: Final = Size(entities=120, runs=5, payload=1000, chunks=5)
"""More than one script ends at a time, so that there is something left to clean."""
TENTH: Final = Size(entities=2_500, runs=10_000, payload=2 * MB, chunks=5_000)
FULL: Final = Size(entities=25_000, runs=100_000, payload=64 * MB, chunks=5_000)
PAGE: Final = MB
"""Bytes of a page after which its script stops."""
FRAME: Final = 256 * 1024
"""Bytes of an answer without any large payload: ids, times, attributes of a few hundred rows."""


class Bound(NamedTuple):
    """What a script may cost."""

    commands: int
    """That it calls."""
    payloads: int = 0
    """Large ones that it answers: those of one entity, whatever they are."""
    bytes: int = FRAME


BOUNDS: Final = {
    "events/attr_set": Bound(90),
    # 128 events, each as its own script would.
    "events/batch": Bound(1_500),
    "events/hook_created": Bound(20),
    "events/hook_disposed": Bound(25),
    "events/hook_received": Bound(20),
    # An end deletes a hundred hooks, and where data go with it a hundred streams.
    "events/run_cancelled": Bound(1_300),
    "events/run_completed": Bound(1_300),
    "events/run_failed": Bound(1_300),
    # A creation keeps a hundred streams that were there before.
    "events/run_created": Bound(400),
    "events/run_started": Bound(400),
    "events/step_completed": Bound(20),
    "events/step_created": Bound(20),
    "events/step_failed": Bound(20),
    "events/step_retrying": Bound(20),
    "events/step_started": Bound(20),
    "events/wait_completed": Bound(20),
    "events/wait_created": Bound(20),
    "hooks/expire": Bound(1_300),
    "hooks/get": Bound(300),
    "hooks/get_by_token": Bound(10),
    # A look is a command or two, a row three or four.
    "hooks/list": Bound(1_300, bytes=PAGE + FRAME),
    "hooks/list_all": Bound(1_300, bytes=PAGE + FRAME),
    "queue/ack": Bound(30),
    "queue/claim": Bound(7_000, bytes=PAGE),
    "queue/dead_letters": Bound(1_300, payloads=1, bytes=PAGE + FRAME),
    "queue/expire": Bound(1_300),
    "queue/extend": Bound(10),
    "queue/pay_step": Bound(40),
    # It looks for a replay among up to two thousand fields of the messages of its run.
    "queue/pay_wake": Bound(7_000),
    # A hundred lost messages, in one run of a hundred.
    "queue/mend": Bound(1_900),
    "queue/peek": Bound(42),
    "queue/wake": Bound(45),
    "queue/postpone": Bound(20),
    "queue/purge": Bound(4_000),
    "queue/redrive": Bound(40),
    "queue/release": Bound(20),
    "queue/retry": Bound(30),
    "queue/send": Bound(30),
    "queue/stats": Bound(10),
    # It looks at five hundred steps.
    "queue/owed": Bound(10),
    "queue/stranded": Bound(700),
    "queue/unpark": Bound(40),
    "runs/clean": Bound(1_400),
    "runs/finished": Bound(300),
    "runs/get": Bound(5),
    # A run is up to four commands.
    "runs/list": Bound(810, bytes=PAGE + FRAME),
    "runs/remove": Bound(1_400),
    "steps/get": Bound(5),
    "steps/list": Bound(800, bytes=PAGE + FRAME),
    "streams/close": Bound(15),
    "streams/info": Bound(5),
    "streams/list": Bound(600),
    "streams/note_run": Bound(3),
    # The largest write has as many chunks.
    "streams/write": Bound(20 + FULL.chunks),
    "tokens/probe": Bound(10),
    "tokens/release": Bound(10),
    "tokens/reserve": Bound(10),
    "tokens/stale": Bound(150),
    "waits/get": Bound(2),
    "waits/list": Bound(500),
    "worlds/elect": Bound(5),
    "worlds/open": Bound(5),
    "worlds/swept": Bound(5),
}


@pytest.fixture
def backend(servers: Servers) -> Iterator[Backend]:
    """One real server: the scripts are the same on all of them."""
    with servers.backend("redis7").at_work() as backend:
        yield backend


async def do_everything(
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    size: Size,
    *,
    is_checked: bool,
) -> dict[str, Cost]:
    """What each script has cost at most in namespaces of this size; also as a table in a file."""
    options: dict[str, Any] = {
        "library": ManualClock.library(),
        "max_events_per_run": None,
        "max_lost_leases": 1,
        "max_payload_bytes": 2 * FULL.payload,
    }
    with contextlib.closing(backend.client()) as client:
        async with (
            backend.world(**options) as world,
            backend.world(partitions=4, **options) as many,
        ):
            # Behind their opening, which has its own way to the server.
            meter = Meter(client, monkeypatch)
            fill = Filler(world, client, monkeypatch)

            async def look() -> None:
                if is_checked:
                    await check_invariants(world)
                    await check_invariants(many)

            keys = {"meta": world.connection.keys.meta}
            names = {"schema": "1", "partitions": "1", "writer": "w"}
            await world.connection.call("worlds/open", keys, names)
            await elect(world.connection, "w", 10)
            for worker in ("w", "x"):
                await world.queue.claim_batch(TOPIC, worker=worker, look=1)
            await hand_on(world.connection, TOPIC, 0, "w")
            lab = Lab(world, await ManualClock(world).set(), fill, size, look)
            await lab.do_everything()
            await use_partitions(many, await ManualClock(many).set(), fill, size, look)
        # Gigabytes are not freed while anybody waits.
        client.flushall(asynchronous=True)
    (tmp_path / "costs.txt").write_text(meter.table())
    return meter.costs


def excesses(costs: dict[str, Cost], size: Size) -> list[str]:
    """Which scripts have cost more than they may."""
    found = []
    for name, cost in sorted(costs.items()):
        bound = BOUNDS[name]
        most = bound.bytes + bound.payloads * size.payload
        if cost.commands > bound.commands:
            found.append(f"{name}: {cost.commands} commands, of {bound.commands}")
        if cost.bytes > most:
            found.append(f"{name}: {cost.bytes} bytes, of {most}")
    return found


def test_every_script_has_a_bound() -> None:
    assert {*BOUNDS} == {script.name for script in default_library()}


async def test_what_is_filled_is_what_worlds_write(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A small one of the namespaces below, looked at wherever nothing is under way."""
    costs = await do_everything(backend, monkeypatch, tmp_path, SMALL, is_checked=True)
    assert {*costs} == {*BOUNDS}
    assert excesses(costs, SMALL) == []


@pytest.mark.timeout(0 if IS_LONG else 300)
async def test_no_script_does_more_where_more_is_stored(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every script at the limits, or at a tenth of them where time is short."""
    size = FULL if IS_LONG else TENTH
    costs = await do_everything(backend, monkeypatch, tmp_path, size, is_checked=False)
    assert {*costs} == {*BOUNDS}
    assert excesses(costs, size) == []
