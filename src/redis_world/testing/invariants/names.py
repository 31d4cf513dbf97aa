"""The keys that a partition may have: kind, owner and type, from nothing but their names."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from redis_world.keys import escape

__all__ = ["PLACES", "STREAM_KINDS", "TYPES", "KeyName", "parse_key"]

PLACES: Final = ("due", "leased", "held", "dead")
"""The sets of a topic; a message is in one of them."""
_BESIDE: Final = ("declined", "sleepers")
"""Further sets of a topic."""

_RUN_PARTS: Final = {
    "attributes": "hash",
    "events": "stream",
    "payloads": "hash",
    "stripped": "stream",
    "claims": "hash",
    "ops": "hash",
    "hooks": "zset",
    "waits": "zset",
    "wait_states": "hash",
    "streams": "zset",
    "queue": "hash",
    "contents": "hash",
    "held": "zset",
}

_OF_PARTITION: Final = {
    "runs",
    "hooks",
    "topics",
    "parked",
    "owed",
    "lost",
    "finished",
    "retained",
    "cleaning",
    "reservations",
    "releases",
    "waited",
}

TYPES: Final = {
    "meta": "hash",
    "run": "hash",
    **{f"run:{part}": kind for part, kind in _RUN_PARTS.items()},
    "run:hook": "hash",
    "run:stream": "stream",
    "run:writers": "hash",
    "token": "hash",
    "hook": "zset",
    "stream": "string",
    "hooks": "zset",
    "runs": "zset",
    "runs:status": "zset",
    "runs:workflow": "zset",
    "topics": "set",
    "parked": "zset",
    "owed": "zset",
    "lost": "zset",
    "finished": "zset",
    "retained": "zset",
    "cleaning": "zset",
    "reservations": "zset",
    "releases": "zset",
    "waited": "hash",
    "tokens": "string",
    **{f"queue:{place}": "zset" for place in (*PLACES, *_BESIDE)},
    "queue:letters": "hash",
    "queue:message": "hash",
    "queue:key": "string",
}
"""Kind of key -> its type in Redis."""

STREAM_KINDS: Final = ("run:streams", "run:stream", "run:writers")
"""The keys that may come before their run, or without one, and expire then."""


class KeyName(NamedTuple):
    """What a key is.

    Attributes:
        kind: one of `TYPES`.
        owner: the run that it belongs to, the topic, or the workflow's name.
        name: of the hook, stream, message and so on, or an idempotency key.
    """

    kind: str
    owner: str = ""
    name: str = ""


def parse_key(text: str) -> KeyName | None:
    """What a key is, from its text behind the partition's prefix.

    Returns:
        None when nobody makes such a key.
    """
    try:
        match text.split(":"):
            case [kind] if kind in _OF_PARTITION:
                return KeyName(kind)
            case ["runs", "status", status]:
                return KeyName("runs:status", "", status)
            case ["runs", "workflow", workflow, status]:
                return KeyName("runs:workflow", _unescape(workflow), status)
            case ["tokens", "numbers"]:
                return KeyName("tokens")
            case ["token", digest]:
                return KeyName("token", "", digest)
            case ["hook", hook_id]:
                return KeyName("hook", "", _unescape(hook_id))
            case ["stream", name]:
                return KeyName("stream", "", _unescape(name))
            case ["run", run, *parts] if run:
                return _of_run(_unescape(run), parts)
            case ["queue", topic, *parts]:
                return _of_topic(topic, parts)
            case _:
                return None
    except ValueError:
        return None


def _of_run(run_id: str, parts: list[str]) -> KeyName | None:
    match parts:
        case []:
            return KeyName("run", run_id)
        case [part] if part in _RUN_PARTS:
            return KeyName(f"run:{part}", run_id)
        case ["hook" | "stream" as kind, name]:
            return KeyName(f"run:{kind}", run_id, _unescape(name))
        case ["stream", name, "writers"]:
            return KeyName("run:writers", run_id, _unescape(name))
        case _:
            return None


def _of_topic(topic: str, parts: list[str]) -> KeyName | None:
    match parts:
        case [place] if place in PLACES or place in _BESIDE:
            return KeyName(f"queue:{place}", topic)
        case ["letters"]:
            return KeyName("queue:letters", topic)
        case ["message", message_id]:
            return KeyName("queue:message", topic, message_id)
        case ["key", key]:
            return KeyName("queue:key", topic, _unescape(key))
        case _:
            return None


def _unescape(text: str) -> str:
    """User text from its form in a key.

    Raises:
        ValueError: no user text has this form.
    """
    plain = unquote_to_bytes(text).decode()
    if escape(plain) != text:
        raise ValueError(text)
    return plain
