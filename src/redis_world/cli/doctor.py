"""`redis-world doctor`: what is wrong with a server or a namespace, and how to fix it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from pydantic.alias_generators import to_camel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from redis_world.checkup import Finding, Level, check_up, worst
from redis_world.checkup.capacity import assess
from redis_world.cli import app
from redis_world.cli.inspect.common import refuse
from redis_world.cli.inspect.output import writing
from redis_world.cli.options import Namespace, Url, world_options
from redis_world.cli.plans import PARAMETERS, PlanError, parse_plan
from redis_world.config import ENVIRONMENT_PREFIX, WorldConfig, url_or_env
from redis_world.errors import ConfigurationError

__all__ = ["doctor"]

_EXIT_CODES: Final[dict[Level, int]] = {"warning": 1, "error": 2}
_STYLES: Final[dict[Level, str]] = {
    "ok": "green",
    "info": "cyan",
    "unknown": "magenta",
    "warning": "yellow",
    "error": "bold red",
}


@app.command()
def doctor(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            show_default=False,
            help=f"The plan of --plan. Names: {', '.join(PARAMETERS)}.",
        ),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Calculate the server time, memory and workers of a plan, without a server.",
        ),
    ] = False,
    url: Url = None,
    namespace: Namespace = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check a server and a namespace: report problems and how to fix them.

    doctor changes nothing. It reads further options, such as the
    durability, from the environment: REDIS_WORLD_<OPTION>. A namespace
    that does not exist is a warning if the server has other namespaces.

    With --plan, doctor does not connect to a server. It calculates from
    measured costs what a plan needs: --plan steps=10 payload=4KB
    runs_per_day=100000. A plan that does not fit is a warning or an error.

    Exit code: 0, no problems; 1, there are warnings; 2, there are
    errors, or the server can't be reached. "unknown" is what this user
    may not read. It does not change the exit code.

    Fields in a pipe: level, name, finding, advice.
    """
    if plan:
        findings = _calculate(words or [])
    elif words:
        refuse(f"{words[0]!r} is an extra argument: add --plan to calculate a plan")
    else:
        findings = _find(url, namespace)
    with writing():
        if as_json:
            typer.echo(json.dumps(_document(findings), indent=2))
        elif sys.stdout.isatty():
            _show(findings)
        else:
            for finding in findings:
                typer.echo("\t".join(map(_one_line, _columns(finding))))
    raise typer.Exit(_EXIT_CODES.get(worst(findings), 0))


def _find(url: str | None, namespace: str | None) -> list[Finding]:
    try:
        options = world_options(None, namespace)
        if f"{ENVIRONMENT_PREFIX}PARTITIONS" not in os.environ:
            options["partitions"] = None  # as many as the namespace has
        config = WorldConfig.from_env(**options)
        return asyncio.run(check_up(url_or_env(url), config=config))
    except ConfigurationError as error:
        # A finding like others: whoever reads the JSON need not know of another form.
        text = str(error)
        advice = "fix the option or its environment variable REDIS_WORLD_<OPTION>"
        return [Finding(name="configuration", level="error", text=text, advice=advice)]


def _calculate(words: Sequence[str]) -> list[Finding]:
    try:
        return assess(parse_plan(words))
    except PlanError as error:
        refuse(str(error))


def _document(findings: Sequence[Finding]) -> dict[str, Any]:
    level = worst(findings)
    items = [finding.model_dump() for finding in findings]
    for item in items:
        item["figures"] = {to_camel(name): value for name, value in item["figures"].items()}
    return {"level": level, "exitCode": _EXIT_CODES.get(level, 0), "findings": items}


def _columns(finding: Finding) -> tuple[str, str, str, str]:
    return finding.level, finding.name, finding.text, finding.advice


def _one_line(text: str) -> str:
    """Text as a field of a line: a server's error may have anything in it."""
    return " ".join(text.split())


def _show(findings: Sequence[Finding]) -> None:
    console = Console(highlight=False)
    arrow = "->" if console.options.ascii_only else "→"
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for each in findings:
        # Text, not markup: a server's error may have brackets in it.
        table.add_row(
            Text(each.level, style=_STYLES[each.level]), Text(each.name), Text(each.text)
        )
        if each.advice and each.level != "ok":
            table.add_row("", "", Text(f"{arrow} {each.advice}", style="dim"))
    console.print(table)
    console.print()
    console.print(_summary(findings))


def _summary(findings: Sequence[Finding]) -> Text:
    counts = Counter[str](finding.level for finding in findings)
    said = [
        f"{counts[each]} {each}" + ("s" if counts[each] > 1 and each in _EXIT_CODES else "")
        for each in ("error", "warning", "unknown")
        if counts[each]
    ]
    if not said:
        return Text("All is well.", style=_STYLES["ok"])
    return Text(", ".join(said) + ".", style=_STYLES[worst(findings)])
