"""The sweeper: sees to what nobody else will (contract, section 7, no run is left behind).

A script looks for runs and steps that wait for too long; another one judges each of them again
before it sends the message that Python made. So any number of sweepers may run at a time. One is
enough: workers elect it, for a term that the server's clock measures.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from redis_world.codec import Duration, decode_data, from_ms, to_duration_ms
from redis_world.connection import Connection
from redis_world.errors import WorldUnavailableError
from redis_world.ids import IdFactory
from redis_world.keys import Keys
from redis_world.messages import StrandedRun, message_args, missing_message, tell_dropped

__all__ = ["Sweeper", "elect", "record_sweep"]

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 100
"""Candidates of one look."""
_MAX_LOOKS: Final = 1000
"""Looks of one round: what is left then is the next round's."""


class _Candidate(NamedTuple):
    """A run that may need a message, or a step of it."""

    run: StrandedRun
    step_id: str = ""
    step_name: str = ""

    @property
    def run_id(self) -> str:
        return self.run.run_id


def _candidate(row: Sequence[bytes]) -> _Candidate:
    run_id, queue_name, workflow_name, context, spec_version, deployment_id, started_at = row
    run = StrandedRun(
        run_id.decode(),
        queue_name.decode(),
        workflow_name.decode(),
        # What is known already needs none.
        decode_data(context) if context and not queue_name else {},
        int(spec_version or 0),
        deployment_id.decode(),
        int(started_at) if started_at else None,
    )
    return _Candidate(run)


async def elect(connection: Connection, worker: str, term: Duration) -> float:
    """Make a worker the one that sweeps, unless another one is.

    Args:
        connection: of the World.
        worker: its id.
        term: how long others leave the sweeps to it.

    Returns:
        0 if the worker is elected; else the seconds until the term of the other one ends.

    Raises:
        WorldUnavailableError: the server that has the namespace's record can't be reached.
    """
    reply = await connection.call(
        "worlds/elect",
        {"meta": connection.keys.meta},
        {"worker": worker, "term": str(to_duration_ms(term, "term"))},
    )
    return int(reply[1]) / 1000


async def record_sweep(connection: Connection) -> None:
    """Record that a sweep has ended now, for operators; a sweep is none the worse without."""
    with contextlib.suppress(WorldUnavailableError):
        await connection.call("worlds/swept", {"meta": connection.keys.meta}, {})


class Sweeper:
    """Frees lost leases, pays debts, and wakes runs without a message, in one partition."""

    def __init__(self, connection: Connection, keys: Keys, ids: IdFactory) -> None:
        self._connection = connection
        self._keys = keys
        self._ids = ids

    async def sweep(self) -> dict[str, int]:
        """Do one round; how many of each were recovered.

        Returns:
            `expired_leases`: messages whose worker is gone. `queued_steps` and `woken_runs`:
            steps and runs that an event was recorded for without its message, and runs that
            had no message left.
        """
        expired = await self._expire_leases()
        queued = woken = 0
        for number in range(_MAX_LOOKS):
            owed, idle, lost = await self._look()
            if number == 0:
                await self._mend(lost)
            steps, wakes = await self._pay(owed)
            queued += steps
            woken += wakes
            woken += await self._rescue_all(self._unpark, idle)
            if len(owed) < _AT_ONCE and len(idle) < _AT_ONCE:
                break
        return {"expired_leases": expired, "queued_steps": queued, "woken_runs": woken}

    # -- inside ----------------------------------------------------------------------------

    async def _expire_leases(self) -> int:
        keys = self._keys
        total = 0
        (topics,) = await self._connection.execute(("SMEMBERS", keys.topics))
        for name in topics:
            topic = name.decode()
            count = -1
            while count:
                reply = await self._connection.call(
                    "queue/expire",
                    {"leased": keys.topic(topic, "leased")},
                    {
                        "base": keys.base,
                        "topic": topic,
                        "max_lost": str(self._connection.config.max_lost_leases),
                    },
                )
                count = int(reply[1])
                total += count
                tell_dropped(topic, reply[2])
        return total

    async def _look(self) -> tuple[list[_Candidate], list[_Candidate], list[bytes]]:
        """Runs that are owed something or have no message, and those that have lost some.

        All of them have been so for the interval.
        """
        keys = self._keys
        reply = await self._connection.call(
            "queue/stranded",
            {"owed": keys.owed, "parked": keys.parked, "lost": keys.lost},
            {"base": keys.base, "interval": self._interval, "limit": str(_AT_ONCE)},
        )
        owed, idle = ([_candidate(row) for row in rows] for rows in reply[1:3])
        return owed, idle, reply[3]

    async def _mend(self, lost: Sequence[bytes]) -> None:
        """Set right what runs have of their messages, where records of these are gone."""
        await asyncio.gather(*(self._mend_run(run_id.decode()) for run_id in lost))

    async def _mend_run(self, run_id: str) -> None:
        """Set right what one run has of its messages, piece by piece."""
        keys = self._keys
        of_run = keys.of_run(run_id)
        after = b""
        for _ in range(_MAX_LOOKS):
            reply = await self._connection.call(
                "queue/mend",
                {"run": of_run.run, "events": of_run.events, "lost": keys.lost},
                {"base": keys.base, "run_id": run_id, "after": after},
            )
            tell_dropped("", [each + b"/" + run_id.encode() for each in reply[2]])
            after = reply[1]
            if not after:
                break

    async def _rescue_all(
        self, rescue: Callable[[_Candidate], Awaitable[bool]], candidates: Sequence[_Candidate]
    ) -> int:
        """Rescue all of them, in one round trip; how many needed it."""
        return sum(await asyncio.gather(*map(rescue, candidates)))

    async def _pay(self, runs: Sequence[_Candidate]) -> tuple[int, int]:
        """Send what runs have been owed for the interval; how many steps and runs needed it.

        What has been owed for longest is sent first, and messages of steps before wakes.
        """
        queued = 0
        wakes: list[tuple[int, _Candidate]] = []
        looks = [(run, b"") for run in runs]
        while looks:
            replies = await asyncio.gather(*(self._owed(*look) for look in looks))
            steps: list[tuple[int, _Candidate]] = []
            following = []
            for (run, _), (_, wake, found, after) in zip(looks, replies, strict=True):
                wakes += [(int(wake), run)] if wake else []
                steps += [
                    (int(since), run._replace(step_id=step_id.decode(), step_name=name.decode()))
                    for since, step_id, name in found
                ]
                following += [(run, after)] if after else []
            queued += await self._rescue_all(self._pay_step, [step for _, step in sorted(steps)])
            looks = following
        return queued, await self._rescue_all(self._pay_wake, [run for _, run in sorted(wakes)])

    async def _owed(self, run: _Candidate, after: bytes) -> Sequence[Any]:
        keys = self._keys
        return await self._connection.call(
            "queue/owed",
            {"run": keys.of_run(run.run_id).run, "owed": keys.owed},
            {
                "base": keys.base,
                "run_id": run.run_id,
                "interval": self._interval,
                "after": after,
            },
        )

    async def _pay_wake(self, run: _Candidate) -> bool:
        keys = self._keys
        return await self._rescue(
            "queue/pay_wake",
            run,
            {"owed": keys.owed, "held": keys.of_run(run.run_id).held},
        )

    async def _pay_step(self, step: _Candidate) -> bool:
        keys = self._keys
        return await self._rescue("queue/pay_step", step, {"run": keys.of_run(step.run_id).run})

    async def _unpark(self, run: _Candidate) -> bool:
        keys = self._keys
        return await self._rescue(
            "queue/unpark",
            run,
            {"parked": keys.parked, "hooks": keys.of_run(run.run_id).hooks},
        )

    async def _rescue(self, script: str, candidate: _Candidate, keys: dict[str, str]) -> bool:
        now = self._connection.server_time()
        enqueue = missing_message(
            candidate.run, from_ms(now), candidate.step_id, candidate.step_name
        )
        message_id = self._ids.message_id(now)
        message = message_args(enqueue, message_id, self._connection.config.max_payload_bytes)
        wanted = ["topic", "message_id", "run_id", "queue_name", "deployment_id", "body"]
        if candidate.step_id:
            wanted += ["step_id", "idempotency"]
        reply = await self._connection.call(
            script,
            keys,
            {
                "base": self._keys.base,
                "interval": self._interval,
                **{name: message[name] for name in wanted},
            },
        )
        if reply[0] != b"OK":
            return False
        what = f"step {candidate.step_id!r} of run" if candidate.step_id else "run"
        logger.warning(
            "sent the missing message of %s %s",
            what,
            candidate.run_id,
            extra={
                "event": "message.recovered",
                "run_id": candidate.run_id,
                "step_id": candidate.step_id or None,
                "message_id": message_id,
                "topic": message["topic"],
            },
        )
        return True

    @property
    def _interval(self) -> str:
        return str(to_duration_ms(self._connection.config.sweep_interval, "sweep_interval"))
