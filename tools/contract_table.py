"""Write docs/contract.md: which tests hold which part of the World contract.

A test names what it is about in comments right above it, or for a whole module behind its
docstring: `# Contract: 5.hook_created, 5.hook_conflict`. A test's own comments take the place of
its module's.

With `--check` nothing is written; what is wrong is told, with status 1: a part that no test names,
a name that is no part, a comment that belongs to no test, or a table that is not up to date.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = Path("docs/contract.md")

SECTIONS: Final[dict[str, str]] = {
    "1": "Ideas",
    "2": "Identity",
    "3": "Entities",
    "4": "Errors",
    "5": "Events",
    "6": "Reads",
    "7": "Queue",
    "8": "Streams",
}

PARTS: Final[dict[str, str]] = {
    "1.views": "entities are views of the log; only events change them",
    "1.rivals": "if several writers want the same thing, one wins and the others get an error",
    "1.ids of a run": "ids of steps, hooks and waits are unique within their run",
    "2.run ids": "form, origin and age of run ids",
    "2.slots": "event ids number the log without gaps",
    "2.message ids": "form of message ids; redeliveries keep them",
    "2.spec versions": "which versions are stored, read and refused",
    "3.run": "fields of runs",
    "3.step": "fields of steps",
    "3.hook": "fields of hooks, and which are absent",
    "3.wait": "fields of waits",
    "3.event": "fields of events",
    "3.times": "times of entities are the times of their events",
    "3.mirrored": "fields that a hook copies from its run",
    "3.resume capabilities": "fields that only a look-up by token returns",
    "3.event data": "event data is stored whole, unknown keys too",
    "3.unstored data": "data of start events that is stored elsewhere",
    "3.payloads": "payloads are opaque; an absent payload is not an empty one",
    "3.dates": "dates are UTC, in milliseconds",
    "3.resolve_data": "answers without payloads",
    "4.statuses": "HTTP status and wire name of each error",
    "4.conflicts": "the reasons of a conflict",
    "4.missing": "errors for missing entities, and their text",
    "4.too early": "the error has the whole seconds that are left",
    "4.bad input": "bad input is refused before any state is read, and stores nothing",
    "4.subclasses": "a value of a subclass counts as its base value, everywhere",
    "4.limits": "`max_payload_bytes` limits every part of a request",
    "4.secrets": "no error, log line or repr contains a password or a hook token",
    "4.unavailable": "which server failures may be retried",
    "4.no false success": "an answered write is stored",
    "5.order of checks": "which error wins if several apply",
    "5.nothing left behind": "a refused event changes nothing",
    "5.terminal runs": "what each event does on a finished run",
    "5.run_created": "creation of a run",
    "5.run_started": "start of a run, and its preload",
    "5.resilient start": "a start that creates its run",
    "5.ends of runs": "completed, failed and cancelled runs",
    "5.attr_set": "workflows and steps set attributes",
    "5.step_created": "creation of a step",
    "5.step_started": "attempts of a step",
    "5.lazy start": "a start that creates its step",
    "5.ends of steps": "completed and failed steps",
    "5.step_retrying": "a step that will be retried",
    "5.hook_created": "creation of a hook",
    "5.hook_conflict": "a token that another hook holds",
    "5.tokens across partitions": "one owner per token, even if its run is in another partition",
    "5.hook_received": "payloads sent to a hook",
    "5.hook_disposed": "the end of a hook",
    "5.wait_created": "creation of a wait",
    "5.wait_completed": "the end of a wait",
    "5.events of the World's own": "events that callers cannot create",
    "5.resume dedupe": "a repeated resume counts once",
    "5.hook retention": "hooks that outlive their run",
    "5.user data": "a run whose payloads are deleted when it ends",
    "5.run retention": "a run that is removed after its retention",
    "5.event ceiling": "how many events may start something new",
    "5.attributes": "limits of attributes",
    "5.since_cursor": "the events after a cursor, with every success",
    "5.event_count": "the events that a writer had not seen",
    "5.preload_events": "the log, returned with a resume",
    "5.occurred_at": "when an event happened, beside when it was written",
    "5.ignored parameters": "parameters that are accepted and have no effect",
    "5.capabilities": "what this World supports, and what it does not",
    "5.create_batch": "several events in one script",
    "5.batch outcomes": "each event of a batch has its own outcome",
    "5.batch refusals": "which batches are refused",
    "5.born running": "a step that is created and started in one batch",
    "6.runs": "one run, many runs, lists of runs",
    "6.wait_for_terminal": "waiting for a run to end",
    "6.steps and waits": "one step or wait, and all of a run",
    "6.events": "one event, all of a run, and those of a correlation id",
    "6.hooks": "by id, by token, of a run, of all",
    "6.cancel_many": "cancelling many runs at once",
    "6.pages": "limits, orders, cursors, the end of a listing",
    "6.event cursors": "event ids as cursors",
    "6.nothing there": "empty lists, and errors of single reads",
    "7.sending": "names of queues, payloads, headers",
    "7.delivery": "at least once; attempts are counted",
    "7.handlers": "what a handler receives, and what it may return",
    "7.continuation": "the message that replaces an acked one",
    "7.idempotency keys": "one outstanding message per key",
    "7.messages of steps": "one outstanding message per step, none for a finished one",
    "7.delay": "when a delayed message is due, to the millisecond",
    "7.claim": "which messages a claim takes",
    "7.lease": "leases, heartbeats, lost leases",
    "7.postpone": "messages that a worker returns without a failure, and who gets them then",
    "7.receipts": "an old receipt changes nothing",
    "7.failures": "back-off, and the delay that an error sets",
    "7.dead letters": "messages that failed too often, and their redrive",
    "7.wakes": "wake-ups that are merged into one",
    "7.health checks": "messages that belong to no run",
    "7.no run is left behind": "every live run is woken, even if its message was never sent",
    "8.writing": "chunks, their bytes and their order",
    "8.closing": "the end marker, and writes after it",
    "8.reading": "live readers, from any index to the end",
    "8.negative starts": "indexes counted from the present end",
    "8.lasting readers": "what does not end a stream",
    "8.pages": "pages of chunks",
    "8.listing": "names, lengths, unknown streams",
    "8.names": "the run of a stream, by the name of the stream alone",
    "8.empty chunks": "chunks without bytes",
    "8.streams and runs": "streams of runs in every status, of missing runs and of removed runs",
    "8.one request once": "a repeated write stores its chunk once",
}
"""Part -> what it is about. A part's name begins with its section's number."""

_TAG: Final = "# Contract: "
_MOST_NAMES: Final = 5
"""Tests of one module that are listed by name; of more, the number is told."""
_INTRODUCTION: Final = """\
# The contract and its tests

The contract is what a World guarantees to the runtimes of the Workflow SDKs. This page lists its
parts, and the tests that fail if redis-world breaks one.

`tools/contract_table.py` writes this page. It reads the comments `# Contract: <part>` above tests
and at the top of their modules, and reports parts without a test.
"""


@dataclass(frozen=True, slots=True)
class Test:
    """A test and the parts that it names, by itself or through its module."""

    module: str
    name: str
    parts: tuple[str, ...]


def read_module(path: Path, module: str) -> tuple[list[Test], list[str]]:
    """The tests of a module, and what is wrong with its comments."""
    text = path.read_text(encoding="utf-8")
    tags = _tags(text)
    problems = [
        f"{module}:{number}: no part of the contract is called {part!r}"
        for number, parts in tags.items()
        for part in parts
        if part not in PARTS
    ]
    tree = ast.parse(text)
    of_module: tuple[str, ...] = ()
    for number in [number for number in tags if number < _first_line(tree)]:
        of_module += tags.pop(number)
    tests = [
        Test(module, name, _take(tags, line) or of_module) for name, line in _functions(tree.body)
    ]
    problems += [f"{module}:{number}: there is no test below this" for number in tags]
    return tests, problems


def _tags(text: str) -> dict[int, tuple[str, ...]]:
    """The parts that comments name, by the lines on which these stand alone."""
    if _TAG not in text:
        return {}
    return {
        token.start[0]: tuple(part.strip() for part in token.string.removeprefix(_TAG).split(","))
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
        and token.string.startswith(_TAG)
        and token.line.lstrip().startswith(_TAG)
    }


def _take(tags: dict[int, tuple[str, ...]], line: int) -> tuple[str, ...]:
    """The parts that the comments right above a line name, which then are nobody else's."""
    parts: tuple[str, ...] = ()
    while line - 1 in tags:
        line -= 1
        parts = tags.pop(line) + parts
    return parts


def _first_line(tree: ast.Module) -> int:
    """Where the code begins: what stands in front of it is the module's."""
    body = tree.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return body[0].lineno if body else 1


def _functions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Every test with the line on which it, or its first decorator, begins."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            first = node.decorator_list[0] if node.decorator_list else node
            yield prefix + node.name, first.lineno


def read_tests(root: Path) -> tuple[list[Test], list[str]]:
    """All tests below a directory, and what is wrong with their comments."""
    tests: list[Test] = []
    problems: list[str] = []
    for path in sorted(root.glob("tests/**/test_*.py")):
        found, wrong = read_module(path, path.relative_to(root / "tests").as_posix())
        tests += found
        problems += wrong
    return tests, problems


def render(tests: Sequence[Test]) -> str:
    """The page."""
    totals = {
        module: sum(t.module == module for t in tests) for module in {t.module for t in tests}
    }
    lines = [_INTRODUCTION]
    for number, title in SECTIONS.items():
        lines += [f"## {number}. {title}", "", "| part | about | tests |", "| --- | --- | --- |"]
        for part, about in PARTS.items():
            section, _, name = part.partition(".")
            if section == number:
                cell = "<br>".join(_cells([t for t in tests if part in t.parts], totals))
                lines.append(f"| {name} | {about} | {cell} |")
        lines.append("")
    return "\n".join(lines)


def _cells(tests: Sequence[Test], totals: Mapping[str, int]) -> Iterator[str]:
    """The tests of a part, module by module."""
    for module in dict.fromkeys(test.module for test in tests):
        names = [test.name for test in tests if test.module == module]
        if len(names) <= _MOST_NAMES and len(names) < max(totals[module], 2):
            yield f"`{module}`: {', '.join(f'`{name}`' for name in names)}"
        elif len(names) == totals[module]:
            yield f"`{module}`: all {len(names)}"
        else:
            yield f"`{module}`: {len(names)} of {totals[module]}"


def check(root: Path) -> list[str]:
    """What is wrong: an empty list when every part has a test and the page is up to date."""
    tests, problems = read_tests(root)
    named = {part for test in tests for part in test.parts}
    problems += [
        f"no test names {part!r} ({about})" for part, about in PARTS.items() if part not in named
    ]
    page = root / TABLE
    if not page.exists() or page.read_text(encoding="utf-8") != render(tests):
        problems.append(f"{TABLE} is not up to date: run tools/contract_table.py")
    return problems


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        problems = check(ROOT)
        for problem in problems:
            sys.stdout.write(f"{problem}\n")
        return 1 if problems else 0
    if sys.argv[1:]:
        sys.stderr.write("usage: contract_table.py [--check]\n")
        return 2
    tests, problems = read_tests(ROOT)
    (ROOT / TABLE).write_text(render(tests), encoding="utf-8")
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
