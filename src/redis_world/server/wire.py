"""Bodies of requests and replies: CBOR, and JSON for people (docs/http.md)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import cbor2

from redis_world.errors import InvalidInputError

__all__ = ["CBOR", "CBOR_SEQUENCE", "JSON", "decode", "encode"]

CBOR: Final = "application/cbor"
CBOR_SEQUENCE: Final = "application/cbor-seq"
JSON: Final = "application/json"

MAX_DEPTH: Final = 200
"""Levels of nested structures in a body. The World stores 300; the arguments around them count."""
_MAX_DIGITS: Final = 400
"""Of a number in JSON; the time for reading one grows with the square of its length."""
_BASE64: Final = "base64"
_REASON: Final = 200
_UNDEFINED: Final = b"\xf7"

_BYTES_TAG: Final = 64
"""Of bytes as some encoders write a Uint8Array."""


def _refuse(_decoder: Any) -> NoReturn:
    raise ValueError("this tag is not allowed")


# Decimal numbers, shared references, regular expressions, mails, addresses and the like: the World
# has no use for them, and some cost much or refer to themselves.
_REFUSED_TAGS: Final[Mapping[int, Callable[[Any], NoReturn]]] = dict.fromkeys(
    (4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 260, 261, 1004, 43000), _refuse
)
_CODEC_ERRORS: Final = (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError)


def _read_tag(*given: Any) -> bytes:
    # Versions of cbor2 differ in what else they give, and in which order.
    tag = next(each for each in given if isinstance(each, cbor2.CBORTag))
    if tag.tag == _BYTES_TAG and isinstance(tag.value, bytes):
        return tag.value
    raise ValueError(f"tag {tag.tag} is not allowed")


def decode(body: bytes, media_type: str) -> Any:
    """Read a body.

    Raises:
        InvalidInputError: it is malformed, nested too deeply, or has values that are not allowed.
    """
    reason = ""
    try:
        value = _decode_cbor(body) if media_type == CBOR else _decode_json(body)
    except _CODEC_ERRORS as error:
        reason = str(error)[:_REASON] or type(error).__name__
    # Not while the other is handled: it may have a secret in it.
    if reason:
        raise InvalidInputError(f"the body is not valid {media_type}: {reason}")
    return value


def _decode_cbor(body: bytes) -> Any:
    decoder_options: dict[str, Any] = {
        "tag_hook": _read_tag,
        "semantic_decoders": _REFUSED_TAGS,
        "max_depth": MAX_DEPTH,
    }
    value = cbor2.loads(body, **decoder_options)
    return _without_undefined(value) if _UNDEFINED in body else value


def _without_undefined(value: Any) -> Any:
    """What some languages have for "not there": absent in maps, null in lists."""
    if isinstance(value, dict):
        return {
            key: _without_undefined(each)
            for key, each in value.items()
            if each is not cbor2.undefined
        }
    if isinstance(value, list):
        return [None if each is cbor2.undefined else _without_undefined(each) for each in value]
    return value


def _read_int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return int(text)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _read_object(value: dict[str, Any]) -> Any:
    if len(value) == 1 and isinstance(text := value.get(_BASE64), str):
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"base64: {error}") from None
    return value


def _decode_json(body: bytes) -> Any:
    value = json.loads(
        body,
        object_hook=_read_object,
        parse_int=_read_int,
        parse_constant=_refuse_constant,
    )
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                deeper += each.values()
            elif isinstance(each, list):
                deeper += each
        if not deeper:
            return
        level = deeper
    raise ValueError(f"it is nested {MAX_DEPTH} levels deep or more")


def encode(value: Any, media_type: str) -> bytes:
    """Write a body: bytes and dates as the media type has them."""
    if media_type == CBOR:
        return cbor2.dumps(value)
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=True, separators=(",", ":"))
    # A lone surrogate has no UTF-8 form; JSON has an escape for it.
    return text.encode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    """A value of JSON: bytes as `{"base64": ...}`, dates as texts."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return {_BASE64: base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        moment = value.astimezone(UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
