"""Ports for servers of tests."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from redis_world.testing import ports, redis_server
from redis_world.testing.ports import free_port
from support.ports import reserved_port
from support.private_servers import any_kind


def listen(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def offer_only(port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave one port to choose from."""
    told = tmp_path / "range"
    told.write_text(f"{port + 1}\t60999\n")
    monkeypatch.setattr(ports, "_GIVEN_OUT", told)
    monkeypatch.setattr(ports, "_FIRST", port)


def test_a_port_is_none_that_connections_get(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "range"
    monkeypatch.setattr(ports, "_GIVEN_OUT", told)
    told.write_text("20000\t30000\n")
    assert all(ports._FIRST <= free_port() < 20000 for _ in range(200))


@pytest.mark.parametrize("text", [None, "", "some\tports\n"])
def test_a_port_where_the_system_does_not_tell_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    told = tmp_path / "range"
    monkeypatch.setattr(ports, "_GIVEN_OUT", told)
    if text is not None:
        told.write_text(text)
    assert all(ports._FIRST <= free_port() < 49152 for _ in range(200))


def test_a_taken_port_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with listen(0) as rival:
        taken = rival.getsockname()[1]
        offer_only(taken, monkeypatch, tmp_path)
        # The only one is taken: the system chooses.
        with listen(found := free_port()):
            assert found != taken


def test_a_port_where_connections_get_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "range"
    monkeypatch.setattr(ports, "_GIVEN_OUT", told)
    told.write_text("1024\t65535\n")
    with listen(free_port()):
        pass


def test_a_reserved_port_refuses_connections_and_is_given_to_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with reserved_port() as port:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        offer_only(port, monkeypatch, tmp_path)
        assert free_port() != port


def test_what_fails_beside_a_reserved_port_is_told() -> None:
    with pytest.raises(ConnectionResetError, match="its own"), reserved_port():
        raise ConnectionResetError("its own")


def test_a_server_takes_a_reserved_port_and_comes_back_to_it() -> None:
    with reserved_port() as port:
        for _ in range(2):
            with redis_server(any_kind(), args=("--port", str(port))):
                pass
