"""The loader of the Lua scripts: headers, includes, names instead of positions.

A script file starts with its contract, which is read by machines too::

    -- One sentence that says what the script does.
    --
    -- KEYS: run, events
    -- ARGV: op, spec_version, chunks...
    -- Returns: what comes back.
    --
    -- @include lib/log

`KEYS` and `ARGV` name the arguments in order; a last `ARGV` name that ends in `...` takes
all that is left, as a Lua table. The loader turns the names into locals in front of the
code, so that neither the Lua nor the Python side ever counts positions. Files under
`lib/` declare local functions and constants only, and are pasted in front of the script, each
once, behind those that it includes itself. What the script has no way to reach is left out, its
lines empty: the server would make a closure of each function at every call. For the same reason
a function below a line `-- @deferred` is made where it is called, in front of the statement that
calls it, which begins on the line of the call: most calls of the script do not get there. What is
reached only by way of such functions goes into them, and one that only another one calls is made
within that. Where several of them reach a function each has its own; what is no function and not
in capitals is one variable for all of them.

A script that applies the events of others calls their own scripts. A line `-- @event
events/step_created` makes a function of that file, `step_created`. Its parameters are what the
header of the file names, in order, and the script's own header does not: what both name is one
thing. Keys must be named by both.

The name `resend` is the connection's to fill: `1` when it sends a call again whose reply was
lost, else empty. A line `-- @unwaited` marks a script that only reads, or whose writes may be
lost without harm: a lease that is gone is a message delivered again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from redis_world.errors import ScriptError

__all__ = ["Argument", "Script", "ScriptLibrary", "default_library", "origins", "script_root"]

_INCLUDE = re.compile(r"^--\s*@include\s+(\S+)\s*$")
_EVENT = re.compile(r"^--\s*@event\s+(\S+)\s*$")
_UNWAITED = "-- @unwaited"
_DEFERRED = "-- @deferred"
_MARKER = "-- file: "
_ARGUMENTS = "-- arguments"
# What is made where it is called has names of its own for what its caller has names for, too.
_SHADOWS = ("-- luacheck: push", "-- luacheck: ignore 43")
_SHADOWS_NO_MORE = "-- luacheck: pop"
_DECLARATION = re.compile(r"^--\s*(KEYS|ARGV|Returns):\s*(.*)$")
_NAME = re.compile(r"^[a-z][a-z0-9_]*(\.\.\.)?$")

_WORD = re.compile(r"(?<![\w)\]]\.)\b[A-Za-z_]\w*")
"""Names, but not those of fields: `string.find` is no `find`."""
_TOP_LEVEL = re.compile(r"^local (?P<function>function )?(?P<names>\w+(?: *, *\w+)*)")

_GOES_ON = re.compile(r"(?:and|or|not|then|elseif|until)\b|\W")
_IS_LEFT_OPEN = re.compile(r"(?:\b(?:and|or|not|return)|[,({\[=<>~+*/%^-]|(?<!\.)\.\.)$")
"""Of a line that goes on with a statement, and of one whose statement goes on behind it; as far as
that can be seen."""

_RESEND = "resend"

Argument = str | bytes | int | float

_Pick = Callable[[Mapping[str, Any]], Iterable[Any]]


def _picker(names: Sequence[str]) -> _Pick:
    """What takes the values of these names out of a mapping, in this order."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: [values[name] for name in names]


@dataclass(frozen=True, slots=True)
class Script:
    """One assembled script: its source, its SHA and the names of its arguments."""

    name: str
    """Path below the script folder, without the suffix: `events/step_created`."""
    summary: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    """Names of the fixed arguments, in order, without `resend`."""
    tail: str | None
    """Name of the variadic last argument, or None."""
    returns: str
    source: str
    sha: str = field(repr=False)
    resend_at: int | None
    """The place of `resend` in an arranged row; None when the script does not ask."""
    waited: bool
    """Whether the World's `durability` is of concern to what the script writes."""
    times: Mapping[bytes, int] = field(default_factory=dict)
    """Status -> the place of the server's time in the answer, for those that carry it: `now`,
    and the `at` of what was written just now."""
    evalsha: tuple[Argument, ...] = field(init=False, repr=False, compare=False)
    """What stands in front of its keys, in the command that calls it."""
    _pick_keys: _Pick = field(init=False, repr=False, compare=False)
    _pick_args: _Pick = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        evalsha = (b"EVALSHA", self.sha.encode(), len(self.keys))
        object.__setattr__(self, "evalsha", evalsha)
        object.__setattr__(self, "_pick_keys", _picker(self.keys))
        object.__setattr__(self, "_pick_args", _picker(self.args))

    @property
    def names(self) -> frozenset[str]:
        """All that the header names."""
        return frozenset({*self.keys, *self.args} | ({self.tail} if self.tail else set()))

    def arrange(
        self,
        keys: Mapping[str, str | bytes],
        args: Mapping[str, Any],
    ) -> list[Argument]:
        """Put named arguments in the order of the header, ready for EVALSHA.

        Args:
            keys: a key for each name after `KEYS:`.
            args: a value for each name after `ARGV:`; for the variadic one a sequence.

        Raises:
            ScriptError: a name is missing or unknown.
        """
        try:
            row: list[Any] = [len(self.keys), *self._pick_keys(keys), *self._pick_args(args)]
            expected = len(self.args)
            if self.resend_at is not None:
                row.insert(self.resend_at, b"")
            if self.tail is not None:
                row += args[self.tail]
                expected += 1
        except KeyError as missing:
            raise ScriptError(f"{self.name}: no value for {missing}") from None
        if len(keys) != len(self.keys) or len(args) != expected:
            unknown = {*keys, *args} - {*self.keys, *self.args, self.tail}
            raise ScriptError(f"{self.name}: unknown argument names {sorted(map(str, unknown))}")
        return row

    def words(self, row: Sequence[Any], *, without: frozenset[str]) -> list[Any]:
        """The arguments of a row in the order of the header, but those of some names."""
        args = zip(self.args, row[len(self.keys) :], strict=True)
        return [word for name, word in args if name not in without]

    def named(self, words: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Keys and arguments in the order of the header, by their names.

        Raises:
            ScriptError: there are too few or too many of them.
        """
        if self.resend_at is not None:
            words = [*words[: self.resend_at - 1], *words[self.resend_at :]]
        first, end = len(self.keys), len(self.keys) + len(self.args)
        if len(words) < end or (len(words) > end and self.tail is None):
            raise ScriptError(f"{self.name}: {len(words)} words for {end} names")
        args: dict[str, Any] = dict(zip(self.args, words[first:end], strict=True))
        if self.tail is not None:
            args[self.tail] = list(words[end:])
        return dict(zip(self.keys, words[:first], strict=True)), args


class ScriptLibrary:
    """All scripts below one folder, assembled on first use.

    Args:
        root: the folder that holds `lib/`, `events/` and so on.
        overrides: include name -> source text that replaces the file, for example
            `{"lib/clock": ...}` for a clock that a test sets.
    """

    def __init__(self, root: Path, overrides: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._overrides = dict(overrides or {})
        self._texts: dict[str, str] = {}
        self._scripts: dict[str, Script] = {}
        self._all: tuple[Script, ...] | None = None

    def __getitem__(self, name: str) -> Script:
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self._assemble(name)
        return script

    def __iter__(self) -> Iterator[Script]:
        """Every script, libraries left out, by name."""
        if self._all is None:
            # Once: each World that is opened looks at all of them.
            paths = sorted(self._root.rglob("*.lua"))
            names = [path.relative_to(self._root).with_suffix("").as_posix() for path in paths]
            self._all = tuple(self[name] for name in names if not name.startswith("lib/"))
        return iter(self._all)

    def _read(self, name: str, chain: tuple[str, ...]) -> str:
        if name in self._overrides:
            return self._overrides[name]
        if name in self._texts:
            return self._texts[name]
        try:
            text = (self._root / f"{name}.lua").read_text(encoding="utf-8")
        except FileNotFoundError:
            asked_by = f" (included by {chain[-1]})" if chain else ""
            raise ScriptError(f"no script {name}.lua below {self._root}{asked_by}") from None
        return self._texts.setdefault(name, text)

    def _resolve(self, name: str, chain: tuple[str, ...], done: dict[str, str]) -> None:
        """Collect the libraries that `name` needs into `done`, dependencies first."""
        if name in chain:
            raise ScriptError(f"include cycle: {' -> '.join([*chain, name])}")
        if name in done:
            return
        text = self._read(name, chain)
        mentioned: set[str] = set()
        for included in _matches(_INCLUDE, text):
            if not included.startswith("lib/"):
                raise ScriptError(f"{name}: {included} is not a library: only lib/ is included")
            if included in mentioned:
                raise ScriptError(f"{name}: {included} is included twice")
            mentioned.add(included)
            self._resolve(included, (*chain, name), done)
        done[name] = text

    def _assemble(self, name: str) -> Script:
        parts: dict[str, str] = {}
        self._resolve(name, (), parts)
        own = parts.pop(name)
        summary, declared = _parse_header(name, own)
        keys, key_tail = _parse_names(name, "KEYS", declared["KEYS"])
        args, tail = _parse_names(name, "ARGV", declared["ARGV"])
        if key_tail is not None:
            raise ScriptError(f"{name}: KEYS can't be variadic")
        if not keys:
            raise ScriptError(f"{name}: a script needs at least one key, which routes it")
        if len({*keys, *args, tail}) != len(keys) + len(args) + 1:
            raise ScriptError(f"{name}: a name is declared twice")
        events: dict[str, str] = {}
        for each in _matches(_EVENT, own):
            if each in events:
                raise ScriptError(f"{name}: {each} is applied twice")
            self._resolve(each, (name,), parts)
            events[each] = parts.pop(each)
        lines = [f"local {key} = KEYS[{i}]" for i, key in enumerate(keys, 1)]
        lines += _unpacked(args)
        if tail is not None:
            # A loop: unpack ends where Lua's stack does, at some thousands.
            first = len(args) + 1
            lines.append(f"local {tail} = {{}}")
            lines.append(f"for i = {first}, #ARGV do {tail}[i - {first - 1}] = ARGV[i] end")
        libraries = _Libraries(parts, "\n".join([own, *events.values()]))
        for each, text in events.items():
            body = libraries.with_deferred(each, text.rstrip().split("\n"))
            lines += _as_function(each, text, body, keys, {*args, tail})
        source = "\n".join(
            [
                *libraries.in_front(),
                _ARGUMENTS,
                *lines,
                f"{_MARKER}{name}",
                *libraries.with_deferred(name, own.rstrip().split("\n")),
                "",
            ]
        )
        sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        resend_at = 1 + len(keys) + args.index(_RESEND) if _RESEND in args else None
        given = tuple(arg for arg in args if arg != _RESEND)
        returns = declared["Returns"]
        waited = _UNWAITED not in own.splitlines()
        times = _times_of(returns)
        return Script(
            name, summary, keys, given, tail, returns, source, sha, resend_at, waited, times
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Declaration:
    """One function or constant of a library: its place, and the words in it."""

    library: str
    names: tuple[str, ...]
    first: int
    end: int
    words: frozenset[str]
    is_deferred: bool
    is_state: bool
    """Whether it is neither a function nor a constant, whose name is in capitals."""


@dataclass(frozen=True, slots=True)
class _Library:
    """A library's lines, its declarations in order, and the words of what is none."""

    lines: list[str]
    declarations: list[_Declaration]
    roots: list[frozenset[str]]


@cache
def _library(name: str, text: str) -> _Library:
    """Read a library; once, since most scripts have it."""
    library = _Library(text.rstrip().split("\n"), [], [])
    lines, first = library.lines, 0
    while first < len(lines):
        end = _end_of(lines, first)
        words = _words(lines[first:end])
        match = _TOP_LEVEL.match(lines[first])
        if match is None:
            library.roots.append(words)
        else:
            names = tuple(each.strip() for each in match["names"].split(","))
            is_deferred = _DEFERRED in lines[max(0, first - 1) : first]
            is_state = match["function"] is None and not match["names"].isupper()
            library.declarations.append(
                _Declaration(name, names, first, end, words, is_deferred, is_state)
            )
        first = end
    return library


class _Libraries:
    """The declarations of some libraries, and which of them reach which."""

    def __init__(self, libraries: Mapping[str, str], script: str) -> None:
        read = {name: _library(name, text) for name, text in libraries.items()}
        self.lines = {name: each.lines for name, each in read.items()}
        self.all = [found for each in read.values() for found in each.declarations]
        """In order: none reaches one that is behind it."""
        self._roots = [
            _words(script.split("\n")),
            *(w for each in read.values() for w in each.roots),
        ]
        self._named: dict[str, list[_Declaration]] = {}
        for found in self.all:
            for name in found.names:
                self._named.setdefault(name, []).append(found)
        at_hand = self._follow(self._roots, set(), into_deferred=False)
        # What is no function and no constant is one thing, whoever reaches it.
        state = {e for e in self._follow(self._roots, set(), into_deferred=True) if e.is_state}
        at_hand |= state | self._follow([e.words for e in state], set(), into_deferred=False)
        self._there = frozenset(each for each in at_hand if not each.is_deferred)

    def in_front(self) -> Iterator[str]:
        """The libraries, with empty lines for what the script has elsewhere or not at all."""
        for name, lines in self.lines.items():
            done = 0
            yield f"{_MARKER}{name}"
            for each in self.all:
                if each.library == name:
                    yield from lines[done : each.first]
                    if each in self._there:
                        yield from self.with_deferred(name, lines, each.first, each.end)
                    else:
                        yield from [""] * (each.end - each.first)
                    done = each.end
            yield from lines[done:]

    def with_deferred(
        self,
        name: str,
        lines: list[str],
        first: int = 0,
        end: int | None = None,
        there: frozenset[_Declaration] | None = None,
    ) -> Iterator[str]:
        """Lines of a file, with what is deferred in front of the first call of it in its block.

        Args:
            name: of the file.
            lines: all of it.
            first: the line to begin with.
            end: the line behind the last one.
            there: what has been made before; by default what stands in front of the script.
        """
        there = self._there if there is None else there
        indents: dict[str, int] = {}
        before = ""
        for place, line in enumerate(lines[first:end], first):
            code = line.lstrip()
            if code and not code.startswith("--"):
                indent = len(line) - len(code)
                indents = {each: its for each, its in indents.items() if its <= indent}
                for called in self._calls(line, there):
                    if called.names[0] not in indents:
                        if _GOES_ON.match(code) or _IS_LEFT_OPEN.search(before):
                            raise ScriptError(
                                f"{name}:{place + 1}: the statement that calls {called.names[0]},"
                                " which is deferred, has to begin on this line"
                            )
                        indents[called.names[0]] = indent
                        yield from self._definition(called, there)
                        yield f"{_MARKER}{name}:{place + 1}"
                before = code
            yield line

    def _calls(self, line: str, there: frozenset[_Declaration]) -> Iterator[_Declaration]:
        """What is deferred and named in a line, but what has been made before."""
        for word in _WORD.findall(line):
            for each in self._named.get(word, ()):
                if each.is_deferred and each not in there:
                    yield each

    def _definition(self, deferred: _Declaration, there: frozenset[_Declaration]) -> Iterator[str]:
        """A deferred function; what it needs and is not there stands behind its first line."""
        needed = self._follow([deferred.words], {*there, deferred}, into_deferred=False)
        own = [each for each in self.all if each in needed and not each.is_deferred]
        inside = there.union(own, (deferred,))
        lines = self.lines[deferred.library]
        yield from _SHADOWS
        yield f"{_MARKER}{deferred.library}:{deferred.first + 1}"
        yield lines[deferred.first]
        for each in own:
            yield f"{_MARKER}{each.library}:{each.first + 1}"
            yield from self.with_deferred(
                each.library, self.lines[each.library], each.first, each.end, inside
            )
        yield f"{_MARKER}{deferred.library}:{deferred.first + 2}"
        yield from self.with_deferred(
            deferred.library, lines, deferred.first + 1, deferred.end, inside
        )
        yield _SHADOWS_NO_MORE

    def _follow(
        self,
        words: Iterable[frozenset[str]],
        known: set[_Declaration],
        *,
        into_deferred: bool,
    ) -> set[_Declaration]:
        """What is reached by these words, but what is known."""
        found: set[_Declaration] = set()
        to_follow = [*words]
        while to_follow:
            for word in to_follow.pop():
                for each in self._named.get(word, ()):
                    if each not in found and each not in known:
                        found.add(each)
                        if into_deferred or not each.is_deferred:
                            to_follow.append(each.words)
        return found


def origins(source: str) -> Iterator[tuple[str, int] | None]:
    """For each line of an assembled script its file and its line there, from 1.

    The lines that name the arguments come from no file, nor do those that name files.
    """
    place: tuple[str, int] | None = None
    for text in source.splitlines():
        if text in {_ARGUMENTS, *_SHADOWS, _SHADOWS_NO_MORE}:
            place = None
        if text.startswith(_MARKER):
            name, _, line = text.removeprefix(_MARKER).partition(":")
            place = (name, int(line or 1))
            yield None
        else:
            yield place
            place = place and (place[0], place[1] + 1)


def _end_of(lines: list[str], first: int) -> int:
    """The line behind the statement, of no block, that begins at a line."""
    for place in range(first + 1, len(lines)):
        line = lines[place]
        if line.startswith(("end", "}")):
            return place + 1
        if line and not line[0].isspace():
            return place
    return len(lines)


def _words(lines: list[str]) -> frozenset[str]:
    code = (line for line in lines if not line.lstrip().startswith("--"))
    return frozenset(word for line in code for word in _WORD.findall(line))


def _parse_header(name: str, text: str) -> tuple[str, dict[str, str]]:
    """Read the comment block on top: the first sentence and the three declarations."""
    summary: list[str] = []
    declared: dict[str, str] = {}
    current: str | None = None
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        match = _DECLARATION.match(line)
        content = line[2:].strip()
        if match is not None:
            current = match[1]
            if current in declared:
                raise ScriptError(f"{name}: {current} is declared twice")
            declared[current] = match[2].strip()
        elif not content or content.startswith("@"):
            current = None
        elif current is not None:
            declared[current] = f"{declared[current]} {content}"
        elif not declared:
            summary.append(content)
    missing = [word for word in ("KEYS", "ARGV", "Returns") if word not in declared]
    if missing or not summary:
        raise ScriptError(f"{name}: the header lacks {', '.join(missing) or 'a first sentence'}")
    return " ".join(summary), declared


@cache
def _matches(pattern: re.Pattern[str], text: str) -> Sequence[str]:
    """What the lines of a directive name."""
    return [match[1] for line in text.splitlines() if (match := pattern.match(line))]


def _unpacked(names: Sequence[str]) -> Iterator[str]:
    """Lines that name arguments, all by one call: to look each of them up takes longer."""
    if names:
        yield f"local {names[0]}"
        yield from (f"  , {name}" for name in names[1:])
        yield f"  = unpack(ARGV, 1, {len(names)})"


def _as_function(
    name: str, text: str, body: Iterable[str], keys: Iterable[str], others: set[str | None]
) -> Iterator[str]:
    """The script of an event as a function of what its caller does not name."""
    _, declared = _parse_header(name, text)
    own_keys, _ = _parse_names(name, "KEYS", declared["KEYS"])
    own_args, tail = _parse_names(name, "ARGV", declared["ARGV"])
    if missing := sorted({*own_keys} - {*keys}):
        raise ScriptError(f"{name}: who applies it does not name its keys {missing}")
    if tail is not None:
        raise ScriptError(f"{name}: a script with a variadic argument can't be applied by others")
    parameters = [arg for arg in own_args if arg not in others]
    yield _ARGUMENTS
    yield f"local function {name.rpartition('/')[2]}("
    yield from (f"  {arg}," for arg in parameters[:-1])
    yield from (f"  {arg}" for arg in parameters[-1:])
    yield ")"
    yield f"{_MARKER}{name}"
    yield from body
    yield _ARGUMENTS
    yield "end"


def _times_of(returns: str) -> dict[bytes, int]:
    """The places of the server's time in what a script returns, by its status."""
    found: dict[bytes, int] = {}
    for answer in returns.split("|"):
        status, *words = answer.replace(",", " ").split() or [""]
        # Other answers have the `at` of what was written before.
        name = "at" if status == "OK" and "at" in words else "now"
        if name in words:
            found[status.encode()] = 1 + words.index(name)
    return found


def _parse_names(name: str, kind: str, text: str) -> tuple[tuple[str, ...], str | None]:
    names = [word.strip() for word in text.split(",")] if text else []
    for word in names:
        if not _NAME.match(word):
            raise ScriptError(f"{name}: {word!r} after {kind}: is not a name")
    if any(word.endswith("...") for word in names[:-1]):
        raise ScriptError(f"{name}: only the last name after {kind}: may be variadic")
    if names and names[-1].endswith("..."):
        return tuple(names[:-1]), names[-1].removesuffix("...")
    return tuple(names), None


def script_root() -> Path:
    """The folder of the scripts: inside an installed package, else at the top of a checkout."""
    packaged = Path(__file__).with_name("lua_scripts")
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "lua"


@cache
def default_library() -> ScriptLibrary:
    """The scripts that ship with this package, one shared library per process."""
    return ScriptLibrary(script_root())
