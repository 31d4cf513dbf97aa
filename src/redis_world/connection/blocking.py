"""Blocking calls of scripts, for threads beside the event loop."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import redis
import redis.exceptions
from redis.crc import key_slot

from redis_world.connection.redis_errors import (
    first_refusal,
    is_elsewhere,
    is_lost,
    lacks_script,
    translate,
)
from redis_world.connection.slots import Address, owners_of
from redis_world.lua import Argument, Script, ScriptLibrary

__all__ = ["BlockingClient", "BlockingCluster", "BlockingServer", "SyncCaller"]

_TRIES: Final = 3
_PAUSE: Final = 0.5
_GRACE_SECONDS: Final = 0.5
"""How long nodes that are slower than the first one are waited for."""
_LONGEST_SECONDS: Final = 5.0
"""How long `call_each` and `open` wait where no node answers at all."""

_Work: TypeAlias = Callable[[], list[Any]]


class BlockingClient(Protocol):
    """Runs scripts, and blocks its thread meanwhile."""

    def run(self, command: str, what: str, rows: Sequence[list[Argument]]) -> list[Any]:
        """Run a script several times; replies in order, errors among them."""

    def nodes_of(self, rows: Sequence[list[Argument]]) -> dict[Node, list[int]]:
        """Which of the rows each node has to run, by their places."""

    def nodes(self) -> list[Node]:
        """All of them."""

    def forget(self) -> None:
        """Look anew which node has what, before the next call."""

    def close(self) -> None:
        """Close the connections."""


class SyncCaller:
    """Blocking calls of scripts over connections of their own."""

    def __init__(self, client: BlockingClient, library: ScriptLibrary) -> None:
        self._client = client
        self._library = library
        self._unanswered: set[Node] = set()
        """Nodes that still keep a thread waiting."""

    def open(self) -> None:
        """Connect to all nodes, so that later calls need no new connection.

        A node that can't be reached is passed over while another one answers: it may be a master
        that is gone, and its successor is looked for at the next call.

        Raises:
            WorldUnavailableError: no node answers, or one takes no more connections.
            ConfigurationError: a node refuses the user or password.
        """
        try:
            nodes = self._client.nodes()
            found = self._ask({node: partial(_ping, node) for node in nodes})
        except Exception as error:
            self._client.forget()
            raise _as_world_error(error) from error
        errors = [each for each in found.values() if isinstance(each, Exception)]
        if not errors:
            return
        self._client.forget()
        refused = [each for each in errors if not _is_unreachable(each)]
        if refused or len(errors) == len(found):
            worst = (refused or errors)[0]
            raise _as_world_error(worst) from worst

    def call_each(
        self, name: str, calls: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]]
    ) -> list[list[Any] | Exception]:
        """Run one script several times, each call for itself; what became of each.

        All nodes are asked at the same time, in threads. It returns when they have answered, or
        half a second after the first of them did, or after five seconds: calls to the others are
        errors then, and may still run. A node is sent nothing more while an earlier
        call to it is unanswered. It never raises: whatever goes wrong is the entry of the calls
        concerned.
        """
        script = self._library[name]
        outcomes: list[Any] = [None] * len(calls)
        left = [*range(len(calls))]
        try:
            rows = [script.arrange(keys, args) for keys, args in calls]
            for _ in range(_TRIES):
                left = self._try_each(script, rows, left, outcomes)
                if not left:
                    break
                self._client.forget()
        except Exception as error:  # noqa: BLE001 - the caller has to go on with the next beat
            for place in left:
                outcomes[place] = error
        return [
            _as_world_error(each) if isinstance(each, Exception) else each for each in outcomes
        ]

    def _try_each(
        self,
        script: Script,
        rows: Sequence[list[Argument]],
        places: Sequence[int],
        outcomes: list[Any],
    ) -> list[int]:
        """Ask each node once; which calls may succeed at another try, at once."""
        work: dict[Node, _Work] = {}
        shares: dict[Node, list[int]] = {}
        for node, own in self._client.nodes_of([rows[place] for place in places]).items():
            shares[node] = [places[each] for each in own]
            work[node] = partial(_run_script, node, script, [rows[each] for each in shares[node]])
        again: list[int] = []
        for node, found in self._ask(work).items():
            own = shares[node]
            entries = [found] * len(own) if isinstance(found, Exception) else found
            for place, entry in zip(own, entries, strict=True):
                outcomes[place] = entry
                # The connection may have been a dead one, or the slot another node's by now.
                if isinstance(entry, Exception) and _is_worth_another_try(entry):
                    again.append(place)
        return again

    def _ask(self, work: Mapping[Node, _Work]) -> dict[Node, list[Any] | Exception]:
        """Do work on several nodes at a time, without waiting long for any of them."""
        answers: queue.SimpleQueue[tuple[Node, list[Any] | Exception]] = queue.SimpleQueue()

        def do(node: Node, each: _Work) -> None:
            answer: list[Any] | Exception
            try:
                answer = each()
            except BaseException as error:  # noqa: BLE001 - a thread has nobody to raise it to
                answer = error if isinstance(error, Exception) else RuntimeError(repr(error))
            # First: whoever has the answer may ask again before this thread has ended.
            self._unanswered.discard(node)
            answers.put((node, answer))

        found: dict[Node, list[Any] | Exception] = {}
        asked = 0
        for node, each in work.items():
            if node in self._unanswered:
                found[node] = redis.exceptions.TimeoutError("an earlier call is unanswered")
                continue
            name = "redis-world blocking call"
            thread = threading.Thread(target=do, args=(node, each), name=name, daemon=True)
            self._unanswered.add(node)
            try:
                thread.start()
            except BaseException:
                self._unanswered.discard(node)
                raise
            asked += 1
        end = time.monotonic() + _LONGEST_SECONDS
        for _ in range(asked):
            try:
                node, answer = answers.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            found[node] = answer
            if not isinstance(answer, Exception):
                end = min(end, time.monotonic() + _GRACE_SECONDS)
        for node in work:
            if node not in found:
                found[node] = redis.exceptions.TimeoutError("no answer yet")
        return found

    def call_many(
        self, name: str, calls: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]]
    ) -> list[list[Any]]:
        """Run one script several times in one round trip; tried again a few times.

        Raises:
            WorldUnavailableError: the server did not do it.
        """
        script = self._library[name]
        rows = [script.arrange(keys, args) for keys, args in calls]
        tries = 1
        while True:
            try:
                replies = self._client.run("EVALSHA", script.sha, rows)
                if lacks_script(replies):
                    replies = self._client.run("EVAL", script.source, rows)
                error = first_refusal(replies)
            except redis.exceptions.RedisError as lost:
                error = lost
            if error is None:
                return replies
            if tries == _TRIES or not (is_lost(error) or is_elsewhere(error)):
                raise translate(error) from error
            tries += 1
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _ping(node: Node) -> list[Any]:
    replies = node.run("PING", None, [[]])
    # A user who may not ping is connected all the same.
    if isinstance(replies[0], redis.exceptions.ConnectionError):
        raise replies[0]
    return replies


def _run_script(node: Node, script: Script, rows: list[list[Argument]]) -> list[Any]:
    replies = node.run("EVALSHA", script.sha, rows)
    if lacks_script(replies):
        replies = node.run("EVAL", script.source, rows)
    return replies


_SILENT: Final = (redis.exceptions.TimeoutError, TimeoutError)


def _is_unreachable(error: Exception) -> bool:
    """Whether a node is silent or gone, and has refused nothing."""
    if isinstance(error, _SILENT):
        return True
    cause = error.__cause__ or error.__context__
    return isinstance(error, OSError) or (is_lost(error) and isinstance(cause, OSError))


def _is_worth_another_try(error: Exception) -> bool:
    return is_elsewhere(error) or (is_lost(error) and not isinstance(error, _SILENT))


def _as_world_error(error: Exception) -> Exception:
    """The World's error for one of redis-py's; others, of a credential provider, as they are."""
    known = redis.exceptions.RedisError | OSError
    return translate(error) if isinstance(error, known) else error


class BlockingServer:
    """A server that is alone, or a node of a cluster."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def run(self, command: str, what: str | None, rows: Sequence[list[Argument]]) -> list[Any]:
        words = [command] if what is None else [command, what]
        with self.client.pipeline(transaction=False) as pipeline:
            for row in rows:
                pipeline.execute_command(*words, *row)  # type: ignore[no-untyped-call]
            return pipeline.execute(raise_on_error=False)

    def nodes_of(self, rows: Sequence[list[Argument]]) -> dict[Node, list[int]]:
        return {self: [*range(len(rows))]}

    def nodes(self) -> list[Node]:
        return [self]

    def forget(self) -> None:
        """There is but one."""

    def close(self) -> None:
        self.client.close()


Node: TypeAlias = BlockingServer


class BlockingCluster:
    """The masters of a cluster; it looks anew who has which slot after each failure."""

    def __init__(
        self, seeds: Sequence[Address], connect: Callable[[Address], redis.Redis]
    ) -> None:
        self._seeds = seeds
        self._connect = connect
        self._servers: dict[Address, BlockingServer] = {}
        self._owners: list[Address | None] = []

    def run(self, command: str, what: str, rows: Sequence[list[Argument]]) -> list[Any]:
        replies: list[Any] = [None] * len(rows)
        try:
            for node, places in self.nodes_of(rows).items():
                found = node.run(command, what, [rows[place] for place in places])
                for place, reply in zip(places, found, strict=True):
                    replies[place] = reply
        except redis.exceptions.RedisError:
            self.forget()
            raise
        if any(map(is_elsewhere, replies)):
            self.forget()
        return replies

    def nodes_of(self, rows: Sequence[list[Argument]]) -> dict[Node, list[int]]:
        self._learn()
        places: dict[Node, list[int]] = {}
        for place, row in enumerate(rows):
            key = row[1] if isinstance(row[1], bytes) else str(row[1]).encode()
            owner = self._owners[key_slot(key)] or self._seeds[0]
            places.setdefault(self._server(owner), []).append(place)
        return places

    def nodes(self) -> list[Node]:
        self._learn()
        return [self._server(each) for each in sorted({each for each in self._owners if each})]

    def forget(self) -> None:
        self._owners = []

    def close(self) -> None:
        for server in self._servers.values():
            server.close()

    def _server(self, address: Address) -> BlockingServer:
        if address not in self._servers:
            self._servers[address] = BlockingServer(self._connect(address))
        return self._servers[address]

    def _learn(self) -> None:
        if not self._owners:
            self._owners = self._ask_for_owners()

    def _ask_for_owners(self) -> list[Address | None]:
        """Who has which slot, as the first node tells that answers; all are asked at a time."""
        answers: queue.SimpleQueue[list[Address | None] | Exception] = queue.SimpleQueue()

        def ask(address: Address, server: BlockingServer) -> None:
            try:
                reply = server.client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
                answers.put(owners_of(reply, address))
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise it to
                answers.put(error)

        addresses = [*dict.fromkeys([*self._servers, *self._seeds])]
        for address in addresses:
            thread = threading.Thread(
                target=ask, args=(address, self._server(address)), daemon=True
            )
            thread.start()
        error: Exception = redis.exceptions.ConnectionError("the cluster has no node")
        end = time.monotonic() + _LONGEST_SECONDS
        for _ in addresses:
            try:
                answer = answers.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise redis.exceptions.TimeoutError("no node of the cluster answers") from None
            if not isinstance(answer, Exception):
                return answer
            error = answer
        raise error
