"""`redis-world inspect`: what is in a World, for people and programs. It changes nothing."""

from __future__ import annotations

from redis_world.cli import app
from redis_world.cli.inspect import parts, queue, run, runs, streams  # noqa: F401 - their commands
from redis_world.cli.inspect.common import commands

__all__ = ["commands"]

app.add_typer(commands)
