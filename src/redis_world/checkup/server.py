"""Is the server one that a World can work with?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import redis.exceptions

from redis_world.checkup.facts import Facts, Reading
from redis_world.checkup.finding import Finding, amount, duration
from redis_world.connection.redis_errors import first_refusal
from redis_world.connection.server import MIN_VERSIONS

__all__ = ["MIN_VERSIONS", "check_clock", "check_cluster", "check_notifications",
           "check_scripts", "check_version", "check_writes"]  # fmt: skip

_STEP_SECONDS: Final = 0.1
"""What two clocks may drift apart within the moment that a checkup takes."""
_OFFSET_INFO: Final = 1.0
_OFFSET_WARNING: Final = 60.0


def check_version(facts: Facts) -> Finding:
    """Whether the scripts run there: they need `XADD key 0-*` and friends."""
    kind, text = _kind_and_version(facts)
    try:
        version = tuple(int(part) for part in text.split(".")[:2])
    except ValueError:
        return facts.unknown("version", "the server's version", "INFO server", "+info")
    figures: dict[str, Any] = {"kind": kind, "version": text}
    title = f"{kind.capitalize()} {text}"
    if kind in MIN_VERSIONS and version < MIN_VERSIONS[kind]:
        return Finding(
            name="version",
            level="error",
            text=f"{title} is too old: it lacks commands that the scripts use",
            advice="install Redis 7.0, Valkey 8.0 or newer",
            figures=figures,
        )
    return Finding(name="version", level="ok", text=title, figures=figures)


def _kind_and_version(facts: Facts) -> tuple[str, str]:
    info = facts.info("server")
    for kind in ("valkey", "redis"):
        if info.get(f"{kind}_version"):
            return kind, str(info[f"{kind}_version"])
    return facts.hello("server"), facts.hello("version")


def check_cluster(facts: Facts, masters: int | None = None) -> list[Finding]:
    """Say when it is a cluster, or a node of one that is taken for a single server.

    Args:
        facts: of the server, or of a node of the cluster.
        masters: how many nodes of the cluster have slots, when the URL is a cluster's.
    """
    if masters is not None:
        text = f"A cluster of {amount(masters, 'master')}"
        figures: dict[str, Any] = {"masters": masters, "partitions": len(facts.partitions)}
        if len(facts.partitions) >= masters or masters == 1:
            return [Finding(name="cluster", level="ok", text=text, figures=figures)]
        return [
            Finding(
                name="cluster",
                level="info",
                text=f"{text}; some have no partition of this namespace",
                advice="create a new namespace with more partitions: --partitions 16 or more",
                figures=figures,
            )
        ]
    mode = facts.hello("mode") or facts.info("server").get("redis_mode")
    if mode != "cluster":
        return []
    return [
        Finding(
            name="cluster",
            level="info",
            text="The server is a node of a cluster: with this URL a World uses this node only",
            advice="use the URL of the cluster: redis+cluster://host:port",
        )
    ]


def check_scripts(facts: Facts, replies: Sequence[Any]) -> Finding:
    """Whether scripts may be loaded and run.

    Args:
        facts: of the server.
        replies: of SCRIPT LOAD, and of the scripts that read.
    """
    refusal = first_refusal(replies)
    if refusal is None:
        text = "Scripts load and run"
        return Finding(name="scripts", level="ok", text=text)
    return _refusal(facts, "scripts", "The server does not run the scripts", refusal)


def check_writes(facts: Facts) -> Finding:
    """Whether writes go through; by one that changes nothing."""
    reply = facts.replies.get("ZADD")
    if isinstance(reply, Exception):
        return _refusal(facts, "writes", "The server refuses writes", reply)
    return Finding(name="writes", level="ok", text="Writes are accepted")


def _refusal(facts: Facts, name: str, what: str, refusal: Exception) -> Finding:
    advice = ""
    text = str(refusal)
    match refusal:
        case _ if is_denial(refusal):
            advice = facts.grant_all()
            text = f"user {facts.user} lacks the right: {text}"
        case redis.exceptions.OutOfMemoryError():
            advice = "raise maxmemory, or delete other data from this server"
        case redis.exceptions.ReadOnlyError():
            advice = "use the URL of the primary"
        case redis.exceptions.MovedError() | redis.exceptions.ClusterDownError():
            advice = (
                "use the URL of the cluster, redis+cluster://host:port, and check that all of "
            )
            advice += "its slots are served"
        case _ if text.startswith("MISCONF"):
            advice = "see the server's log for the disk error, and make room on its disk"
        case _ if "NOREPLICAS" in text or "good replicas" in text:
            advice = "start the replicas, or lower min-replicas-to-write"
        case _ if text.startswith("WRONGTYPE"):
            advice = "another program uses keys of this namespace: use another --namespace"
    return Finding(
        name=name, level="error", text=f"{what}: {text}", advice=advice or "see the server's log"
    )


def is_denial(refusal: Exception) -> bool:
    """Whether a user lacks a right; of a command inside a script only the text tells."""
    if isinstance(refusal, redis.exceptions.NoPermissionError):
        return True
    text = str(refusal)
    # Redis 7.0, and all later servers.
    return text.startswith(("The user executing the script can't", "ACL failure in script"))


def check_notifications(facts: Facts) -> Finding:
    """Whether the scripts may notify waiting workers and readers."""
    reply = facts.replies.get("PUBLISH")
    if not isinstance(reply, Exception):
        text = "Workers and readers are notified at once"
        return Finding(name="notifications", level="ok", text=text)
    text = "No notifications, workers and readers poll once a second: "
    if isinstance(reply, redis.exceptions.NoPermissionError):
        text += f"user {facts.user} has no permission for the channels of the namespace"
    else:
        text += f"the server answers PUBLISH with {reply}"
    return Finding(name="notifications", level="warning", text=text, advice=facts.grant_all())


def check_clock(facts: Facts, first: Reading | Exception, last: Reading | Exception) -> Finding:
    """Compare the server's clock with this machine's, and with itself a moment later."""
    if isinstance(first, Exception) or isinstance(last, Exception):
        refusal = first if isinstance(first, Exception) else last
        return facts.unknown("clock", "the server's time", "TIME", "+time", refusal)
    offset = last.server - last.host
    step = (last.server - first.server) - (last.monotonic - first.monotonic)
    figures: dict[str, Any] = {"offset_ms": round(offset * 1000), "step_ms": round(step * 1000)}
    if abs(step) > _STEP_SECONDS + (first.round_trip + last.round_trip) / 2:
        way = "forward" if step > 0 else "back"
        return Finding(
            name="clock",
            level="warning",
            text=f"The server's clock jumped {way} by {duration(abs(step))} during the checkup: "
            "delays and leases end that much earlier or later",
            advice="configure its time service to slew the clock, not to step it",
            figures=figures,
        )
    level, text = _judge_offset(offset)
    advice = "" if level == "ok" else "synchronize both clocks by NTP; until then nothing breaks"
    return Finding(name="clock", level=level, text=text, advice=advice, figures=figures)


def _judge_offset(offset: float) -> tuple[Any, str]:
    if abs(offset) <= _OFFSET_INFO:
        return "ok", "The server's clock is steady and agrees with this machine's"
    way = "ahead of" if offset > 0 else "behind"
    text = (
        f"The server's clock is {duration(abs(offset))} {way} this machine's. "
        "Times of runs and messages come from the server"
    )
    return "warning" if abs(offset) > _OFFSET_WARNING else "info", text
