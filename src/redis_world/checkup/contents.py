"""Is the namespace as it should be, and is somebody at work there?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import redis.asyncio

from redis_world.checkup.facts import Facts
from redis_world.checkup.finding import Finding, Level, amount, duration
from redis_world.connection import Command
from redis_world.connection.sender import Reply, round_trip
from redis_world.keys import SCHEMA
from redis_world.lua import ScriptLibrary

__all__ = [
    "LEASE_SECONDS",
    "Old",
    "Topic",
    "check_dead",
    "check_leases",
    "check_namespace",
    "check_sweeps",
    "check_topics",
    "count_old",
    "look_at_topics",
    "sweep_limit",
    "topic_names",
]

_DEFAULT_TOPIC: Final = "__wkf_workflow_"
"""Where the script that reads is tried as long as nothing was sent."""
_DUE_SECONDS: Final = 60.0
LEASE_SECONDS: Final = 60.0
"""For which a lease may be over: every claim frees those of its topic, and every sweep all."""
_SWEEPS: Final = 4
"""Sweep intervals after which somebody should have looked: workers do after one or two."""


class Topic(NamedTuple):
    """What is in a topic."""

    name: str
    ready: int
    delayed: int
    leased: int
    held: int
    dead: int
    oldest_due_age: float
    """Seconds; 0 when nothing is due."""
    listeners: int | None
    """How many processes wait for its hints; None when the server does not tell."""


class Old(NamedTuple):
    """How many members of an index are older than they should be."""

    old: int
    total: int
    age: float
    """Seconds since the oldest came in; less than 0: it is not to be looked at yet."""


# -- looking -------------------------------------------------------------------------------


def topic_names(facts: Facts) -> list[str]:
    """The topics that messages were ever sent to, sorted; none when they can't be read."""
    reply = facts.replies.get("SMEMBERS")
    return sorted(map(bytes.decode, reply)) if isinstance(reply, list | set) else []


async def look_at_topics(
    client: redis.asyncio.Redis, facts: Facts, library: ScriptLibrary, names: Sequence[str]
) -> tuple[list[Reply], list[Topic], int | None]:
    """Run the script that counts, for each topic, in one round trip.

    Returns:
        The replies of SCRIPT LOAD and of the script, for who judges whether scripts run; the
        topics; and the scripts' time in ms, None when none ran.
    """
    script = library["queue/stats"]
    commands: list[Command] = [("SCRIPT", "LOAD", script.source)]
    for name in names or [_DEFAULT_TOPIC]:
        sets = {part: facts.keys.topic(name, part) for part in script.keys}
        commands.append(("EVALSHA", script.sha, *script.arrange(sets, {})))
    channels = [facts.keys.queue_channel(name) for name in names]
    loaded, *replies = await round_trip(client, commands)
    (listeners,) = await round_trip(client, [("PUBSUB", "NUMSUB", *channels)])
    counts = (
        listeners[1::2] if isinstance(listeners, list | tuple) and names else [None] * len(names)
    )
    ran = [reply for reply in replies if not isinstance(reply, Exception)]
    topics = [
        _topic(name, reply, count)
        for name, reply, count in zip(names, replies, counts, strict=False)
        if not isinstance(reply, Exception)
    ]
    return [loaded, *replies], topics, int(ran[0][1]) if ran else None


def _topic(name: str, reply: Sequence[bytes], listeners: int | None) -> Topic:
    now, oldest = int(reply[1]), reply[7]
    ready, delayed, leased, held, dead = map(int, reply[2:7])
    age = max(0.0, (now - float(oldest)) / 1000) if oldest else 0.0
    return Topic(name, ready, delayed, leased, held, dead, age, listeners)


async def count_old(
    client: redis.asyncio.Redis, indexes: Sequence[str], now: int, seconds: float
) -> list[Old | Exception]:
    """Count the members of sorted sets that are older than so many seconds.

    Args:
        client: for it.
        indexes: keys of sets whose scores are times in ms.
        now: in ms.
        seconds: how old a member may be.
    """
    limit = f"({now - seconds * 1000:.0f}"
    commands: list[Command] = []
    for index in indexes:
        commands += [
            ("ZCOUNT", index, "-inf", limit),
            ("ZCARD", index),
            ("ZRANGE", index, 0, 0, "WITHSCORES"),
        ]
    replies = await round_trip(client, commands)
    return [_old(replies[i : i + 3], now) for i in range(0, len(replies), 3)]


def _old(replies: Sequence[Reply], now: int) -> Old | Exception:
    refusal = next((each for each in replies if isinstance(each, Exception)), None)
    if refusal is not None:
        return refusal
    count, total, oldest = replies
    since = float(oldest[0][1] if isinstance(oldest[0], tuple) else oldest[1]) if oldest else now
    return Old(count, total, (now - since) / 1000)


# -- judging -------------------------------------------------------------------------------


def check_namespace(facts: Facts) -> tuple[Finding, bool]:
    """Compare what the namespace was made as with what this World would make; is it readable?"""
    name = facts.config.namespace
    reply = facts.replies.get("HMGET")
    if not isinstance(reply, list):
        text = f"Namespace {name} can't be read: {reply}"
        return Finding(name="namespace", level="error", text=text, advice=facts.grant_all()), False
    schema, partitions = (None if each is None else each.decode() for each in reply[:2])
    figures: dict[str, Any] = {"schema": schema, "partitions": partitions}
    level: Level = "ok"
    text, advice = f"Namespace {name}: schema {schema}, partitions {partitions}", ""
    if schema is None:
        level, text = "info", f"Namespace {name} is new: nobody has opened it yet"
        advice = "is it the one that you mean? --namespace, or REDIS_WORLD_NAMESPACE, names it"
    elif schema != str(SCHEMA):
        level = "error"
        text = f"Namespace {name} has schema {schema}, this version writes schema {SCHEMA}"
        advice = f"install a version that knows schema {schema}, or use another --namespace"
    elif partitions != str(facts.config.partitions):
        level = "error"
        text = f"Namespace {name} was made with partitions={partitions}, not "
        text += str(facts.config.partitions)
        advice = f"open it with partitions={partitions}, or use another --namespace"
    finding = Finding(name="namespace", level=level, text=text, advice=advice, figures=figures)
    return finding, level == "ok"


def check_topics(facts: Facts, names: Sequence[str], topics: Sequence[Topic]) -> list[Finding]:
    """What there is to say of the messages of all topics."""
    if isinstance(facts.replies.get("SMEMBERS"), Exception):
        return [facts.unknown("queue", "Which topics there are", "SMEMBERS", "+@read")]
    if len(topics) < len(names):
        text = "What is in the queue can't be told: the scripts do not run"
        return [Finding(name="queue", level="unknown", text=text, advice="see scripts")]
    if not topics:
        return [Finding(name="queue", level="ok", text="No message was ever sent")]
    return [*map(check_queue, topics), check_dead(facts, topics)]


def check_queue(topic: Topic) -> Finding:
    """Whether what is due in a topic is taken."""
    counts = f"{topic.ready:,} ready, {topic.leased:,} leased, {topic.held:,} held, "
    text = f"{topic.name}: {counts}{topic.delayed:,} delayed"
    figures: dict[str, Any] = {"topic": topic.name, **topic._asdict()}
    del figures["name"], figures["dead"]
    if topic.oldest_due_age <= _DUE_SECONDS:
        return Finding(name="queue", level="ok", text=text, figures=figures)
    text += f"; the oldest has been due for {duration(topic.oldest_due_age)}"
    if topic.listeners:
        text += f"; listening: {amount(topic.listeners, 'process', 'processes')}"
        advice = "the workers hang or are too few: see their logs, raise --concurrency or "
        advice += "--processes"
    else:
        advice = "are workers running? `redis-world worker MODULE` starts one"
    return Finding(name="queue", level="warning", text=text, advice=advice, figures=figures)


def check_dead(facts: Facts, topics: Sequence[Topic]) -> Finding:
    """Whether messages were given up."""
    dead = {topic.name: topic.dead for topic in topics if topic.dead}
    total = sum(dead.values())
    if not total:
        return Finding(
            name="dead letters", level="ok", text="No message was given up", figures={"dead": 0}
        )
    where = ", ".join(f"{count:,} in {name}" for name, count in dead.items())
    namespace = facts.config.namespace
    default = type(facts.config).model_fields["namespace"].default
    option = "" if namespace == default else f" --namespace {namespace}"
    return Finding(
        name="dead letters",
        level="warning",
        text=f"{amount(total, 'message')} given up after too many failures ({where}): "
        "their runs stand still",
        advice=f"`redis-world dead list{option}` shows them; mend the cause, then redrive or "
        "purge them",
        figures={"dead": total},
    )


def check_leases(facts: Facts, found: Sequence[Old | Exception]) -> Finding:
    """Whether somebody sees to the messages of workers that are gone."""
    refusal = next((each for each in found if isinstance(each, Exception)), None)
    if refusal is not None:
        return facts.unknown("leases", "Which leases are over", "ZCOUNT", "+@read", refusal)
    count = sum(each.old for each in found if isinstance(each, Old))
    if not count:
        return Finding(
            name="leases", level="ok", text="No message of a lost worker waits", figures={"old": 0}
        )
    oldest = max(each.age for each in found if isinstance(each, Old))
    return Finding(
        name="leases",
        level="warning",
        text=f"{amount(count, 'lease')} ended more than {duration(LEASE_SECONDS)} ago, the "
        f"first {duration(oldest)} ago, and nobody has claimed since",
        advice="are workers running? `redis-world worker MODULE` starts one",
        figures={"old": count, "oldest_seconds": round(oldest)},
    )


def sweep_limit(facts: Facts) -> float:
    """Seconds after which a sweep should have found a run that waits for a message."""
    return _SWEEPS * facts.config.sweep_interval


def check_sweeps(facts: Facts, owed: Old | Exception, parked: Old | Exception) -> Finding:
    """Whether somebody sweeps: wakes runs and steps whose message nobody has sent."""
    if isinstance(owed, Exception) or isinstance(parked, Exception):
        refusal = owed if isinstance(owed, Exception) else parked
        return facts.unknown("sweeps", "Whether somebody sweeps", "ZCOUNT", "+@read", refusal)
    figures: dict[str, Any] = {
        "owed": owed.total,
        "owed_old": owed.old,
        "parked": parked.total,
        "parked_old": parked.old,
    }
    if not owed.old and not parked.old:
        text = "No run or step waits for a message that nobody sends"
        return Finding(name="sweeps", level="ok", text=text, figures=figures)
    oldest = max(each.age for each in (owed, parked) if each.old)
    return Finding(
        name="sweeps",
        level="warning",
        text=f"Runs wait for longer than {_SWEEPS} sweep intervals, the first for "
        f"{duration(oldest)}: nobody sweeps ({owed.old:,} owed a message, {parked.old:,} parked)",
        advice="are workers running? `redis-world worker MODULE` starts one, and each sweeps; "
        "`await world.sweep()` does it once",
        figures=figures,
    )
