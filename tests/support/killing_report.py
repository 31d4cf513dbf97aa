"""What a run looks like in the server, for those who have to find out why it does not end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import redis

from redis_world.keys import Keys
from support.killing_specs import Flow

__all__ = ["Entry", "describe_run", "read_log"]

Entry = dict[str, str]


def read_log(client: redis.Redis, keys: Keys, run_id: str) -> list[Entry]:
    """The log of a run as it lies there."""
    entries: Any = client.xrange(keys.of_run(run_id).events)
    return [{"slot": slot.decode(), **_text(fields)} for slot, fields in entries]


def describe_run(client: redis.Redis, keys: Keys, flow: Flow, run_id: str) -> str:
    """A run with its log, its messages and their bookkeeping; times are in ms from now."""
    of_run = keys.of_run(run_id)
    now = _now(client)
    lines = [f"{flow}", f"run {run_id}: {_text(client.hgetall(of_run.run))}"]
    for entry in read_log(client, keys, run_id):
        at = int(entry["at"]) - now
        lines.append(f"  {entry['slot']} {at} {entry['type']} {entry.get('corr', '')}")
    lines.append(f"bookkeeping: {_text(client.hgetall(of_run.queue))}")
    lines.append(f"held: {client.zrange(of_run.held, 0, -1)}")
    for index in (keys.owed, keys.parked):
        members: Any = client.zrange(index, 0, -1, withscores=True)
        lines += [
            f"{index.removeprefix(keys.base)}: {member.decode()} {score - now:.0f}"
            for member, score in members
            if member.decode().startswith(run_id)
        ]
    topics: Any = client.smembers(keys.topics)
    for topic in topics:
        lines += _messages_of(client, keys, topic.decode(), run_id, now)
    return "\n".join(lines)


def _now(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def _messages_of(
    client: redis.Redis, keys: Keys, topic: str, run_id: str, now: int
) -> Iterable[str]:
    for place in ("due", "leased", "held", "dead"):
        members: Any = client.zrange(keys.topic(topic, place), 0, -1, withscores=True)
        for member, score in members:
            message_id, _, owner = member.decode().partition("/")
            if owner == run_id:
                yield f"message {message_id}, {place} {score - now:.0f}"


def _text(fields: Mapping[Any, Any]) -> dict[str, str]:
    shown = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
    return {name: value for name, value in shown.items() if name != "body"}
