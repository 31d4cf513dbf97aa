"""Is the namespace as it should be, and is somebody at work there?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis_world.checkup.facts import Facts
from redis_world.checkup.finding import Finding, Level, amount, duration
from redis_world.checkup.nodes import Nodes
from redis_world.connection import Command
from redis_world.connection.namespaces import Namespaces
from redis_world.connection.redis_errors import first_refusal
from redis_world.connection.sender import Reply
from redis_world.keys import SCHEMA
from redis_world.lua import ScriptLibrary
from redis_world.rows import PostponedName, queue_counts

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
_POSTPONED_SECONDS: Final = 60.0
"""Workers of a deployment come one after another: until then some know what others don't."""
_NAMES_SHOWN: Final = 3
LEASE_SECONDS: Final = 60.0
"""For which a lease may be over: every claim frees those of its topic, and every sweep all."""
_START_WORKER: Final = "check that workers run: `redis-world worker MODULE` starts one"
_SWEEPS: Final = 4
"""Sweep intervals after which a worker should have swept: one of them does after one or two."""


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
    postponed: int
    longest_postponed: float
    """Seconds since the first of them was postponed first."""
    postponed_names: tuple[PostponedName, ...]
    listeners: int | None
    """How many processes wait for its notifications; None when the server does not tell."""


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
    nodes: Nodes, facts: Facts, library: ScriptLibrary, names: Sequence[str]
) -> tuple[list[Reply], list[Topic], int | None]:
    """Run the script that counts, for each topic in each partition.

    Returns:
        The replies of SCRIPT LOAD and of the script, for who judges whether scripts run; the
        topics; and the scripts' time in ms, None when none ran.
    """
    script = library["queue/stats"]
    wanted = [(name, keys) for name in names or [_DEFAULT_TOPIC] for keys in facts.partitions]
    commands: list[Command] = []
    for name, keys in wanted:
        sets = {part: keys.topic(name, part) for part in script.keys}
        args = {"base": keys.base, "topic": name}
        commands.append(("EVALSHA", script.sha, *script.arrange(sets, args)))
    loaded = await nodes.ask_each(("SCRIPT", "LOAD", script.source))
    replies = await nodes.ask(commands)
    counts = await _count_listeners(nodes, facts, names)
    if not all(isinstance(reply, list) for reply in replies):
        return [*loaded, *replies], [], None
    size = len(facts.partitions)
    topics = [
        Topic(name, *queue_counts(replies[i * size : (i + 1) * size]), counts[i])
        for i, name in enumerate(names)
    ]
    return [*loaded, *replies], topics, int(replies[0][1])


async def _count_listeners(nodes: Nodes, facts: Facts, names: Sequence[str]) -> list[int | None]:
    """How many processes wait for hints of each topic, at whichever node."""
    if not names:
        return []
    channels = [facts.partitions[0].queue_channel(name) for name in names]
    replies = await nodes.ask_each(("PUBSUB", "NUMSUB", *channels))
    if not all(isinstance(reply, list | tuple) for reply in replies):
        return [None] * len(names)
    return [sum(int(reply[1 + 2 * i]) for reply in replies) for i in range(len(names))]


async def count_old(
    nodes: Nodes, indexes: Sequence[str], now: int, seconds: float
) -> list[Old | Exception]:
    """Count the members of sorted sets that are older than so many seconds.

    Args:
        nodes: that have them.
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
    replies = await nodes.ask(commands)
    return [_old(replies[i : i + 3], now) for i in range(0, len(replies), 3)]


def _old(replies: Sequence[Reply], now: int) -> Old | Exception:
    refusal = first_refusal(replies)
    if refusal is not None:
        return refusal
    count, total, oldest = replies
    # Member and score, which some versions of redis-py put together and others do not.
    while oldest and isinstance(oldest[0], list | tuple):
        oldest = oldest[0]
    since = float(oldest[1]) if oldest else now
    return Old(count, total, (now - since) / 1000)


def _sum(found: Sequence[Old | Exception]) -> Old:
    """Several indexes as one, as old as the oldest."""
    known = [each for each in found if isinstance(each, Old)]
    return Old(
        sum(each.old for each in known),
        sum(each.total for each in known),
        max((each.age for each in known), default=0.0),
    )


# -- judging -------------------------------------------------------------------------------


def check_namespace(facts: Facts) -> tuple[Finding, bool]:
    """Compare what the namespace was made as with what this World would make; is it readable?"""
    name = facts.config.namespace
    reply = facts.replies.get("HMGET")
    if not isinstance(reply, list):
        text = f"Can't read namespace {name}: {reply}"
        return Finding(name="namespace", level="error", text=text, advice=facts.grant_all()), False
    schema, partitions = (None if each is None else each.decode() for each in reply[:2])
    figures: dict[str, Any] = {"schema": schema, "partitions": partitions}
    level: Level = "ok"
    text, advice = f"Namespace {name}: schema {schema}, partitions {partitions}", ""
    if schema is None:
        level, text, advice = _judge_missing(name, facts.others)
    elif schema != str(SCHEMA):
        level = "error"
        text = f"Namespace {name} has schema {schema}; this version uses schema {SCHEMA}"
        advice = f"install a version that uses schema {schema}, or use another --namespace"
    elif partitions != str(facts.config.partitions):
        level = "error"
        text = f"Namespace {name} was created with partitions={partitions}, not "
        text += str(facts.config.partitions)
        advice = f"open it with partitions={partitions}, or use another --namespace"
    finding = Finding(name="namespace", level=level, text=text, advice=advice, figures=figures)
    return finding, level == "ok"


def _judge_missing(name: str, others: Namespaces | None) -> tuple[Level, str, str]:
    """What to say of a namespace that does not exist.

    Without any namespace on the server nothing is wrong yet. Nor where the user may not look for
    others: the rights of such a user name the namespace. Beside others it may be mistyped.
    """
    text = f"Namespace {name} does not exist"
    if others is None:
        return "info", text, ""
    text += f". {others.describe(name)}"
    if not others.names and (others.is_complete or others.is_denied):
        return "info", text, "a worker creates its namespace when it starts"
    advice = "if the name is wrong, set --namespace or REDIS_WORLD_NAMESPACE; if it is right, "
    return "warning", text, advice + "start a worker, which creates the namespace"


def check_topics(facts: Facts, names: Sequence[str], topics: Sequence[Topic]) -> list[Finding]:
    """The findings on the messages of all topics."""
    if isinstance(facts.replies.get("SMEMBERS"), Exception):
        return [facts.unknown("queue", "the topics", "SMEMBERS", "+@read")]
    if len(topics) < len(names):
        text = "Can't count the messages: the scripts do not run"
        advice = "fix the finding `scripts` first"
        return [Finding(name="queue", level="unknown", text=text, advice=advice)]
    if not topics:
        return [Finding(name="queue", level="ok", text="No message was sent yet")]
    return [
        *map(check_queue, topics),
        check_postponed(topics),
        check_dead(facts, topics),
    ]


def check_queue(topic: Topic) -> Finding:
    """Whether what is due in a topic is taken."""
    counts = f"{topic.ready:,} ready, {topic.leased:,} leased, {topic.held:,} held, "
    text = f"{topic.name}: {counts}{topic.delayed:,} delayed"
    figures: dict[str, Any] = {"topic": topic.name, **topic._asdict()}
    for name in ("name", "dead", "postponed", "longest_postponed", "postponed_names"):
        del figures[name]
    if topic.oldest_due_age <= _DUE_SECONDS:
        return Finding(name="queue", level="ok", text=text, figures=figures)
    text += f"; the oldest has been due for {duration(topic.oldest_due_age)}"
    if topic.listeners:
        text += f"; {amount(topic.listeners, 'process listens', 'processes listen')}"
        advice = "see whether the workers hang (their logs), or raise --concurrency or --processes"
    else:
        advice = _START_WORKER
    return Finding(name="queue", level="warning", text=text, advice=advice, figures=figures)


def check_postponed(topics: Sequence[Topic]) -> Finding:
    """Whether there are messages of workflows or steps that no worker has."""
    total = sum(topic.postponed for topic in topics)
    longest = max((topic.longest_postponed for topic in topics), default=0.0)
    figures: dict[str, Any] = {"postponed": total, "longest_postponed": longest}
    if not total:
        text = "Workers have the workflow or step of every message"
        return Finding(name="postponed", level="ok", text=text, figures=figures)
    names = sorted(
        (name for topic in topics for name in topic.postponed_names), key=lambda name: -name.age
    )
    text = f"{amount(total, 'message')} postponed, no worker has the workflow or step: "
    text += ", ".join(f"{_wanted(name)} for {duration(name.age)}" for name in names[:_NAMES_SHOWN])
    if len(names) > _NAMES_SHOWN:
        text += " and others"
    if longest <= _POSTPONED_SECONDS:
        return Finding(name="postponed", level="ok", text=text, figures=figures)
    return Finding(
        name="postponed",
        level="warning",
        text=text,
        advice="start a worker with their module: `redis-world worker MODULE`. If your own "
        "handler postpones them, check why",
        figures=figures,
    )


def _wanted(name: PostponedName) -> str:
    if name.step_name is not None:
        return f"step {name.step_name}"
    return f"workflow {name.queue_name.partition('wkf_workflow_')[2]}"


def check_dead(facts: Facts, topics: Sequence[Topic]) -> Finding:
    """Whether there are dead letters."""
    dead = {topic.name: topic.dead for topic in topics if topic.dead}
    total = sum(dead.values())
    if not total:
        return Finding(
            name="dead letters", level="ok", text="No dead letters", figures={"dead": 0}
        )
    where = ", ".join(f"{count:,} in {name}" for name, count in dead.items())
    namespace = facts.config.namespace
    default = type(facts.config).model_fields["namespace"].default
    option = "" if namespace == default else f" --namespace {namespace}"
    return Finding(
        name="dead letters",
        level="warning",
        text=f"{amount(total, 'message')} failed too often ({where}): their runs are stuck",
        advice=f"see `redis-world dead list{option}`, fix the cause, then redrive or purge them",
        figures={"dead": total},
    )


def check_leases(facts: Facts, found: Sequence[Old | Exception]) -> Finding:
    """Whether workers take over the messages of lost workers."""
    refusal = first_refusal(found)
    if refusal is not None:
        return facts.unknown("leases", "the expired leases", "ZCOUNT", "+@read", refusal)
    leases = _sum(found)
    if not leases.old:
        return Finding(
            name="leases",
            level="ok",
            text="No message of a lost worker is waiting",
            figures={"old": 0},
        )
    return Finding(
        name="leases",
        level="warning",
        text=f"{amount(leases.old, 'lease')} expired more than {duration(LEASE_SECONDS)} ago, the "
        f"oldest {duration(leases.age)} ago: no worker has claimed since",
        advice=_START_WORKER,
        figures={"old": leases.old, "oldest_seconds": round(leases.age)},
    )


def sweep_limit(facts: Facts) -> float:
    """Seconds after which a sweep should have come, and found a run that waits for a message."""
    return _SWEEPS * facts.config.sweep_interval


def check_sweeps(
    facts: Facts,
    debts: Sequence[Old | Exception],
    idle: Sequence[Old | Exception],
    now: int,
) -> Finding:
    """Whether a worker sweeps: it wakes runs and steps whose message is missing."""
    refusal = first_refusal([*debts, *idle])
    if refusal is not None:
        return facts.unknown("sweeps", "the pending wake-ups", "ZCOUNT", "+@read", refusal)
    owed, parked = _sum(debts), _sum(idle)
    figures: dict[str, Any] = {
        "pending_wakeups": owed.total,
        "pending_wakeups_old": owed.old,
        "parked": parked.total,
        "parked_old": parked.old,
    }
    since = _since_last_sweep(facts, now)
    if since is not None:
        figures["last_sweep_seconds"] = round(since)
    advice = f"{_START_WORKER}: one worker sweeps. `await world.sweep()` sweeps once"
    if not owed.old and not parked.old:
        if since is None:
            text = "No worker has swept yet; no run or step is missing its message"
            return Finding(name="sweeps", level="info", text=text, figures=figures)
        if since > sweep_limit(facts):
            text = f"No worker sweeps: the last sweep was {duration(since)} ago"
            return Finding(
                name="sweeps", level="warning", text=text, advice=advice, figures=figures
            )
        text = f"The last sweep was {duration(since)} ago; no run or step is missing its message"
        return Finding(name="sweeps", level="ok", text=text, figures=figures)
    oldest = max(each.age for each in (owed, parked) if each.old)
    return Finding(
        name="sweeps",
        level="warning",
        text=f"No worker sweeps: runs have been waiting for more than {_SWEEPS} sweep intervals, "
        f"the oldest for {duration(oldest)} ({amount(owed.old, 'pending wake-up')}, "
        f"{parked.old:,} parked)",
        advice=advice,
        figures=figures,
    )


def _since_last_sweep(facts: Facts, now: int) -> float | None:
    """Seconds since the last sweep; None where there was none, or nobody tells."""
    reply = facts.replies.get("HMGET")
    swept_at = reply[2] if isinstance(reply, list) else None
    return None if swept_at is None else max(0.0, (now - int(swept_at)) / 1000)
