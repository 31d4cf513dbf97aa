"""Namespaces as files: every key with what is in it, to be put into any server again.

`python tests/support/dumps.py FILE` writes the one that the tests of the schema read. It is kept
as it was written by the commit that made it: a new one goes beside it, under another name.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

__all__ = ["load", "read"]

NAMESPACE: Final = "old"


def _text(blob: bytes) -> str:
    return base64.b64encode(blob).decode()


def _blob(text: str) -> bytes:
    return base64.b64decode(text)


def dump(client: Any) -> dict[str, Any]:
    """All keys of a server."""
    found: dict[str, Any] = {}
    for key in sorted(client.scan_iter(count=1000)):
        kind = client.type(key).decode()
        value: Any
        match kind:
            case "hash":
                value = [[_text(k), _text(v)] for k, v in sorted(client.hgetall(key).items())]
            case "zset":
                value = [[_text(m), s] for m, s in client.zrange(key, 0, -1, withscores=True)]
            case "set":
                value = [_text(member) for member in sorted(client.smembers(key))]
            case "stream":
                value = [
                    [entry.decode(), [[_text(k), _text(v)] for k, v in fields.items()]]
                    for entry, fields in client.xrange(key)
                ]
            case _:
                value = _text(client.get(key))
        found[_text(key)] = [kind, value, client.pttl(key)]
    return found


def load(client: Any, found: dict[str, Any], namespace: str) -> None:
    """Put keys into a server, under another namespace."""
    old, new = b"{%s" % NAMESPACE.encode(), b"{%s" % namespace.encode()
    for name, (kind, value, ttl) in found.items():
        key = _blob(name).replace(old, new, 1)
        match kind:
            case "hash":
                client.hset(key, mapping={_blob(k): _blob(v) for k, v in value})
            case "zset":
                client.zadd(key, {_blob(member): score for member, score in value})
            case "set":
                client.sadd(key, *map(_blob, value))
            case "stream":
                for entry, fields in value:
                    client.xadd(key, {_blob(k): _blob(v) for k, v in fields}, id=entry)
            case _:
                client.set(key, _blob(value))
        if ttl > 0:
            client.pexpire(key, ttl)


def read(path: Path) -> dict[str, Any]:
    """A file of keys."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


async def _make() -> dict[str, Any]:
    from redis_world import RedisWorld
    from redis_world.testing import redis_server
    from support import events as e
    from support.queue_tools import content, health_check, step, wake

    with redis_server("redis7") as server:
        async with RedisWorld(server.url, namespace=NAMESPACE) as world:
            done = await e.new_run(world, input=e.ALL_BYTES)
            await e.write(
                world,
                done,
                *(e.lazy_start("s1"), e.step_retrying("s1"), e.step_started("s1")),
                *(e.step_completed("s1"), e.attr_set({"color": "red"}, "a1")),
                e.run_ended("completed"),
            )
            await world.streams.write_many(done, "out", [b"1", b"", b"2"])
            await world.streams.close(done, "out")
            await e.new_run(world, "failed")
            await e.new_run(world, "cancelled")
            await e.new_run(world, "pending")
            live = await e.new_run(world, attributes={"kept": "yes"})
            await e.write(
                world,
                live,
                *(e.step_created("made"), e.lazy_start("begun"), e.hook_created("h1", "t1")),
                *(e.hook_created("h2", "t2", metadata=b"meta"), e.hook_disposed("h2")),
                *(e.wait_created("w1"), e.wait_created("w2"), e.wait_completed("w2")),
            )
            await world.events.create(live, e.hook_received("h1"), resume_id="r1")
            await world.streams.write(live, "open", b"1")
            name = "__wkf_workflow_orders"
            for payload in (wake(live), content(1, live), step("made", live), health_check()):
                await world.queue.send(name, payload)
            await world.queue.send(name, content(2, live), delay=60)
            await world.queue.claim("__wkf_workflow_", limit=1)
        import redis as redis_py

        with redis_py.Redis(server.host, server.port) as client:
            return dump(client)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(
        json.dumps(asyncio.run(_make()), indent=1) + "\n", encoding="utf-8"
    )
