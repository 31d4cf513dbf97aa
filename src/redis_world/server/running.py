"""Running the HTTP server: sockets, signals, and its end in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

import uvicorn
import uvloop

from redis_world import __version__
from redis_world.errors import ConfigurationError
from redis_world.server.app import App
from redis_world.server.protocol import BoundedProtocol
from redis_world.server.push import PushOptions
from redis_world.signals import HURRYING, stopped_by_signals

__all__ = ["Address", "PushOptions", "Tls", "bind", "check_tls", "new_loop", "serve"]

logger = logging.getLogger(__name__)

_BACKLOG: Final = 2048


@dataclass(frozen=True)
class Address:
    """Where the server listens."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name, which may lead anywhere


@dataclass(frozen=True)
class Tls:
    """The certificate of the server, and its key."""

    certfile: str | None = None
    keyfile: str | None = None


def check_tls(tls: Tls) -> None:
    """See that the certificate can be loaded.

    Raises:
        ConfigurationError: it can't; the text tells why.
    """
    if tls.certfile is None:
        if tls.keyfile is not None:
            raise ConfigurationError("--keyfile needs --certfile")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certfile, tls.keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"can't load the certificate {tls.certfile}: {error}") from None


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop for the server."""
    return uvloop.new_event_loop()


def bind(address: Address) -> socket.socket:
    """A socket that listens; processes may share it.

    Raises:
        ConfigurationError: the address can't be had; the text tells why.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigurationError(
            f"can't listen on {address.host}:{address.port}: {error}"
        ) from None
    listening.setblocking(False)  # noqa: FBT003 - socket's
    return listening


class _Server(uvicorn.Server):
    """Ends polls and live streams at the first signal, so that their requests finish."""

    def __init__(self, config: uvicorn.Config, app: App, *, is_supervised: bool) -> None:
        super().__init__(config)
        self._app = app
        self._is_supervised = is_supervised
        self._loop = asyncio.get_running_loop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at the first signal; at the second one at once.

        Uvicorn's own would raise the signal again at the end: a stop is no failure.
        """
        # A supervisor and the terminal may both send the signal of a single stop.
        stop = self.stop if self._is_supervised else self.stop_or_hurry
        with stopped_by_signals(stop), stopped_by_signals(self.hurry, HURRYING):
            yield

    async def on_tick(self, counter: int) -> bool:
        """Stop, too, when the application is told to."""
        self.should_exit = self.should_exit or self._app.stopping.is_set()
        return await super().on_tick(counter)

    def stop(self) -> None:
        """Begin the end, from any thread."""
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._app.stopping.set)

    def hurry(self) -> None:
        """End at once."""
        self.force_exit = True
        self.stop()

    def stop_or_hurry(self) -> None:
        """Begin the end; called again, end at once."""
        if self.should_exit:
            self.hurry()
        else:
            self.stop()


async def serve(
    app: App,
    listening: socket.socket,
    *,
    tls: Tls | None = None,
    idle_timeout: float = 75.0,
    shutdown_timeout: float = 20.0,
    is_supervised: bool = False,
) -> bool:
    """Serve until SIGTERM or SIGINT, or until `app.stopping` is set.

    Then it takes no new connections and no new polls. Running requests finish, for up to
    `shutdown_timeout` seconds.

    Args:
        app: the application.
        listening: the socket.
        tls: the certificate; None for plain HTTP.
        idle_timeout: seconds after which a connection without a request is closed.
        shutdown_timeout: seconds that running requests get.
        is_supervised: whether SIGTERM and SIGINT may arrive twice for one stop. Then SIGQUIT ends
            it at once.

    Returns:
        Whether it ended in good order, and not at once by a second signal.
    """
    tls = tls or Tls()
    options: dict[str, Any] = {"ssl_certfile": tls.certfile, "ssl_keyfile": tls.keyfile}
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # Who the client is does not matter: only its token does.
        proxy_headers=False,
        date_header=False,
        timeout_keep_alive=max(1, round(idle_timeout)),
        timeout_graceful_shutdown=max(1, round(shutdown_timeout)),
        backlog=_BACKLOG,
        **options,
    )
    server = _Server(config, app, is_supervised=is_supervised)
    host, port = listening.getsockname()[:2]
    logger.info(
        "serving on %s://%s:%d",
        "https" if tls.certfile else "http",
        host,
        port,
        extra={"event": "server.started", "host": host, "port": port, "version": __version__},
    )
    await server.serve(sockets=[listening])
    logger.info("server ended", extra={"event": "server.ended"})
    return not server.force_exit
