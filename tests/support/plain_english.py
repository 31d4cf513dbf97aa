"""The texts and names that users read, collected from the sources, and the words they avoid.

Collected are the documents, the texts of the package (each literal of more than one word, wherever
it is put together: errors, log lines, findings, help), the docstrings of public names and of
commands, and the names in logs and reports. Comments, and the docstrings of internal modules, are
for developers.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = [
    "BANNED",
    "MAX_WORDS",
    "NAMES_OF_THE_API",
    "PUBLIC_MODULES",
    "ROOT",
    "Text",
    "banned_words",
    "calls_of_loggers",
    "document_texts",
    "documents",
    "errors_of_input",
    "long_sentences",
    "names_of_module",
    "source_texts",
    "sources",
]

ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = ROOT / "src" / "redis_world"

MAX_WORDS = 30
"""Words of a sentence in a document: half of it is the aim, this is the limit."""

NAMES_OF_THE_API = frozenset({"to_wire", "from_wire"})
"""Public names that stay as they are: the wire format is a term of its own."""

PUBLIC_MODULES = (
    "__init__",
    "config",
    "errors",
    "world",
    "events/__init__",
    "models/base",
    "models/entities",
    "models/events",
    "models/results",
    "runs",
    "steps",
    "hooks",
    "waits",
    "queue",
    "streams",
    "worker/__init__",
    "worker/delivery",
    "vercel/__init__",
    "vercel/adapter",
    "checkup/__init__",
    "checkup/finding",
    "bench/__init__",
    "bench/limits",
    "bench/run",
    "bench/figures",
    "testing/__init__",
    "testing/clock",
    "testing/clusters",
    "testing/invariants/__init__",
    "testing/memory",
    "testing/plugin",
    "testing/proxy",
    "testing/reference/world",
    "testing/servers",
)
"""Modules whose public classes and functions users import or reach through a World."""

BANNED: dict[str, str] = {
    # Who does it? Redis, the worker, the caller.
    r"who(?:so)?ever|whatever|whichever": "say who or which",
    r"somebody|nobody|anybody": "say who: Redis, a worker, you",
    # Words of this project alone for things that have a name.
    r"hint(?:s|ed)?": "notification",
    # `owed:` is a key of the layout, which findings about raw keys name.
    r"debts?|ow(?:e|es|ing)|owed(?!:)": "pending wake-up",
    r"pays?": "clears, costs",
    r"(?:im)?patien(?:ce|t)": "retry deadline",
    r"wires?(?! (?:format|names?|codes?)\b)": "connection",
    r"crews?": "supervisor, workers",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:give|gives|gave|given|giving)(?: \w+)? back": "release, return",
    # Things don't speak, think or suffer.
    r"bears?|borne": "accepts, has",
    r"says|knows": "a thing does not speak or think: reports, has, contains",
    # Other words than the usual ones for time, place and belonging.
    r"(?<!left )behind(?! (?:a|the) (?:proxy|firewall|load balancer))": "after",
    r"in front of": "before",
    r"(?:the|a|its|their|each) begin": "start",
    r"(?:goes|go|went|going) on": "continues",
    r"lies|lie|lay": "is stored, is",
    r"(?<!there )(?:is|are) no(?! longer\b| such\b| more than\b)": "is not a, has no",
    r"(?:is|are|was|were) of(?: the| a| an| its| another)?": "belongs to, comes from",
    r"least of all": "minimum",
    r"and alike|or alike": "and similar",
    r"(?:by|of|on) (?:one's|their|its) own": "its own",
    r"till": "until",
    r"anew": "again",
    r"need not": "does not have to",
}
"""Patterns of whole words, in any case, and what to write instead."""

_WHAT = re.compile(r"(?:^|[.!?]\s+)(What [a-z][^.!?]*)(?![.!?]*\?)(?=[.!]|$)")
"""A sentence whose subject is a clause: `What fails is tried again.` Questions are none."""

_PATTERNS = [
    (re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead)
    for pattern, instead in BANNED.items()
]

_QUOTED = re.compile(r"``[^`]*``|`[^`]*`|\{[^{}]*\}|https?://\S+|--[\w-]+|\[/?\w+\]")
"""Names of options, methods and fields in a text: a check of names looks at those."""


@dataclass(frozen=True)
class Text:
    """A text, and where it stands."""

    path: Path
    line: int
    text: str

    @property
    def place(self) -> str:
        """Path and line, as editors open them."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def banned_words(text: str) -> list[str]:
    """Each banned word of a text, with what to write instead."""
    plain = " ".join(_QUOTED.sub("X", text).split())
    found = [
        f"{match.group()!r}: {instead}"
        for pattern, instead in _PATTERNS
        for match in pattern.finditer(plain)
    ]
    clauses = _WHAT.finditer(plain)
    return [*found, *(f"{match[1][:40]!r}: begin with who does what" for match in clauses)]


def sources() -> list[Path]:
    """All modules of the package."""
    return sorted(_PACKAGE.rglob("*.py"))


def _joined(node: ast.expr) -> str | None:
    """The text of a literal, with what an f-string fills in in braces."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_joined(part) or "{}" for part in node.values)
    return None


def _docstring(body: list[ast.stmt]) -> ast.Constant | None:
    """The literal that a body begins with."""
    first = body[0] if body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return first.value
    return None


def _is_command(node: ast.AST) -> bool:
    """Whether a function is a command: its docstring is its help."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr in {"command", "callback"}
        for each in node.decorator_list
    )


def _public_docstrings(tree: ast.Module, *, public: bool) -> Iterator[ast.Constant]:
    """Docstrings that users read: the public ones of a public module, and those of commands."""

    def of(body: list[ast.stmt], *, shown: bool) -> Iterator[ast.Constant]:
        for at, node in enumerate(body):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                own = shown and (not node.name.startswith("_") or node.name == "__init__")
                found = _docstring(node.body)
                if found is not None and (own or _is_command(node)):
                    yield found
                if isinstance(node, ast.ClassDef):
                    yield from of(node.body, shown=own)
            elif shown and at and isinstance(body[at - 1], ast.Assign | ast.AnnAssign):
                found = _docstring([node])
                if found is not None and not _is_private(body[at - 1]):
                    yield found

    module = _docstring(tree.body)
    if public and module is not None:
        yield module
    yield from of(tree.body, shown=public)


def _is_private(node: ast.stmt) -> bool:
    """Whether an assignment is of a name with an underscore in front."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return isinstance(target, ast.Name) and target.id.startswith("_")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def source_texts(path: Path) -> Sequence[Text]:
    """Literals of more than one word, and the docstrings that users read."""
    return [*_source_texts(path)]


def _source_texts(path: Path) -> Iterator[Text]:
    tree = _tree(path)
    docstrings = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    parts = {
        part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    lists = {
        node.func.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "split"
    }
    skipped = docstrings | parts | lists
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or node in skipped:
            continue
        text = _joined(node)
        if text is not None and " " in text.strip() and not _LUA.search(text):
            yield Text(path, node.lineno, text)
    module = path.relative_to(_PACKAGE).with_suffix("").as_posix()
    shown = _public_docstrings(tree, public=module in PUBLIC_MODULES)
    reexported = _docstrings_of(tree, _reexported().get(module, set()))
    for found in [*shown, *reexported]:
        for part in _parts(str(found.value)):
            yield Text(path, found.lineno, part)


@cache
def _reexported() -> dict[str, set[str]]:
    """Internal modules, and the names of theirs that public modules have in `__all__`."""
    found: dict[str, set[str]] = {}
    for public in PUBLIC_MODULES:
        tree = _tree(_PACKAGE / f"{public}.py")
        shown = {
            each.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            for each in ast.walk(node.value)
            if isinstance(each, ast.Constant)
        }
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("redis_world."):
                module = str(node.module).removeprefix("redis_world.").replace(".", "/")
                names = {each.name for each in node.names} & shown
                if names and module not in PUBLIC_MODULES:
                    found.setdefault(module, set()).update(names)
    return found


def _docstrings_of(tree: ast.Module, names: set[str]) -> Iterator[ast.Constant]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names:
            yield from _public_docstrings(ast.Module([node], []), public=True)


_LUA = re.compile(r"\bredis\.p?call\b|\blocal \w+|\bthen\b[^.]*\bend\b")
"""Scripts are literals, too."""

_ENTRY = re.compile(r"\n(?=    (?:\w+(?:, \w+)*): )")
"""Where an entry of `Args:` and its like begins."""


def _parts(docstring: str) -> Iterator[str]:
    """The paragraphs and entries of a docstring, without the code in it."""
    is_before_code = False
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        if is_before_code and paragraph.startswith("    "):
            continue
        is_before_code = paragraph.endswith("::")
        yield from _ENTRY.split(paragraph)


def _is_name(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def names_of_module(path: Path) -> Iterator[Text]:
    """Names that users meet.

    Public classes, methods, attributes and parameters of public modules; fields and events of log
    lines; names and figures of findings; options of commands.
    """
    tree = _tree(path)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        for keyword in node.keywords:
            if keyword.arg in {"extra", "figures"} and isinstance(keyword.value, ast.Dict):
                for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                    for each in (key, value):
                        if _is_name(each):
                            assert isinstance(each, ast.Constant)
                            yield Text(path, each.lineno, str(each.value))
            elif called == "Finding" and keyword.arg == "name" and _is_name(keyword.value):
                assert isinstance(keyword.value, ast.Constant)
                yield Text(path, keyword.value.lineno, str(keyword.value.value))
        if called in {"Option", "Argument"}:
            for each in node.args:
                if _is_name(each):
                    assert isinstance(each, ast.Constant)
                    yield Text(path, each.lineno, str(each.value))
    if path.relative_to(_PACKAGE).with_suffix("").as_posix() in PUBLIC_MODULES:
        yield from _definitions(path, tree.body)


def _definitions(path: Path, body: list[ast.stmt]) -> Iterator[Text]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("_") and node.name != "__init__":
                continue
            yield Text(path, node.lineno, node.name)
            if isinstance(node, ast.ClassDef):
                yield from _definitions(path, node.body)
            else:
                arguments = node.args
                for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
                    yield Text(path, each.lineno, each.arg)
        elif isinstance(node, ast.AnnAssign) and not _is_private(node):
            yield Text(path, node.lineno, ast.unparse(node.target))


_INPUT_ERRORS = frozenset(
    {"InvalidInputError", "InvalidEventError", "InvalidCursorError", "AttributeValidationError"}
)
_LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})


def errors_of_input(path: Path) -> Iterator[tuple[Text, bool]]:
    """The errors about bad input that a module makes, and whether each has a value in its text."""
    for node in ast.walk(_tree(path)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        text = _joined(node.args[0])
        if name in _INPUT_ERRORS and text is not None:
            yield Text(path, node.lineno, text), "{}" in text


def calls_of_loggers(path: Path) -> Iterator[tuple[Text, bool]]:
    """The log lines of a module, and whether each has an `event` among its fields."""
    for node in ast.walk(_tree(path)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "logger"
        ):
            fields = [keyword.value for keyword in node.keywords if keyword.arg == "extra"]
            has_event = any(
                not isinstance(each, ast.Dict) or "event" in map(_name_of, each.keys)
                for each in fields
            )
            yield Text(path, node.lineno, ast.unparse(node)), has_event


def _name_of(node: ast.expr | None) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def documents() -> list[Path]:
    """What users read beside the code. ARCHITECTURE.md is for developers."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


_LIST = re.compile(r"^\s*(?:[*+-]|\d+\.)\s+")


def document_texts(path: Path) -> Iterator[Text]:
    """Paragraphs, list entries, headings and cells of tables of a document; code is left out."""
    paragraph: list[str] = []
    begin = 0
    fence = ""

    def flush() -> Iterator[Text]:
        if paragraph:
            yield Text(path, begin, " ".join(paragraph))
            paragraph.clear()

    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        stripped = line.strip()
        if fence or stripped.startswith(("```", "~~~")):
            yield from flush()
            if not fence:
                fence = stripped[:3]
            elif stripped.startswith(fence):
                fence = ""
            continue
        if not stripped or stripped.startswith(("#", "|", "<", "---")) or _LIST.match(line):
            yield from flush()
        if not stripped or stripped.startswith("<"):
            continue
        if stripped.startswith("|"):
            for cell in stripped.strip("|").split("|"):
                yield Text(path, number, f"| {cell.strip()}")
        elif stripped.startswith("#"):
            yield Text(path, number, stripped)
        else:
            if not paragraph:
                begin = number
            paragraph.append(_LIST.sub("", stripped))
    yield from flush()


_SENTENCE = re.compile(r"(?<=[.!?])(?:\*\*)?\s+")


def long_sentences(text: str) -> list[str]:
    """Sentences that exceed the limit of words."""
    if text.startswith(("|", "#")):
        return []
    plain = _QUOTED.sub("X", text)
    found = []
    for sentence in _SENTENCE.split(plain):
        words = re.findall(r"[\w']+(?:[-/.][\w']+)*", sentence)
        if len(words) > MAX_WORDS:
            found.append(f"{len(words)} words: {' '.join(words[:8])} ...")
    return found
