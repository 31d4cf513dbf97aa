"""Ports of the loopback interface."""

from __future__ import annotations

import socket

__all__ = ["free_port"]


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
