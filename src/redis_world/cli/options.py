"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer

from redis_world.errors import ConfigurationError

__all__ = ["Namespace", "Partitions", "Url", "needs_sdk", "world_options"]

Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="REDIS_WORLD_URL",
        help="Address of the server, e.g. redis://localhost:6379/0.",
    ),
]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        envvar="REDIS_WORLD_NAMESPACE",
        help="Namespace, the prefix of all keys. Default: world.",
    ),
]
Partitions: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        min=1,
        max=1024,
        # Read from the environment with the other options of the World, where it may be `none`.
        help="Number of partitions. It is fixed when the namespace is created. "
        "Default: REDIS_WORLD_PARTITIONS, or 1.",
    ),
]


def needs_sdk(error: ModuleNotFoundError) -> Exception:
    """What to tell when the Python SDK is not installed; another missing module is a bug."""
    if (error.name or "").partition(".")[0] != "vercel":
        return error
    return ConfigurationError(
        "this command needs the Python SDK: pip install 'redis-world[vercel]'"
    )


def world_options(
    url: str | None, namespace: str | None, partitions: int | None = None
) -> dict[str, Any]:
    """Keywords of a World for the options that were given; texts, as in the environment."""
    number = None if partitions is None else str(partitions)
    given = {"url": url, "namespace": namespace, "partitions": number}
    return {name: value for name, value in given.items() if value is not None}
