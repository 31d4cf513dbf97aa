"""`redis-world worker`: runs the workflows of some modules."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from redis_world.cli import app
from redis_world.cli.logs import LogFormat, LogLevel, report, set_up, show_worker
from redis_world.cli.options import Namespace, Url, needs_sdk, world_options
from redis_world.cli.processes import supervise
from redis_world.errors import ConfigurationError

if TYPE_CHECKING:
    from redis_world.vercel import VercelWorld

__all__ = ["load_modules", "worker"]

_INTERRUPTED: Final = 130
"""As shells have it for a command that SIGINT has ended."""


@app.command()
def worker(
    modules: Annotated[
        list[str], typer.Argument(help="Modules that hold workflows, e.g. app.workflows.")
    ],
    url: Url = None,
    namespace: Namespace = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Messages handled at a time, per process.")
    ] = 32,
    processes: Annotated[int, typer.Option(min=1, help="How many processes.")] = 1,
    lease: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a lost worker's messages are free.")
    ] = 60.0,
    shutdown_timeout: Annotated[
        float, typer.Option(min=0.0, help="Seconds that running handlers get at the end.")
    ] = 30.0,
    log_format: Annotated[
        LogFormat, typer.Option(help="Log lines as text, or as JSON objects.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(help="Show lines of all modules from this level up.", show_default="warning"),
    ] = None,
) -> None:
    """Consume messages and run the workflows of MODULES, until SIGTERM or Ctrl-C."""
    options = world_options(url, namespace)
    if log_level is None and logging.root.isEnabledFor(logging.INFO):
        # As `--verbose` in front of the command has it.
        log_level = LogLevel.INFO
    set_up(log_level or LogLevel.WARNING, log_format)
    if processes > 1:
        arguments = ["--concurrency", str(concurrency), "--lease", str(lease)]
        arguments += ["--shutdown-timeout", str(shutdown_timeout)]
        arguments += ["--log-format", log_format.value]
        if log_level is not None:
            arguments += ["--log-level", log_level.value]
        raise typer.Exit(supervise(["worker", *modules, *arguments], processes, options))
    adapter = _adapter(options, modules)
    if log_level is None:
        # What it does can be seen without asking: else nobody could tell waiting from hanging.
        show_worker()
    try:
        asyncio.run(_work(adapter, concurrency, lease, shutdown_timeout))
    except KeyboardInterrupt:
        # Ctrl-C stops a worker in another way: this one a handler has raised.
        report("a handler raised KeyboardInterrupt, so the worker stopped", event="interrupted")
        raise typer.Exit(_INTERRUPTED) from None


def _adapter(options: dict[str, Any], modules: list[str]) -> VercelWorld:
    """The World, with the registries of the modules."""
    try:
        from vercel.queue import DuplicateSubscriptionError

        from redis_world.vercel import pin_redis_world, use_redis_world
    except ModuleNotFoundError as error:
        raise needs_sdk(error) from None

    adapter = use_redis_world(**options)
    pin_redis_world(adapter)
    try:
        load_modules(modules)
    except DuplicateSubscriptionError as error:
        raise ConfigurationError(str(error)) from None
    finally:
        pin_redis_world(None)
    if not adapter.handlers:
        raise ConfigurationError(
            f"no workflows were found in {', '.join(modules)}: a worker needs at least one "
            "handler, which a `Workflows()` makes when its module is imported"
        )
    if adapter.world.is_memory:
        raise ConfigurationError(
            "a worker needs a server: the embedded store of a process is seen by nobody else. "
            "Give a --url, or set REDIS_WORLD_URL"
        )
    return adapter


async def _work(
    adapter: VercelWorld, concurrency: int, lease: float, shutdown_timeout: float
) -> None:
    try:
        await adapter.worker(
            concurrency=concurrency, lease=lease, shutdown_timeout=shutdown_timeout
        ).run()
    finally:
        await adapter.aclose()


def load_modules(modules: list[str]) -> None:
    """Import the modules that hold workflows; the World must be the process's already.

    Raises:
        ConfigurationError: a module does not exist.
    """
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds texts
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise ConfigurationError(
                f"there is no module {name!r}: modules are named as in `import {name}`, from "
                "the folder that this command is run in"
            ) from None
