"""Log lines of the command line, on stderr: text for people, JSON lines for collectors."""

from __future__ import annotations

import json
import logging
import sys
import threading
import warnings
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Final

from rich.console import Console

__all__ = ["LogFormat", "LogLevel", "report", "set_up", "show_server", "show_worker"]

logger = logging.getLogger("redis_world")

_OWN: Final = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}
"""What every record has: the rest came by `extra=`."""
_TOLD: Final = ("redis_world.worker", "redis_world.outages")
"""Loggers of the worker whose info lines are shown without being asked for."""
_HANDLER: Final = logging.StreamHandler(sys.stderr)


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least severe lines that are shown."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _TextFormatter(logging.Formatter):
    """One line, with the fields of `extra=` behind the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        fields = "".join(f" {name}={_word(value)}" for name, value in _extra(record).items())
        return super().formatMessage(record) + fields


class _JsonFormatter(logging.Formatter):
    """One JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        row: dict[str, Any] = {
            "timestamp": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        # A field of the user's must not take the place of one of these.
        row = {**_extra(record), **row}
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            row["stack"] = self.formatStack(record.stack_info)
        return json.dumps(row, default=_text, skipkeys=True)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: value
        for name, value in record.__dict__.items()
        if name not in _OWN and value is not None
    }


def _word(value: object) -> str:
    """A value in one word; quoted where it would be several."""
    text = _text(value)
    return text if text.isprintable() and not {*' "='} & {*text} and text else json.dumps(text)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a log line must not end what it tells of
        return f"<{type(value).__name__}>"


def set_up(level: LogLevel, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Send the log of this process to stderr, from this level up."""
    is_json = log_format is LogFormat.JSON
    if not logging.root.handlers:
        logging.root.addHandler(_HANDLER)
    elif _HANDLER not in logging.root.handlers:
        # Whoever calls the command from a program of his own has set up his log.
        return
    _HANDLER.setStream(sys.stderr)
    _HANDLER.setFormatter(_JsonFormatter() if is_json else _TextFormatter())
    logging.root.setLevel(level.upper())
    # What a warning says is logged too, in a line that fits the other ones.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"redis_world\..*")
    if is_json:
        logging.captureWarnings(capture=True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_of_thread


def show_worker() -> None:
    """Show what a worker does, on top of the level."""
    for name in _TOLD:
        logging.getLogger(name).setLevel(logging.INFO)


def show_server() -> None:
    """Show what a server does, on top of the level."""
    for name in ("redis_world.server", "redis_world.outages"):
        logging.getLogger(name).setLevel(logging.INFO)


def report(text: str, *, event: str) -> None:
    """Say why the command ends: the last line on stderr."""
    if _is_json():
        logger.critical(text, extra={"event": event})
        return
    Console(stderr=True, soft_wrap=True).print(
        f"redis-world: {text}", style="red", markup=False, highlight=False
    )


def _is_json() -> bool:
    return _HANDLER in logging.root.handlers and isinstance(_HANDLER.formatter, _JsonFormatter)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    logger.critical(
        "%s", kind.__name__, exc_info=(kind, error, traceback), extra={"event": "uncaught"}
    )


def _log_uncaught_of_thread(found: threading.ExceptHookArgs) -> None:
    error = found.exc_value or found.exc_type()
    _log_uncaught(found.exc_type, error, found.exc_traceback)
