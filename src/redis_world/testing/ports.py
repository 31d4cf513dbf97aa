"""Ports of the loopback interface that nobody listens at."""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["free_port"]

_HOST = "127.0.0.1"
# Where Linux says which ports it gives to connections; the others are told by RFC 6335.
_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_GIVEN_OUT = 49152
_FIRST = 10240
_ATTEMPTS = 100


def free_port() -> int:
    """One that a server can be started at, and again after it was stopped.

    It is none that the system gives to outgoing connections: a client that tries to reach a
    stopped server at such a port may get that port for itself, and the server can't come back.
    """
    ports = range(_FIRST, _first_given_out())
    for port in random.sample(ports, min(_ATTEMPTS, len(ports))):
        if _is_free(port):
            return port
    return _given_out()


def _first_given_out() -> int:
    try:
        return int(_GIVEN_OUT.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _FIRST_GIVEN_OUT


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
        return True


def _given_out() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
