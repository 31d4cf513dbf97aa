"""Why a World can't be opened: a closer look where the error alone does not tell.

A server that uses TLS hangs up on those who don't, and one that does not waits for more of what it
takes for a command. Both look like a server that is out of order. So once opening has failed, the
server is looked at in the other way.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any, Final

import redis.asyncio
import redis.exceptions

from redis_world.connection.handshakes import open_stream
from redis_world.connection.redis_errors import (
    NoNodeError,
    address_of,
    base_of,
    chain,
    is_passing,
    is_sentinel,
    is_unknown_command,
    pool_of,
    translate,
    uses_tls,
    wants_certificate,
    with_tls,
    without_tls,
)
from redis_world.connection.sentinels import SentinelPool
from redis_world.connection.server import mode_of
from redis_world.connection.wires import WirePool
from redis_world.errors import (
    ConfigurationError,
    ScriptError,
    WorldError,
    WorldUnavailableError,
)

__all__ = ["explain"]

_LOOK_SECONDS: Final = 2.0
_CLEAR: Final = (ConnectionRefusedError, FileNotFoundError, PermissionError, socket.gaierror)
"""Errors that need no closer look."""


async def explain(error: BaseException, *, where: str) -> WorldError:
    """The World's error for one that opening failed with.

    Args:
        error: redis-py's, or one of the operating system.
        where: the server's address, unless the error has it.
    """
    if isinstance(error, NoNodeError):
        found = await asyncio.gather(
            *(explain(each, where=address) for address, each in error.errors.items())
        )
        return next(
            (each for each in found if isinstance(each, ConfigurationError)),
            translate(error, where=where),
        )
    known = translate(error, where=where)
    pool = pool_of(error)
    if pool is None:
        return known
    at = f" at {address_of(error) or where}"
    if isinstance(known, WorldUnavailableError):
        is_clear = is_passing(error) or any(isinstance(each, _CLEAR) for each in chain(error))
        place = None if is_clear else _place_of(error)
        if place is not None:
            return await _look(place, pool, at) or known
    if isinstance(known, ScriptError) and not isinstance(pool, SentinelPool):
        if await _mode(pool) == "sentinel":
            return is_sentinel(at, base_of(pool))
        if is_unknown_command(error):
            return ConfigurationError(
                f"the server{at} lacks a command ({error}): use Redis 7.0, Valkey 8.0 or newer"
            )
    return known


async def _look(
    place: tuple[str, int], pool: redis.asyncio.ConnectionPool, at: str
) -> WorldError | None:
    """Look at a server in the other way."""
    if not uses_tls(pool):
        return with_tls(at) if await _answers_tls(*place) else None
    if await _answers_plainly(*place):
        return without_tls(at)
    has_certificate = bool(pool.connection_kwargs.get("ssl_certfile"))
    return (
        None if has_certificate or not await _wants_certificate(*place) else wants_certificate(at)
    )


def _place_of(error: BaseException) -> tuple[str, int] | None:
    host, colon, port = address_of(error).rpartition(":")
    return (host, int(port)) if colon and port.isdecimal() else None


def _unchecked() -> ssl.SSLContext:
    """For a handshake in which nothing is said that only the right server may know."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _answers_tls(host: str, port: int) -> bool:
    """Whether somebody there takes part in a handshake."""
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            _, writer = await open_stream(host, port, ssl=_unchecked())
    except ssl.SSLError as refusal:
        # One that wants our certificate says so in TLS.
        return "ALERT" in (refusal.reason or "")
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def _wants_certificate(host: str, port: int) -> bool:
    """Whether somebody there ends a connection for want of a certificate, behind the handshake."""
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            reader, writer = await open_stream(host, port, ssl=_unchecked())
            try:
                await reader.read(1)
            finally:
                writer.transport.abort()
    except ssl.SSLError as refusal:
        return "CERTIFICATE_REQUIRED" in (refusal.reason or "")
    except (OSError, TimeoutError):
        pass
    return False


async def _answers_plainly(host: str, port: int) -> bool:
    """Whether somebody there answers a PING in anything else than TLS."""
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            with contextlib.closing(writer):
                writer.write(b"PING\r\n")
                # TLS answers with an alert.
                return await reader.read(1) not in (b"", b"\x15", b"\x16")
    except (OSError, TimeoutError):
        return False


async def _mode(pool: redis.asyncio.ConnectionPool) -> str:
    """What a server says that it is: `standalone`, `cluster` or `sentinel`; empty if nothing."""
    # A Sentinel has no databases, and fails on a number of one.
    options: dict[str, Any] = {**pool.connection_kwargs, "db": 0, "max_connections": 1}
    look = WirePool(connection_class=pool.connection_class, **options)
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            (reply,) = await look.ask([("INFO", "server")])
    except (redis.exceptions.RedisError, OSError, TimeoutError):
        return ""
    finally:
        await look.disconnect()
    lines = reply.decode(errors="replace").split() if isinstance(reply, bytes) else []
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    return mode_of(told)
