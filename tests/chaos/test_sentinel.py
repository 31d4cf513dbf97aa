"""Sentinel: the World follows the master wherever it goes; and connections by TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from redis_world import RedisWorld
from redis_world.checkup import check_up
from redis_world.config import WorldConfig
from redis_world.errors import ConfigurationError, WorldUnavailableError
from redis_world.testing import Server, check_invariants, redis_server
from redis_world.worker import Worker
from support import events as e
from support.queue_tools import wake
from support.until import until

SENTINELS: Final = 3
SERVICE: Final = "orders"
TOPIC: Final = "__wkf_workflow_"

pytestmark = pytest.mark.timeout(180)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with contextlib.closing(redis.Redis(port=port)) as client, contextlib.suppress(Exception):
        return bool(client.ping())
    return False


@contextlib.contextmanager
def sentinels(folder: Path, master: Server, count: int = SENTINELS) -> Iterator[list[int]]:
    """Sentinels that watch a master; their ports."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis7 server: redis-server is not there")
    processes, ports = [], [free_port() for _ in range(count)]
    try:
        for port in ports:
            place = folder / str(port)
            place.mkdir()
            settings = [
                f"port {port}",
                "bind 127.0.0.1",
                f"dir {place}",
                f"sentinel monitor {SERVICE} {master.host} {master.port} 2",
                f"sentinel down-after-milliseconds {SERVICE} 500",
                f"sentinel failover-timeout {SERVICE} 3000",
            ]
            (place / "sentinel.conf").write_text("\n".join(settings) + "\n", encoding="utf-8")
            command = [binary, str(place / "sentinel.conf"), "--sentinel"]
            with (place / "log").open("wb") as log:
                processes.append(
                    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )
        yield ports
    finally:
        for process in processes:
            process.kill()
            process.wait()


def knows_all(port: int, replicas: int) -> bool:
    """Whether a Sentinel has found the other ones, and the replicas."""
    if not answers(port):
        return False
    with contextlib.closing(redis.Redis(port=port)) as client:
        state: Any = client.sentinel_master(SERVICE)
    return (
        int(state["num-other-sentinels"]) == SENTINELS - 1 and int(state["num-slaves"]) == replicas
    )


async def test_the_master_is_followed_to_its_replica(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(redis_server("redis7"))
        follow = ("--replicaof", f"{master.host} {master.port}")
        stack.enter_context(redis_server("redis7", args=follow))
        ports = stack.enter_context(sentinels(tmp_path, master))
        await until(lambda: all(knows_all(port, 1) for port in ports))
        nodes = ",".join(f"127.0.0.1:{port}" for port in ports)
        url = f"redis+sentinel://{nodes}/{SERVICE}"
        durable: dict[str, Any] = {"durability": "replica", "durability_timeout": 5.0}
        async with RedisWorld(url, **durable) as careful, RedisWorld(url) as world:
            kept = await e.new_run(careful)
            await e.write(careful, kept, e.step_created("a"))
            seen: set[str] = set()

            async def handler(payload: dict[str, str], **_: object) -> None:
                seen.add(payload["runId"])

            worker = Worker(world, {TOPIC: handler}, lease=2.0)
            working = asyncio.create_task(worker.run())
            await world.queue.send(f"{TOPIC}x", wake(kept))
            await until(lambda: kept in seen)

            os.kill(master.pid, signal.SIGKILL)
            # Calls wait for the new master, and lose nothing that had reached it.
            run_id = await e.new_run(world)
            await e.write(world, kept, e.step_started("a"), e.step_completed("a"))
            await world.queue.send(f"{TOPIC}x", wake(run_id))
            await until(lambda: run_id in seen)
            worker.stop()
            await working
            assert (await e.log_types(world, kept))[-2:] == ["step_started", "step_completed"]
            await check_invariants(world)
            found = await check_up(url, config=WorldConfig())
            assert {each.name: each.level for each in found}["namespace"] == "ok"


async def test_sentinels_that_are_not_there() -> None:
    world = RedisWorld("redis+sentinel://127.0.0.1:1,127.0.0.1:2/orders", retry_timeout=0.1)
    with pytest.raises(WorldUnavailableError, match=r"127\.0\.0\.1:1,127\.0\.0\.1:2"):
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
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no certificate: openssl is not there")
    folder = tmp_path_factory.mktemp("tls")
    key, signed = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(signed), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return key, signed


async def test_a_server_with_a_certificate(certificate: tuple[Path, Path]) -> None:
    key, signed = certificate
    port = free_port()
    args = (
        *("--tls-port", str(port), "--tls-auth-clients", "no", "--tls-cert-file", str(signed)),
        *("--tls-key-file", str(key), "--tls-ca-cert-file", str(signed)),
    )
    with redis_server("redis7", args=args):
        url = f"rediss://127.0.0.1:{port}/0"
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
        with pytest.raises(WorldUnavailableError, match="certificate"):
            await stranger.open()
        await stranger.aclose()
