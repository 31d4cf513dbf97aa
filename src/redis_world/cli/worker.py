"""`redis-world worker`: runs the workflows of some modules."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from redis_world.cli import app
from redis_world.cli.logs import LogFormat, LogLevel, set_up, show_worker
from redis_world.cli.options import Namespace, Partitions, Url, needs_sdk, world_options
from redis_world.cli.processes import starting, supervise
from redis_world.errors import ConfigurationError
from redis_world.worker import OwnProcess, Worker

if TYPE_CHECKING:
    from redis_world.vercel import VercelWorld

__all__ = ["load_modules", "worker"]

logger = logging.getLogger(__name__)

_FAREWELL_SECONDS: Final = 2.0
"""How long connections may take to close, and the process to end."""


@app.command()
def worker(
    modules: Annotated[
        list[str],
        typer.Argument(help="Python modules that define workflows, e.g. app.workflows."),
    ],
    url: Url = None,
    namespace: Namespace = None,
    partitions: Partitions = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Messages that each process handles at the same time.")
    ] = 32,
    processes: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 1,
    lease: Annotated[
        float,
        typer.Option(min=0.1, help="Seconds until other workers get the messages of a dead one."),
    ] = 60.0,
    max_replay: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Maximum seconds for one replay. If a replay blocks the process for longer, the "
            "process ends with exit code 70.",
        ),
    ] = 600.0,
    shutdown_timeout: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds that running handlers get to finish at shutdown."),
    ] = 20.0,
    log_cache: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Memory of each process for the logs of runs, e.g. 64MiB. With it a replay reads "
            "only new events. 0 turns it off.",
        ),
    ] = "64MiB",
    log_format: Annotated[
        LogFormat, typer.Option(help="Format of log lines: text, or one JSON object each.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            help="Lowest level to log, for all modules. The worker's own info lines are always "
            "shown unless you set this.",
            show_default="warning",
        ),
    ] = None,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run the workflows of MODULES until SIGTERM or Ctrl-C.

    At the first signal the worker takes no new messages and lets running
    handlers finish. A second signal ends the process at once, with exit code
    130.
    """
    _check_names(modules)
    log_bytes = _bytes_of(log_cache)
    options = world_options(url, namespace, partitions)
    if log_level is None and logging.root.isEnabledFor(logging.INFO):
        # As `--verbose` before the command has it.
        log_level = LogLevel.INFO
    set_up(log_level or LogLevel.WARNING, log_format)
    durations = {
        "lease": lease,
        "max_replay": max_replay,
        "shutdown_timeout": shutdown_timeout,
    }
    if processes > 1:
        arguments = ["--concurrency", str(concurrency), "--supervised"]
        for name, seconds in durations.items():
            arguments += [f"--{name.replace('_', '-')}", str(seconds)]
        arguments += ["--log-cache", log_cache, "--log-format", log_format.value]
        if log_level is not None:
            arguments += ["--log-level", log_level.value]
        raise typer.Exit(supervise(["worker", *modules, *arguments], processes, options))
    with starting(is_supervised=supervised):
        adapter = _adapter(options, modules)
    if log_level is None:
        # What it does can be seen without asking: else nobody could tell waiting from hanging.
        show_worker()
    working = adapter.worker(
        concurrency=concurrency,
        own_process=OwnProcess(is_supervised=supervised),
        log_cache=log_bytes,
        lease=lease,
        max_replay=max_replay,
        shutdown_timeout=shutdown_timeout,
    )
    _run(_work(adapter, working, is_supervised=supervised))


def _bytes_of(size: str) -> int:
    """A size such as `64MiB` in bytes."""
    try:
        return TypeAdapter(ByteSize).validate_python(size)
    except ValidationError:
        raise typer.BadParameter(
            f"{size!r} is not a size such as 64MiB or 0", param_hint="--log-cache"
        ) from None


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
            "handler. Create a `Workflows()` in one of these modules"
        )
    if adapter.world.is_memory:
        raise ConfigurationError(
            "a worker needs a server: other processes can't see the embedded store. "
            "Add --url, or set REDIS_WORLD_URL"
        )
    return adapter


async def _work(adapter: VercelWorld, working: Worker, *, is_supervised: bool) -> None:
    try:
        with starting(is_supervised=is_supervised):
            await adapter.world.open()
        await working.run()
    finally:
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await adapter.aclose()
        except TimeoutError:
            logger.warning(
                "connections did not close within %.0f s",
                _FAREWELL_SECONDS,
                extra={"event": "worker.not_closed"},
            )


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run something, and end the process soon behind it, whatever its tasks and threads do."""
    code = 1
    runner = asyncio.Runner()
    try:
        _run_to_its_end(runner.get_loop(), work)
        code = 0
    finally:
        # A handler that ignores its cancellation, or a thread that it has left, would keep it.
        end = threading.Timer(_FAREWELL_SECONDS, os._exit, [code])
        end.daemon = True
        end.start()
        runner.close()
        end.cancel()


def _run_to_its_end(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run the loop, which ends at a SystemExit or KeyboardInterrupt of any task, until then.

    The task of a handler, too, gets such an error: it counts as a failure of its message.
    """
    main = loop.create_task(work)
    while not main.done():
        try:
            loop.run_until_complete(main)
        except (KeyboardInterrupt, SystemExit) as error:
            if main.done() or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                raise  # the user's: the worker takes no signals yet, or any more
            logger.error(  # noqa: TRY400
                "the task of a handler raised %s",
                type(error).__name__,
                extra={"event": "handler.raised", "error": type(error).__name__},
            )
    main.result()


def _check_names(modules: Sequence[str]) -> None:
    """Refuse what is no module's name, such as a path.

    Raises:
        ConfigurationError: the text says what to write instead.
    """
    for name in modules:
        module, folder = _module_of(name)
        if module == name and all(name.split(".")):
            continue
        advice = "Write a name such as `app.workflows`"
        if module:
            advice = f"Write `{module}`, as in `import {module}`"
        if folder:
            advice += f", and run this command in {folder}"
        raise ConfigurationError(f"{name!r} is not the name of a Python module. {advice}")


def _module_of(name: str) -> tuple[str, str]:
    """The module that somebody means who writes this, and the folder to start in.

    Both are empty where nothing can be said.
    """
    is_path = any(each in name for each in (os.sep, os.altsep) if each)
    if not is_path:
        # As other tools name an object in a module.
        name = name.partition(":")[0]
    if not is_path and not name.endswith(".py"):
        return ".".join(filter(None, name.split("."))), ""
    path = PurePath(name)
    if path.suffix == ".py":
        path = path.parent if path.stem == "__init__" else path.with_suffix("")
    folder = ""
    if path.is_absolute() or ".." in path.parts:
        folder, path = str(path.parent), PurePath(path.name)
    if ".." in path.parts or not path.parts:
        return "", ""
    return ".".join(path.parts), folder


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
                f"there is no module {name!r}: modules are named as in `import {name}`. This "
                f"command looks for them in {os.getcwd()} and in the installed packages"  # noqa: PTH109 - a text
            ) from None
