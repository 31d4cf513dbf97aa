"""Does the server keep what it is given?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import redis.exceptions

from redis_world.checkup.facts import Facts
from redis_world.checkup.finding import Finding, Level, amount, size

__all__ = ["check_durability", "check_eviction", "check_memory", "check_persistence",
           "check_replicas"]  # fmt: skip

_MEMORY_WARNING: Final = 0.80
_MEMORY_ERROR: Final = 0.95
_LAG_SECONDS: Final = 10
"""A replica reports its offset once a second."""


def check_eviction(facts: Facts) -> Finding:
    """Whether a full server deletes keys."""
    policy = facts.setting("maxmemory-policy", "memory", "maxmemory_policy")
    if policy is None:
        return facts.unknown("eviction", "maxmemory-policy", "INFO memory", "+info")
    figures: dict[str, Any] = {"maxmemory_policy": policy}
    if policy == "noeviction":
        return Finding(
            name="eviction", level="ok", text="A full server deletes nothing", figures=figures
        )
    limit = facts.setting("maxmemory", "memory", "maxmemory")
    if policy.startswith("volatile-"):
        level: Level = "warning"
        loss = "keys too early, so that a repeated request may run twice"
    else:
        level, loss = "error", "parts of runs, which then fail or never end"
    text = f"maxmemory-policy is {policy}: a full server deletes {loss}"
    if limit == "0":
        level = "warning"
        text += ". It has no maxmemory now, so it deletes nothing yet"
    return Finding(
        name="eviction",
        level=level,
        text=text,
        advice="run `CONFIG SET maxmemory-policy noeviction` and set it in the configuration file",
        figures=figures,
    )


def check_memory(facts: Facts) -> Finding:
    """How much room is left."""
    info = facts.info("memory")
    if "used_memory" not in info or "maxmemory" not in info:
        return facts.unknown("memory", "the memory use", "INFO memory", "+info")
    used, limit = int(info["used_memory"]), int(info["maxmemory"])
    figures: dict[str, Any] = {"used_memory": used, "maxmemory": limit}
    if not limit:
        return Finding(
            name="memory",
            level="info",
            text=f"{size(used)} used, no maxmemory: the system kills a server that outgrows the "
            "machine",
            advice="set maxmemory below the memory of the machine: a full server then refuses "
            "writes",
            figures=figures,
        )
    share = used / limit
    text = f"{size(used)} of {size(limit)} used ({share:.0%})"
    level: Level = "ok"
    if share > _MEMORY_WARNING:
        level = "error" if share > _MEMORY_ERROR else "warning"
        text += ": a full server refuses new runs and events"
    advice = "" if level == "ok" else "raise maxmemory, or delete other data from this server"
    return Finding(name="memory", level=level, text=text, advice=advice, figures=figures)


def check_persistence(facts: Facts) -> Finding:
    """What a crash or a restart of the server loses."""
    info = facts.info("persistence")
    appendonly = facts.setting("appendonly", "persistence", "aof_enabled")
    fsync, save = facts.setting("appendfsync"), facts.setting("save")
    has_log = None if appendonly is None else appendonly in {"1", "yes"}
    figures: dict[str, Any] = {
        "appendonly": appendonly if has_log is None else "yes" if has_log else "no",
        "appendfsync": fsync,
        "save": save,
    }
    failure = _failure(info, snapshots_only=has_log is False)
    if failure is not None:
        level, text = failure
        advice = "see the server's log; often its disk is full or not writable"
    elif has_log is None:
        return facts.unknown(
            "persistence", "the persistence settings", "INFO persistence", "+info"
        )
    elif has_log:
        level, text, advice = _judge_log(fsync)
    elif save is None:
        return facts.unknown(
            "persistence",
            "the snapshot setting `save` (there is no append-only file)",
            "CONFIG GET save",
            "+config|get",
        )
    else:
        level = "warning"
        advice = "run `CONFIG SET appendonly yes` and set it in the configuration file"
        text = (
            f"Only snapshots (save {save}): a crash loses all writes since the last snapshot"
            if save
            else "The server writes nothing to disk: a restart loses every run, event, message "
            "and stream"
        )
    return Finding(name="persistence", level=level, text=text, advice=advice, figures=figures)


def _failure(info: Mapping[str, Any], *, snapshots_only: bool) -> tuple[Level, str] | None:
    """What the server failed to write, the worst first."""
    if info.get("aof_last_write_status", "ok") != "ok":
        return "error", "The last write to the append-only file failed"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        level: Level = "error" if snapshots_only else "warning"
        return level, "The last snapshot failed"
    if info.get("aof_last_bgrewrite_status", "ok") != "ok":
        return "warning", "The last rewrite of the append-only file failed: the file keeps growing"
    return None


def _judge_log(fsync: str | None) -> tuple[Level, str, str]:
    """By how often the append-only file reaches the disk."""
    match fsync:
        case "always":
            return "ok", "Every write goes to the append-only file and to disk at once", ""
        case "no":
            text = "The operating system decides when the append-only file reaches the disk: a "
            text += "crash of the machine loses half a minute or more"
            return (
                "warning",
                text,
                "run `CONFIG SET appendfsync everysec` and set it in the configuration file",
            )
    text = "Every write goes to the append-only file"
    return "ok", f"{text}: a crash loses a second or two" if fsync == "everysec" else text, ""


def check_replicas(facts: Facts) -> Finding:
    """Whether this is the primary, and how far its replicas are."""
    info = facts.info("replication")
    if (info.get("role") or facts.hello("role")) in {"slave", "replica"}:
        return _judge_replica(info)
    if "connected_slaves" not in info:
        return facts.unknown("replicas", "the replicas", "INFO replication", "+info")
    count = int(info["connected_slaves"])
    replicas = [info[f"slave{i}"] for i in range(count) if isinstance(info.get(f"slave{i}"), dict)]
    lag = max((int(each.get("lag", 0)) for each in replicas), default=0)
    waiting = [each for each in replicas if each.get("state") != "online"]
    figures: dict[str, Any] = {"replicas": count, "lag_seconds": lag}
    level: Level = "ok"
    text, advice = f"{amount(count, 'replica')}, lag at most {lag} s", ""
    if not count:
        level, text = "info", "No replica: no server can take over if this one is lost"
        advice = "start a replica if the runs must survive the loss of the machine"
    elif waiting or lag > _LAG_SECONDS:
        level, advice = "warning", "see the logs of the replicas, and check the network to them"
        text = (
            f"{amount(count, 'replica')}, {len(waiting)} still loading, lag at most {lag} s: a "
            "failover now loses writes"
        )
    return Finding(name="replicas", level=level, text=text, advice=advice, figures=figures)


def _judge_replica(info: Mapping[str, Any]) -> Finding:
    text, advice = "This server is a replica", "use the URL of its primary"
    if info.get("master_host"):
        primary = f"{info['master_host']}:{info.get('master_port')}"
        text += f" of {primary} (link {info.get('master_link_status', 'unknown')})"
        advice += f": {primary}"
    return Finding(
        name="replicas",
        level="error",
        text=f"{text}: it refuses or loses writes",
        advice=advice,
        figures={"role": "replica"},
    )


def check_durability(facts: Facts) -> Finding:
    """Whether the server can do what the World's `durability` asks for: not for `memory`."""
    wanted = facts.config.durability
    command, what = ("WAIT", "a replica") if wanted == "replica" else ("WAITAOF", "the disk")
    reply = facts.replies.get(command)
    advice = {
        "replica": "start a replica, or set durability='memory'",
        "disk": "run `CONFIG SET appendonly yes` on Redis 7.2, Valkey 8 or newer, or set "
        "durability='memory'",
    }[wanted]
    text = f"durability={wanted!r}: every write waits for {what}"
    if isinstance(reply, redis.exceptions.NoPermissionError):
        text = f"durability={wanted!r}, but user {facts.user} may not run {command}"
        advice = facts.grant(f"+{command.lower()}")
    elif isinstance(reply, Exception) or reply is None:
        text = f"durability={wanted!r}, but the server answers {command} with {reply}"
    elif wanted == "replica" and not reply:
        text = f"durability={wanted!r}, but no replica confirms writes: every write would fail"
    else:
        return Finding(name="durability", level="ok", text=text)
    return Finding(name="durability", level="error", text=text, advice=advice)
