"""Blocking calls of scripts, for threads beside the event loop."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis
import redis.exceptions

from redis_world.connection.refusals import is_lost, lacks_script, translate
from redis_world.lua import Argument, ScriptLibrary

__all__ = ["SyncCaller"]

_TRIES: Final = 3
_PAUSE: Final = 0.5


class SyncCaller:
    """Blocking calls of scripts over one connection."""

    def __init__(self, client: redis.Redis, library: ScriptLibrary) -> None:
        self._client = client
        self._library = library

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
                replies = self._run("EVALSHA", script.sha, rows)
                if lacks_script(replies):
                    replies = self._run("EVAL", script.source, rows)
                error = next((each for each in replies if isinstance(each, Exception)), None)
            except redis.exceptions.RedisError as lost:
                error = lost
            if error is None:
                return replies
            if tries == _TRIES or not is_lost(error):
                raise translate(error) from error
            tries += 1
            time.sleep(_PAUSE)

    def _run(self, command: str, what: str, rows: list[list[Argument]]) -> list[Any]:
        with self._client.pipeline(transaction=False) as pipeline:
            for row in rows:
                pipeline.execute_command(command, what, *row)  # type: ignore[no-untyped-call]
            return pipeline.execute(raise_on_error=False)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
