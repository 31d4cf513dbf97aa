"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer

from redis_world.errors import ConfigurationError

__all__ = ["Namespace", "Url", "needs_sdk", "world_options"]

Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="REDIS_WORLD_URL",
        help="Where the server is, e.g. redis://localhost:6379/0.",
    ),
]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option("--namespace", envvar="REDIS_WORLD_NAMESPACE", help="Prefix of all keys."),
]


def needs_sdk(error: ModuleNotFoundError) -> Exception:
    """What to tell when the Python SDK is not installed; another missing module is a bug."""
    if (error.name or "").partition(".")[0] != "vercel":
        return error
    return ConfigurationError("this needs the Python SDK: pip install 'redis-world[vercel]'")


def world_options(url: str | None, namespace: str | None) -> dict[str, Any]:
    """Keywords of a World for the options that were given."""
    given = {"url": url, "namespace": namespace}
    return {name: value for name, value in given.items() if value is not None}
