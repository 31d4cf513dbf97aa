"""Payloads as they are shown: read with the codec of the Python SDK, or told by their size.

For showing only: no class of the application is looked up, and none of its code runs. So a value
of a class is shown as the data that was stored for it, and an error as its name and message.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

__all__ = ["chunk_payload", "failure_lines", "iso", "one_line", "printable", "shown"]

_PREFIX_BYTES: Final = 4
_MAX_NODES: Final = 1_000_000
"""What a payload may unfold to: a few bytes may name the same part again and again."""
_MAX_DEPTH: Final = 200
_MAX_CAUSES: Final = 8
_MAX_LINES: Final = 40
_FIRST_LINES: Final = 6
_MAX_COLUMNS: Final = 400
"""What a person reads of a traceback: its end, where the error is, and a little of its begin."""
_CAUSED: Final = "The above exception was the direct cause of the following exception:"
_MAX_BITS: Final = 10_000
"""Longer numbers are no texts in Python, unless it is told to."""
_BUILT_IN: Final = frozenset(
    {
        *("Date", "Set", "Map", "RegExp", "Object", "BigInt", "null", "ArrayBuffer", "DataView"),
        *("Int8Array", "Uint8Array", "Uint8ClampedArray", "Int16Array", "Uint16Array"),
        *("Float16Array", "Int32Array", "Uint32Array", "Float32Array", "Float64Array"),
        *("BigInt64Array", "BigUint64Array", "URL", "URLSearchParams"),
    }
)
"""Types that the codec reads itself."""


_OWN_NAMES: Final = {"RangeError": "ValueError", "ReferenceError": "NameError"}
"""What the SDK writes Python's errors as, where JavaScript has another name for one."""


class _UnreadableError(Exception):
    """It is not what the SDK writes, or too much to be shown."""


class _Error(dict[str, Any]):
    """An error that was stored, with `name` and `message`."""


class _Size(dict[str, int]):
    """What is shown of bytes: how many they are."""


class _Revivers(dict[str, Callable[[Any], Any]]):
    """What reads the types that the codec does not know: all of them, as plain data.

    The SDK's own ones look up classes of the application, which is not loaded here, and open
    streams.
    """

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 - of a dict
        if key in _BUILT_IN or key.startswith("Temporal."):
            return None
        return lambda value: _revived(key, value)


def _revived(tag: str, value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        return _Error({"name": _OWN_NAMES.get(tag, tag), **value})
    return value if isinstance(value, dict) else {tag: value}


def shown(value: Any) -> Any:
    """A value of the wire as JSON has it.

    Bytes are read with the codec of the Python SDK; what it can't read, or where it is not
    installed, is `{"bytes": <how many>}`. Times are ISO 8601 texts.
    """
    return _Showing(_payload).plain(value)


def one_line(value: Any) -> str:
    """A value of the wire in one line: compact JSON, an error as `name: message`."""
    return printable(_text(shown(value)))


def failure_lines(value: Any) -> list[str]:
    """An error of the wire for people: its traceback after those of its causes.

    Without a traceback it is the name and message, and nothing where it is no error that the SDK
    wrote. Long ones are cut in the middle.
    """
    error = shown(value)
    chain: list[_Error] = []
    while isinstance(error, _Error) and len(chain) < _MAX_CAUSES:
        chain.append(error)
        error = error.get("cause")
    lines: list[str] = []
    for each in reversed(chain):
        stack = each.get("stack")
        text = stack if isinstance(stack, str) and stack.strip() else _text(each)
        lines += ["", _CAUSED, ""] if lines else []
        lines += text.rstrip().splitlines()
    left_out = len(lines) - _MAX_LINES
    if left_out > 0:
        place = _FIRST_LINES
        lines[place : place + left_out] = [f"... {left_out} lines, see --json ..."]
    return [_cut(printable(line.expandtabs(4))) for line in lines]


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_COLUMNS else f"{line[:_MAX_COLUMNS]}..."


def printable(text: str) -> str:
    """Text in one line, without what a terminal would obey: tabs, line breaks, escapes."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def iso(moment: datetime | None) -> str:
    """A time as ISO 8601 with milliseconds, e.g. `2026-01-31T12:00:00.000Z`; empty for none."""
    if moment is None:
        return ""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def chunk_payload(chunk: bytes) -> bytes:
    """The payload in a chunk of a stream, which the SDK writes behind its length."""
    head, rest = chunk[:_PREFIX_BYTES], chunk[_PREFIX_BYTES:]
    framed = len(head) == _PREFIX_BYTES and int.from_bytes(head, "big") == len(rest)
    return rest if framed else chunk


# -- inside --------------------------------------------------------------------------------


class _Showing:
    """Makes plain data of one value, within limits; `of_bytes` says what bytes are shown as."""

    def __init__(self, of_bytes: Callable[[bytes], Any]) -> None:
        self._of_bytes = of_bytes
        self._left = _MAX_NODES

    def plain(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise _UnreadableError
        match value:
            case None | bool() | str():
                return value
            case int():
                return int(value) if value.bit_length() < _MAX_BITS else hex(value)
            case float():
                return value if math.isfinite(value) else str(value)
            case datetime():
                return iso(value)
            case bytes() | bytearray() | memoryview():
                return self._of_bytes(bytes(value))
            case Mapping():
                return self._mapping(value, depth)
            case list() | tuple() | set() | frozenset():
                return [self.plain(each, depth + 1) for each in value]
            case _:
                # JavaScript's undefined and the like.
                return str(value)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        items = [(key, self.plain(each, depth + 1)) for key, each in value.items()]
        if all(isinstance(key, str) for key, _ in items):
            return _Error(items) if isinstance(value, _Error) else dict(items)
        # JSON has no other keys than texts.
        return [[self.plain(key, depth + 1), each] for key, each in items]


def _size(data: bytes) -> Any:
    return _Size(bytes=len(data))


def _payload(data: bytes) -> Any:
    try:
        # Bytes inside of a payload are the application's own.
        return _Showing(_size).plain(_decoded(data))
    except Exception:  # noqa: BLE001 - whatever is wrong with it, its size can be told
        return _size(data)


def _decoded(data: bytes) -> Any:
    """Read what the SDK's codec wrote, compressed or not.

    Raises:
        Exception: of any kind: the SDK is not there, or this is something else, or encrypted.
    """
    from vercel.workflow._internal import compression, devalue, serialization

    prefix, body = data[:_PREFIX_BYTES], data[_PREFIX_BYTES:]
    if prefix in (serialization.GZIP, serialization.ZSTD):
        is_gzip = prefix == serialization.GZIP
        unpack = compression.decompress_gzip if is_gzip else compression.decompress_zstd
        data = unpack(body)
        prefix, body = data[:_PREFIX_BYTES], data[_PREFIX_BYTES:]
    if prefix != serialization.DEVALUE_V1:
        raise _UnreadableError
    # Not empty: the codec does not look into an empty mapping.
    return devalue.parse(body.decode(), _Revivers(Instance=dict))


def _text(value: Any) -> str:
    match value:
        case _Error():
            name, message = value.get("name", "Error"), value["message"]
            return f"{name}: {message}" if message else str(name)
        case _Size():
            return f"<{value['bytes']} bytes>"
        case list():
            return f"[{', '.join(map(_text, value))}]"
        case dict():
            return f"{{{', '.join(f'{json.dumps(k)}: {_text(v)}' for k, v in value.items())}}}"
        case _:
            return json.dumps(value, ensure_ascii=False)
