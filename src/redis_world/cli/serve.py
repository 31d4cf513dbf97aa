"""`redis-world serve`: the World over HTTP."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from redis_world.cli import app
from redis_world.cli.logs import LogFormat, LogLevel, set_up, show_server
from redis_world.cli.options import Namespace, Partitions, Url, world_options
from redis_world.cli.processes import starting, supervise
from redis_world.errors import ConfigurationError
from redis_world.worker import INTERRUPTED_EXIT_CODE
from redis_world.world import RedisWorld

if TYPE_CHECKING:
    from redis_world.server import Access, App
    from redis_world.server.push import PushOptions

__all__ = ["serve"]

TOKENS_VARIABLE: Final = "REDIS_WORLD_TOKENS"
_NEEDS_SERVER: Final = frozenset({"uvicorn", "httptools", "httpx", "uvloop"})


@app.command()
def serve(
    url: Url = None,
    namespace: Namespace = None,
    partitions: Partitions = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8470,
    processes: Annotated[
        int, typer.Option(min=1, help="Number of server processes. They share the port.")
    ] = 1,
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="File with bearer tokens: one per line, as `<token> <namespace> <role> "
            "[<requests at a time>]`. Changes apply without a restart. Default: "
            f"{TOKENS_VARIABLE}.",
        ),
    ] = None,
    certfile: Annotated[
        Path | None, typer.Option(help="TLS certificate, in PEM format. Default: no TLS.")
    ] = None,
    keyfile: Annotated[
        Path | None, typer.Option(help="Key of the certificate. Default: in the same file.")
    ] = None,
    max_body: Annotated[
        str, typer.Option(metavar="SIZE", help="Maximum size of a request body.")
    ] = "68MiB",
    max_requests: Annotated[
        int, typer.Option(min=1, help="Requests that each process handles at the same time.")
    ] = 2048,
    push: Annotated[
        str | None,
        typer.Option(
            help="Address of an app that can't poll, such as https://app.example.com. The server "
            "posts the messages of the namespace to its workflow routes.",
        ),
    ] = None,
    push_concurrency: Annotated[
        int, typer.Option(min=1, help="Messages that each process pushes at the same time.")
    ] = 32,
    push_timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that the app may take for a message.")
    ] = 900.0,
    push_queue_namespace: Annotated[
        str,
        typer.Option(
            envvar="WORKFLOW_QUEUE_NAMESPACE", help="Namespace in the queue names of the app."
        ),
    ] = "",
    shutdown_timeout: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds that running requests get to finish at shutdown."),
    ] = 20.0,
    log_format: Annotated[
        LogFormat, typer.Option(help="Format of log lines: text, or one JSON object each.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            help="Lowest level to log, for all modules. The server's own info lines are always "
            "shown unless you set this.",
            show_default="warning",
        ),
    ] = None,
    descriptor: Annotated[int | None, typer.Option("--descriptor", hidden=True)] = None,
) -> None:
    """Serve the World over HTTP until SIGTERM or Ctrl-C.

    The npm package `redis-world` connects the TypeScript SDK to it. See
    docs/http.md for the methods.

    Without tokens the server listens on loopback addresses only, and every
    request may do everything.
    """
    set_up(log_level or LogLevel.WARNING, log_format)
    if log_level is None:
        show_server()
    body = _bytes_of(max_body)
    options = world_options(url, namespace, partitions)
    with starting(is_supervised=descriptor is not None):
        running = _import_server()
        access = _access(tokens)
        address = running.Address(host, port)
        if access is None and not address.is_loopback:
            raise ConfigurationError(
                f"without tokens the server listens on loopback addresses only, not on {host}: "
                f"add --tokens, or set {TOKENS_VARIABLE}"
            )
        tls = running.Tls(_text(certfile), _text(keyfile))
        running.check_tls(tls)
        pushing = None
        if push is not None:
            pushing = running.PushOptions(
                push, push_concurrency, push_queue_namespace, push_timeout
            )
        application = _application(options, access, body, max_requests, pushing)
    if descriptor is None:
        listening = running.bind(address)
        if processes > 1:
            raise typer.Exit(_supervise(listening, processes, options))
    else:
        listening = socket.socket(fileno=descriptor)
    # What was imported stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=running.new_loop) as runner:
        is_in_order = runner.run(
            running.serve(
                application,
                listening,
                tls=tls,
                shutdown_timeout=shutdown_timeout,
                is_supervised=descriptor is not None,
            )
        )
    if not is_in_order:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)


def _supervise(listening: socket.socket, processes: int, options: dict[str, Any]) -> int:
    """Run the same command in several processes that share the socket."""
    arguments = [*sys.argv[1:], "--processes", "1", "--descriptor", str(listening.fileno())]
    with listening:
        descriptors = [listening.fileno()]
        return supervise(arguments, processes, options, descriptors=descriptors, what="server")


def _import_server() -> Any:
    try:
        from redis_world.server import running
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDS_SERVER:
            raise
        raise ConfigurationError(
            "this command needs an HTTP server: pip install 'redis-world[server]'"
        ) from None
    return running


def _access(file: Path | None) -> Access | None:
    """The tokens of the file and of the environment; None for none."""
    from redis_world.server import Access, parse_tokens

    given = os.environ.get(TOKENS_VARIABLE, "")
    tokens = parse_tokens(given, TOKENS_VARIABLE)
    if file is None and not tokens:
        if given.strip():
            raise ConfigurationError(f"{TOKENS_VARIABLE} has no token")
        return None
    access = Access(tokens, file)
    if not access.tokens:
        raise ConfigurationError(f"{file} has no token")
    return access


def _application(
    options: dict[str, Any],
    access: Access | None,
    body: int,
    max_requests: int,
    push: PushOptions | None,
) -> App:
    from redis_world.server import App, Limits, Role

    def make_world(**more: Any) -> RedisWorld:
        return RedisWorld.from_env(**{**options, **more})

    config = make_world().config
    limits = Limits(body=body, requests=max_requests)
    if push is not None and (access is None or not access.secrets_of(config.namespace, Role.APP)):
        raise ConfigurationError(
            f"--push needs a token of the role app for namespace {config.namespace!r}: the app "
            "accepts only what is signed with its token"
        )
    return App(make_world, access=access, namespace=config.namespace, limits=limits, push=push)


def _bytes_of(size: str) -> int:
    try:
        found = TypeAdapter(ByteSize).validate_python(size)
    except ValidationError:
        found = ByteSize(0)
    if not re.match(r"\s*\d", size) or found < 1:
        raise typer.BadParameter(f"{size!r} is not a size such as 68MiB", param_hint="--max-body")
    return found


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
