"""Sentinel: the World follows the master wherever it goes; and connections by TLS."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.checkup import check_up
from redis_world.config import WorldConfig
from redis_world.connection.sentinels import SentinelPool
from redis_world.errors import ConfigurationError, NotDurableError, WorldUnavailableError
from redis_world.queue import Enqueue
from redis_world.testing import check_invariants, redis_server
from redis_world.testing.ports import free_port
from redis_world.worker import Worker
from support import events as e
from support.private_servers import needing
from support.queue_tools import wake
from support.sentinel import SERVICE, Guarded, guarded_server
from support.until import until

TOPIC: Final = "__wkf_workflow_"
IS_LONG: Final = os.environ.get("REDIS_WORLD_CHAOS") == "long"
FAILOVERS: Final = 40 if IS_LONG else 4

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with needing("redis7"), guarded_server() as guarded:
        yield guarded


@pytest.mark.timeout(1200 if IS_LONG else 300)
async def test_what_a_replica_has_outlives_its_master(guarded: Guarded) -> None:
    """Masters die and are replaced under load; what was answered is there, and there once."""
    durable: dict[str, Any] = {
        "durability": "replica",
        "durability_timeout": 5.0,
        "max_events_per_run": 1_000_000,
    }
    async with RedisWorld(guarded.url, **durable) as careful, RedisWorld(guarded.url) as world:
        run_id = await e.new_run(careful)
        answered: list[str] = []
        refused: list[str] = []
        seen: set[str] = set()
        is_over = False

        async def write(writer: int) -> None:
            for number in itertools.count():
                if is_over:
                    return
                step_id = f"{writer}/{number}"
                message = Enqueue(f"{TOPIC}x", {"runId": run_id, "stepId": step_id})
                try:
                    await careful.events.create(run_id, e.step_created(step_id), enqueue=message)
                    answered.append(step_id)
                except NotDurableError:
                    refused.append(step_id)
                # Failovers are what takes the time; more than enough is written in between.
                await asyncio.sleep(0.01)

        async def handler(payload: dict[str, str], **_: object) -> None:
            seen.add(payload.get("stepId", ""))

        worker = Worker(world, {TOPIC: handler}, lease=2.0)
        working = asyncio.create_task(worker.run())
        writing = [asyncio.create_task(write(writer)) for writer in range(4)]
        for number in range(FAILOVERS):
            before = len(answered)
            change = guarded.kill_master if number % 2 else guarded.fail_over
            await asyncio.to_thread(change, gently=False)
            await until(
                lambda before=before: (  # type: ignore[misc]
                    len(answered) > before + 10 or any(each.done() for each in writing)
                )
            )
        is_over = True
        await asyncio.gather(*writing)
        assert len(refused) < len(answered)
        log = await e.log(careful, run_id)
        steps = [each.correlation_id for each in log if each.event_type == "step_created"]
        assert len(steps) == len({*steps})
        assert {*answered} <= {*steps}
        await until(lambda: {*answered} <= seen)
        worker.stop()
        await working
        await check_invariants(world)


async def test_a_world_opens_during_a_failover(guarded: Guarded) -> None:
    with guarded.watched():
        os.kill(guarded.master.pid, signal.SIGKILL)
        # The Sentinels still name the dead one.
        async with RedisWorld(guarded.url) as world:
            run_id = await e.new_run(world)
            assert (await world.runs.get(run_id)).status == "running"
            found = await check_up(guarded.url, config=WorldConfig())
            assert {each.name: each.level for each in found}["namespace"] == "ok"


def test_a_master_that_pauses_is_not_replaced(guarded: Guarded) -> None:
    """Failovers below the contract's tests come when they are asked for, and at no other time."""
    os.kill(guarded.master.pid, signal.SIGSTOP)
    time.sleep(3.0)
    os.kill(guarded.master.pid, signal.SIGCONT)
    guarded.wait_until_sound()
    with contextlib.closing(guarded.client()) as client:
        assert client.set("written", "here")


async def test_a_connection_is_made_while_others_are_dropped(guarded: Guarded) -> None:
    """One batch that fails drops what is idle, while another one asks where the master is."""
    async with RedisWorld(guarded.url) as world:
        run_id = await e.new_run(world)
        (state,) = world.connection._states.values()
        pool = state.routes.clients[0].connection_pool
        assert isinstance(pool, SentinelPool)
        for _ in range(100):
            await pool.disconnect(inuse_connections=False)
            asked = asyncio.gather(*(pool.ask([("PING",)]) for _ in range(4)))
            while not asked.done():
                await asyncio.sleep(0)
                await pool.disconnect(inuse_connections=False)
            assert await asked == [[b"PONG"]] * 4
        assert (await world.runs.get(run_id)).status == "running"


async def test_sentinels_that_do_not_know_the_service(guarded: Guarded) -> None:
    world = RedisWorld(guarded.url.replace(SERVICE, "other"))
    with pytest.raises(ConfigurationError, match="no service named 'other'"):
        await world.open()
    await world.aclose()


async def test_sentinels_that_are_not_there() -> None:
    world = RedisWorld("redis+sentinel://127.0.0.1:1,127.0.0.1:2/orders", retry_timeout=0.1)
    with pytest.raises(WorldUnavailableError, match=r"127\.0\.0\.1:1 .*, 127\.0\.0\.1:2 "):
        await world.open()
    await world.aclose()


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://127.0.0.1:26379",
        "redis+sentinel://127.0.0.1:26379/",
        "redis+sentinel://127.0.0.1:x/orders",
        "redis+sentinel:///orders",
        "redis+cluster://",
        "redis+cluster://127.0.0.1:7000/1",
        "redis+cluster://user:pass-word@127.0.0.1:x",
        "redis+other://127.0.0.1",
        "redis+cluster://127.0.0.1:7000?decode_responses=true",
    ],
)
def test_urls_that_can_not_be(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisWorld(url)
    assert "pass-word" not in str(caught.value)


# -- TLS -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key and a certificate that nobody has signed."""
    folder = tmp_path_factory.mktemp("tls")
    key, signed = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(signed), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return key, signed


@contextlib.contextmanager
def private_tls_server(certificate: tuple[Path, Path]) -> Iterator[str]:
    """The URL of a server of the test's own."""
    key, signed = certificate
    port = free_port()
    args = (
        *("--tls-port", str(port), "--tls-auth-clients", "no", "--tls-cert-file", str(signed)),
        *("--tls-key-file", str(key), "--tls-ca-cert-file", str(signed)),
    )
    with redis_server("redis7", args=args):
        yield f"rediss://127.0.0.1:{port}/0"


@pytest.mark.needs("openssl")
async def test_a_server_with_a_certificate(certificate: tuple[Path, Path]) -> None:
    _, signed = certificate
    with private_tls_server(certificate) as url:
        async with RedisWorld(f"{url}?ssl_ca_certs={signed}") as world:
            run_id = await e.new_run(world)
            await world.streams.write(run_id, "out", b"1")
            reader = world.streams.read(run_id, "out")
            assert await anext(reader) == b"1"
            await reader.aclose()
            seen: set[str] = set()

            async def handler(payload: dict[str, str], **_: object) -> None:
                seen.add(payload["runId"])
                await asyncio.sleep(0.6)

            # The thread that extends leases has connections of its own.
            worker = Worker(world, {TOPIC: handler}, lease=0.3)
            working = asyncio.create_task(worker.run())
            await world.queue.send(f"{TOPIC}x", wake(run_id))
            await until(lambda: run_id in seen)
            worker.stop()
            await working
            assert (await world.queue.stats(TOPIC)).ready == 0
        stranger = RedisWorld(url, retry_timeout=0)
        with pytest.raises(ConfigurationError, match="certificate"):
            await stranger.open()
        await stranger.aclose()


@pytest.mark.needs("openssl")
async def test_hints_are_lost_while_waiters_come_and_go(certificate: tuple[Path, Path]) -> None:
    """A waiter sends over a connection whose end the hub has not heard of yet."""
    with private_tls_server(certificate) as url:
        async with RedisWorld(f"{url}?ssl_ca_certs={certificate[1]}") as world:
            await world.open()
            hub, connection = world.connection.hub, world.connection
            is_over = False

            async def come_and_go(number: int) -> None:
                while not is_over:
                    async with hub.subscribe(f"c{number}"):
                        await asyncio.sleep(0.001)

            coming = [asyncio.create_task(come_and_go(number)) for number in range(20)]
            for _ in range(40):
                await asyncio.sleep(0.1)
                await connection.execute(("CLIENT", "KILL", "TYPE", "pubsub"))
            is_over = True
            await asyncio.gather(*coming)
            assert not hub._waiters
