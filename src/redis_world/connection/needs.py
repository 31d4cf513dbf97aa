"""What the scripts need of a server: commands, and functions of Lua."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from redis_world.lua import Argument, ScriptLibrary

__all__ = ["PLAIN_COMMANDS", "Needs", "needs_of"]

PLAIN_COMMANDS: Final = (
    *("EVAL", "EVALSHA", "EXISTS", "HGET", "HMGET", "HSET", "INFO", "PUBLISH", "SCRIPT"),
    *("SMEMBERS", "SUBSCRIBE", "TIME", "UNSUBSCRIBE", "WAIT", "XRANGE", "ZCARD", "ZRANGE"),
)
"""Those that a World sends itself, beside its scripts."""

_CALL: Final = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'")
_LIBRARIES: Final = (
    "string",
    "table",
    "math",
    "redis",
    "cjson",
    "struct",
    "cmsgpack",
    "bit",
    "os",
)
_FUNCTION: Final = re.compile(rf"(?<![\w.])(?:{'|'.join(_LIBRARIES)})\.[a-zA-Z_]\w*")
_COMMENT: Final = re.compile(r"--.*")

_LOOK: Final = """\
local missing = {'MISSING'}
for _, name in ipairs(ARGV) do
  local found = redis.pcall('COMMAND', 'INFO', name)
  -- This user may not ask, or the server does not tell.
  if type(found) ~= 'table' or found.err then break end
  if not found[1] then missing[#missing + 1] = name end
end
local function need(name, get)
  local is_there, value = pcall(get)
  if not (is_there and value) then missing[#missing + 1] = name end
end
"""


@dataclass(frozen=True)
class Needs:
    """What some scripts need.

    Attributes:
        commands: in capitals.
        functions: of Lua's libraries: `string.format`.
    """

    commands: frozenset[str]
    functions: frozenset[str]

    def probe(self) -> tuple[Argument, ...]:
        """A command that asks a server what of it is missing; it reads and writes no key."""
        lines = [
            f"need('{name}', function() return {name} end)" for name in sorted(self.functions)
        ]
        source = "\n".join([_LOOK, *lines, "return missing"])
        return ("EVAL", source, 0, *sorted({*self.commands, *PLAIN_COMMANDS}))

    def missing(self, reply: Any) -> list[str]:
        """What the reply of a server to `probe` says that is missing."""
        if not isinstance(reply, list) or reply[:1] != [b"MISSING"]:
            return []
        return [name.decode(errors="replace") for name in reply[1:] if isinstance(name, bytes)]


def needs_of(library: ScriptLibrary) -> Needs:
    """What the scripts of a library call."""
    code = "\n".join(_COMMENT.sub("", script.source) for script in library)
    return Needs(frozenset(_CALL.findall(code)), frozenset(_FUNCTION.findall(code)))
