"""Every script that writes, with its reply or its request lost: done once, and answered.

A case is played several times over, in namespaces of their own: once without any loss, and with
losses. All must give the same answer, and leave the same keys behind. `make chaos` loses more.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias

import pytest

from redis_world import RedisWorld
from redis_world.connection import sender
from redis_world.errors import MessageNotFoundError
from redis_world.lua import default_library, script_root
from redis_world.models import BatchResult, CancelManyResult, EventResult
from redis_world.queue import Enqueue, FollowUp, Message
from redis_world.sleepers import hand_on
from redis_world.sweeper import elect
from redis_world.testing import ManualClock, cutting_proxy
from support.backends import KINDS, Backend
from support.events import (
    Wire,
    event,
    hook_created,
    hook_disposed,
    hook_received,
    lazy_start,
    log,
    run_ended,
    step_completed,
    step_created,
    step_failed,
    step_retrying,
    step_started,
    wait_completed,
    wait_created,
    write,
)
from support.losing import (
    ANSWER,
    IS_LONG,
    LIBRARY,
    LOSSES,
    OTHER,
    RUN,
    Case,
    Prepare,
    Twin,
    direct_world,
    fragile_world,
    hold_against_twin,
    ids_in_order,  # noqa: F401 - a fixture of all tests here
    load_scripts,
    nth,
    play_twin,
    prepare,
    runs,
)
from support.losing_events import EVENTS, REFUSED, create_run
from support.message_fields import lose_record
from support.queue_tools import NAME, TOPIC, claim_one, content, health_check, outcome, send, wake
from support.queue_tools import step as step_message
from support.until import until

READ_ONLY: Final = {
    "hooks/get", "hooks/get_by_token", "hooks/list", "hooks/list_all", "queue/dead_letters",
    "queue/peek", "queue/stats", "queue/stranded", "runs/finished", "runs/get",
    "runs/list", "steps/get", "steps/list", "streams/info", "streams/list", "tokens/stale",
    "waits/get", "waits/list",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _prompt_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send again at once; and connect without a look into the metadata of redis-py."""
    monkeypatch.setattr(sender, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr("redis.utils.get_lib_version", lambda: "0", raising=False)


@pytest.fixture
def backend(real_backend: Backend) -> Backend:
    """A real server that has all scripts."""
    load_scripts(real_backend)
    return real_backend


# -- events --------------------------------------------------------------------------------


# Contract: 1.rivals
@pytest.mark.parametrize("name", EVENTS)
async def test_an_event_is_recorded_once(backend: Backend, name: str) -> None:
    await hold_against_twin(backend, EVENTS[name].case())


@pytest.mark.parametrize("name", EVENTS)
async def test_an_event_brings_its_message_once(backend: Backend, name: str) -> None:
    keys = await hold_against_twin(backend, EVENTS[name].case(enqueue=message_of(name)))
    assert count_messages(keys) == 1


@pytest.mark.parametrize("name", [name for name in EVENTS if EVENTS[name].status is not None])
async def test_an_event_ends_its_delivery_once(backend: Backend, name: str) -> None:
    recording = EVENTS[name]
    case = recording.case(enqueue=message_of(name))

    async def prepare_and_claim(world: RedisWorld, clock: ManualClock) -> Message:
        await send(world, content(1, RUN))
        message = await claim_one(world)
        assert case.prepare is not None
        await case.prepare(world, clock)
        return message

    def call(world: RedisWorld, message: Message) -> Awaitable[EventResult]:
        enqueue = message_of(name)
        return world.events.create(
            recording.run_id, recording.wire, **recording.params, enqueue=enqueue, ack=message
        )

    # Where nothing is recorded, a repetition finds no delivery, and takes its lease for lost.
    answers = name not in {"run_started, running", "hook_received, resumed"}
    again = Case(case.script, call, prepare_and_claim, answers=answers)
    keys = await hold_against_twin(backend, again)
    assert count_messages(keys) == 1


@pytest.mark.parametrize("name", ["step_completed", "step_completed, bare", "step_failed"])
async def test_an_event_brings_no_message_of_a_step_that_it_ends(
    backend: Backend, name: str
) -> None:
    enqueue = Enqueue(NAME, step_message("step_1", RUN))
    assert (
        count_messages(await hold_against_twin(backend, EVENTS[name].case(enqueue=enqueue))) == 0
    )


def message_of(name: str) -> Enqueue:
    """The message that an event brings along: one that no other one can stand for."""
    if name in {"step_created", "step_started, lazy"}:
        return Enqueue(NAME, step_message(run_id=RUN))
    return Enqueue(NAME, content(1, RUN) if EVENTS[name].run_id else {"number": 1})


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_stays_one(backend: Backend, name: str) -> None:
    """What a rival has written is not taken for the call's own."""
    await hold_against_twin(backend, REFUSED[name].case(refused=True))


def count_messages(keys: Mapping[bytes, Any]) -> int:
    hashes = (value[1] for key, value in keys.items() if key != ANSWER and value[0] == b"hash")
    return sum(name.startswith(b"message:") for fields in hashes for name, _ in fields)


# -- queue ---------------------------------------------------------------------------------


def sending(
    payload: dict[str, Any],
    *before: dict[str, Any],
    prepare: Prepare | None = None,
    **options: Any,
) -> Case:
    """The sending of one message behind others."""

    async def prepare_others(world: RedisWorld, clock: ManualClock) -> None:
        if prepare is not None:
            await prepare(world, clock)
        for each in before:
            await world.queue.send(NAME, each, **options)

    return Case(
        "queue/send",
        lambda world, _: world.queue.send(NAME, payload, **options),
        prepare_others,
    )


async def end_step(world: RedisWorld, _: ManualClock) -> None:
    await create_run(world, RUN, "running")
    await write(world, RUN, lazy_start(), step_completed())


SENDS: Final[dict[str, Case]] = {
    "wake": sending(wake(RUN)),
    "wake, one is there": sending(wake(RUN), wake(RUN)),
    "replay": sending(content(1, RUN), content(2, RUN)),
    "replay, later": sending(content(1, RUN), delay=3600),
    "replay with a key": sending(content(1, RUN), idempotency_key="k"),
    "replay, its key is held": sending(content(1, RUN), content(2, RUN), idempotency_key="k"),
    "step": sending(step_message(run_id=RUN)),
    "step, one is there": sending(step_message(run_id=RUN), step_message(run_id=RUN)),
    "step that is over": sending(step_message(run_id=RUN), prepare=end_step),
    "other": sending({"any": 1}, headers={"a": "b"}, deployment_id="d"),
    "health check": sending(health_check(runId=RUN)),
}


# Contract: 7.delivery
@pytest.mark.parametrize("name", SENDS)
async def test_a_message_is_sent_once(backend: Backend, name: str) -> None:
    await hold_against_twin(backend, SENDS[name])


async def send_all(world: RedisWorld, _: ManualClock) -> None:
    """A few of each kind; the second replay of a run has to wait for the first one's end."""
    for payload in (
        *(content(1, RUN), content(2, RUN), wake(OTHER), step_message("s1", RUN)),
        *({"any": 1}, {"any": 2}, step_message("s2", RUN), {"any": 3}),
    ):
        await send(world, payload)


async def lose_leases(world: RedisWorld, clock: ManualClock) -> None:
    await send_all(world, clock)
    assert len(await world.queue.claim(TOPIC, limit=4, lease=60)) == 4
    await clock.advance(61)


def claiming(limit: int, prepare: Prepare | None = send_all) -> Case:
    async def call(world: RedisWorld, _: None) -> list[Message]:
        # Each World is a worker of its own, and a repetition is the same one's.
        return (await world.queue.claim_batch(TOPIC, limit=limit, worker="w")).messages

    return Case("queue/claim", call, prepare)


CLAIMS: Final[dict[str, Case]] = {
    "all": claiming(100),
    "some": claiming(3),
    "none": claiming(3, None),
    "after lost leases": claiming(3, lose_leases),
}


# Contract: 7.lease
@pytest.mark.parametrize("name", CLAIMS)
async def test_a_claim_gets_the_same_messages(backend: Backend, name: str) -> None:
    """With the same receipt; and what is leased is what it got, so nothing is nobody's."""
    keys = await hold_against_twin(backend, CLAIMS[name])
    expected = {"all": 7, "some": 3, "none": 0, "after lost leases": 3}[name]
    leased = [len(keys[key][1]) for key in keys if key.endswith(b":leased")]
    assert sum(leased) == expected


def leased(payload: dict[str, Any], *others: dict[str, Any], **options: Any) -> Prepare:
    """Lease one message; others come behind it."""

    async def prepare(world: RedisWorld, _: ManualClock) -> Message:
        await send(world, payload, **options)
        message = await claim_one(world)
        for each in others:
            await send(world, each)
        # A replay whose turn it is not yet becomes a held one.
        assert await world.queue.claim(TOPIC) == []
        return message

    return prepare


async def lost(world: RedisWorld, clock: ManualClock) -> Message:
    """A message whose lease is another worker's by now."""
    await send(world, content(1, RUN))
    message = await claim_one(world)
    await clock.advance(61)
    assert (await claim_one(world)).message_id == message.message_id
    return message


async def step_under_way(world: RedisWorld, _: ManualClock) -> Message:
    """The message of a step that is not over: without it, the step is owed another one."""
    await create_run(world, RUN, "running")
    await world.events.create(RUN, step_created(), enqueue=Enqueue(NAME, step_message(run_id=RUN)))
    return await claim_one(world)


async def run_over(world: RedisWorld, _: ManualClock) -> Message:
    """The last message of a finished run: its bookkeeping goes with it."""
    await create_run(world, RUN, "running")
    await send(world, wake(RUN))
    message = await claim_one(world)
    await world.events.create(RUN, run_ended("completed"))
    return message


async def failed_once(world: RedisWorld, _: ManualClock) -> Message:
    await send(world, content(1, RUN), idempotency_key="k")
    assert await world.queue.retry(await claim_one(world), error="first", delay=0)
    return await claim_one(world)


def ack(world: RedisWorld, message: Message) -> Awaitable[bool]:
    return world.queue.ack(message)


def ack_and_continue(world: RedisWorld, message: Message) -> Awaitable[bool]:
    return world.queue.ack(message, follow_up=FollowUp(delay=3, idempotency_key="next"))


def ack_and_repeat(world: RedisWorld, message: Message) -> Awaitable[bool]:
    return world.queue.ack(message, follow_up=FollowUp())


def retry(world: RedisWorld, message: Message) -> Awaitable[bool]:
    return world.queue.retry(message, error="it failed", delay=7)


def release(world: RedisWorld, message: Message) -> Awaitable[bool]:
    return world.queue.release(message)


def postpone(world: RedisWorld, message: Message) -> Awaitable[bool]:
    return world.queue.postpone(message, 60)


def extend(world: RedisWorld, message: Message) -> Awaitable[bool]:
    return world.queue.extend(message, lease=600)


HELD: Final = leased(content(1, RUN), content(2, RUN), content(3, RUN))
KEYED: Final = leased(content(1, RUN), idempotency_key="k")
ENDS: Final[dict[str, Case]] = {
    "ack": Case("queue/ack", ack, KEYED),
    "ack, others are held": Case("queue/ack", ack, HELD),
    "ack, step under way": Case("queue/ack", ack, step_under_way),
    "ack, run over": Case("queue/ack", ack, run_over),
    "ack, lease lost": Case("queue/ack", ack, lost),
    "ack and continue": Case("queue/ack", ack_and_continue, HELD),
    "ack and continue, lease lost": Case("queue/ack", ack_and_continue, lost),
    "ack and repeat": Case("queue/ack", ack_and_repeat, KEYED),
    "ack and repeat, step": Case("queue/ack", ack_and_repeat, step_under_way),
    "retry": Case("queue/retry", retry, KEYED),
    "retry, others are held": Case("queue/retry", retry, HELD),
    "retry, lease lost": Case("queue/retry", retry, lost),
    "retry to death": Case("queue/retry", retry, failed_once, options={"max_failures": 2}),
    "release": Case("queue/release", release, KEYED),
    "release, others are held": Case("queue/release", release, HELD),
    "postpone": Case("queue/postpone", postpone, KEYED),
    "postpone, others are held": Case("queue/postpone", postpone, HELD),
    "postpone, lease lost": Case("queue/postpone", postpone, lost),
    "release, lease lost": Case("queue/release", release, lost),
    "extend": Case("queue/extend", extend, KEYED),
    "extend, lease lost": Case("queue/extend", extend, lost),
}


# Contract: 7.receipts
@pytest.mark.parametrize("name", ENDS)
async def test_a_lease_ends_once(backend: Backend, name: str) -> None:
    await hold_against_twin(backend, ENDS[name])


async def bury(world: RedisWorld, payload: dict[str, Any], **options: Any) -> str:
    """A dead letter of a World with max_failures=2."""
    message_id = await send(world, payload, **options)
    for error in ("first", "second"):
        assert await world.queue.retry(await claim_one(world), error=error, delay=0)
    return message_id


async def bury_one(world: RedisWorld, _: ManualClock) -> str:
    return await bury(world, content(1, RUN), idempotency_key="k")


async def bury_one_whose_key_is_taken(world: RedisWorld, _: ManualClock) -> str:
    message_id = await bury(world, content(1, RUN), idempotency_key="k")
    await send(world, content(2, RUN), idempotency_key="k")
    return message_id


async def bury_one_whose_step_is_over(world: RedisWorld, _: ManualClock) -> str:
    await create_run(world, RUN, "running")
    await write(world, RUN, lazy_start())
    message_id = await bury(world, step_message(run_id=RUN))
    await write(world, RUN, step_completed())
    return message_id


async def bury_some(world: RedisWorld, _: ManualClock) -> None:
    await create_run(world, RUN, "running")
    for payload in (content(1, RUN), step_message(run_id=RUN), {"any": 1}, content(2, OTHER)):
        await bury(world, payload)


def redrive(world: RedisWorld, message_id: str) -> Awaitable[str | None]:
    return world.queue.redrive(message_id)


async def redrive_late(world: RedisWorld, message_id: str) -> None:
    """One that was a letter still when it was looked for."""
    keys = world.connection.keys
    reply = await world.queue._redrive(keys, TOPIC, f"{message_id}/{RUN}")
    if reply[0] == b"MESSAGE_NOT_FOUND":
        raise MessageNotFoundError(message_id)


def redrive_all(world: RedisWorld, _: None) -> Awaitable[int]:
    return world.queue.redrive_all(TOPIC)


def purge(world: RedisWorld, _: None) -> Awaitable[int]:
    return world.queue.purge_dead_letters(TOPIC)


async def alive(world: RedisWorld, _: ManualClock) -> str:
    return await send(world, wake(RUN))


MORTAL: Final = {"max_failures": 2}
OF_LETTERS: Final[dict[str, Any]] = {"options": MORTAL, "repeats": "done"}
"""What looks for letters first finds none when it is repeated as a whole."""
LETTERS: Final[dict[str, Case]] = {
    "redrive": Case("queue/redrive", redrive, bury_one, **OF_LETTERS),
    # The letter is gone, and with it what would tell whose message has taken its place.
    "redrive, key taken": Case(
        "queue/redrive", redrive, bury_one_whose_key_is_taken, options=MORTAL, answers=False
    ),
    "redrive, step over": Case(
        "queue/redrive", redrive, bury_one_whose_step_is_over, **OF_LETTERS
    ),
    "redrive, alive": Case("queue/redrive", redrive_late, alive, refused=True),
    "redrive all": Case("queue/redrive", redrive_all, bury_some, **OF_LETTERS),
    "purge": Case("queue/purge", purge, bury_some, **OF_LETTERS),
}


@pytest.mark.parametrize("name", LETTERS)
async def test_dead_letters_go_once(backend: Backend, name: str) -> None:
    await hold_against_twin(backend, LETTERS[name])


async def owe_a_wake(world: RedisWorld, clock: ManualClock) -> None:
    await create_run(world, RUN, "running")
    await clock.advance(100)


async def owe_a_step(world: RedisWorld, clock: ManualClock) -> None:
    await create_run(world, RUN, "running")
    await world.events.create(RUN, event("run_started"), enqueue=Enqueue(NAME, wake(RUN)))
    await write(world, RUN, step_created())
    await clock.advance(100)


async def park(world: RedisWorld, clock: ManualClock) -> None:
    await create_run(world, RUN, "running")
    await send(world, wake(RUN))
    assert await world.queue.ack(await claim_one(world))
    await clock.advance(100)


async def lose_messages(world: RedisWorld, clock: ManualClock) -> None:
    """One that is due, the leased one of a run that holds another, and a dead letter."""
    third = RUN[:-1] + "Z"
    for run_id in (RUN, OTHER, third):
        await create_run(world, run_id, "running")
    lost = [await bury(world, content(0, third))]
    lost.append(await send(world, content(1, RUN)))
    await claim_one(world, lease=60)
    await send(world, content(2, RUN))
    assert await world.queue.claim(TOPIC) == []
    lost.append(await send(world, wake(OTHER)))
    for message_id in lost:
        await lose_record(world, message_id)
    assert await world.queue.claim(TOPIC) == []
    await clock.advance(30)
    await world.queue.purge_dead_letters(TOPIC)
    await clock.advance(70)
    assert await world.queue.claim(TOPIC) == []
    await clock.advance(100)


def sweeping(script: str, prepare: Prepare, **more: Any) -> Case:
    """A round of the sweeper, whose counts are of what it knows to have done itself."""
    return Case(script, lambda world, _: world.sweep(), prepare, answers=False, **more)


SWEEPS: Final[dict[str, Case]] = {
    "expired leases": sweeping("queue/expire", lose_leases),
    "a wake that is owed": sweeping("queue/pay_wake", owe_a_wake),
    "a step that is owed its message": sweeping("queue/pay_step", owe_a_step),
    "what a run is owed": sweeping("queue/owed", owe_a_step),
    "lost messages": sweeping("queue/mend", lose_messages, options=MORTAL),
    "a run without messages": sweeping("queue/unpark", park),
    "another worker is woken": Case(
        "queue/wake", lambda world, _: hand_on(world.connection, TOPIC, 0, "w"), send_all
    ),
    "an election": Case("worlds/elect", lambda world, _: elect(world.connection, "w", 10)),
    "a record of a sweep": sweeping("worlds/swept", park),
}


@pytest.mark.parametrize("name", SWEEPS)
async def test_a_sweep_rescues_once(backend: Backend, name: str) -> None:
    await hold_against_twin(backend, SWEEPS[name])


# -- batches -------------------------------------------------------------------------------


async def begin_steps(world: RedisWorld, _: ManualClock) -> None:
    await create_run(world, RUN, "running")
    started = [each for name in "abc" for each in (step_created(name), step_started(name))]
    await write(world, RUN, *started, wait_created("wait_1"))


async def end_with_steps(world: RedisWorld, clock: ManualClock) -> None:
    await begin_steps(world, clock)
    await write(world, RUN, event("run_failed", error=b"err"))


WAKE: Final = Enqueue(NAME, wake(RUN))


def batching(
    *events: Wire, prepare: Prepare = begin_steps, enqueue: Enqueue | None = WAKE
) -> Case:
    def call(world: RedisWorld, _: None) -> Awaitable[BatchResult]:
        return world.events.create_batch(RUN, events, enqueue=enqueue)

    return Case("events/batch", call, prepare)


BATCHES: Final[dict[str, Case]] = {
    "all accepted": batching(
        step_created("new"), step_started("new"), step_completed("a"), step_failed("b"),
        step_retrying("c"), wait_created("wait_2"), wait_completed("wait_1"),
    ),
    "some refused": batching(
        step_created("a"), step_started("a"), step_started("unknown"), step_completed("b"),
        wait_created("wait_1"),
    ),
    "all refused": batching(step_created("a"), wait_created("wait_1")),
    "the end of the run": batching(
        wait_completed("wait_1"), step_completed("a"), event("run_completed", output=b"out"),
        step_created("late"), step_failed("b"),
    ),
    "behind the end of the run": batching(
        step_completed("a"), step_created("late"), step_retrying("b"), prepare=end_with_steps
    ),
    "without a message": batching(step_started("a"), step_created("new"), enqueue=None),
    "with the message of a step that it ends": batching(
        step_completed("a"), enqueue=Enqueue(NAME, step_message("a", RUN))
    ),
    "a step that is born running": batching(
        step_created("new"), step_started("new"), enqueue=None
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
async def test_a_batch_is_recorded_once(backend: Backend, name: str) -> None:
    await hold_against_twin(backend, BATCHES[name])


# -- tokens across partitions --------------------------------------------------------------

APART: Final = {"partitions": 4}


async def hold_token(world: RedisWorld, clock: ManualClock) -> None:
    await create_run(world, RUN, "running")
    await create_run(world, OTHER, "running")
    await write(world, OTHER, hook_created("hook_9", "token_1"))
    # Now a hook that is not alive is taken for dead.
    await clock.advance(10)


async def lose_token(world: RedisWorld, clock: ManualClock) -> None:
    await hold_token(world, clock)
    await write(world, OTHER, hook_disposed("hook_9"))


async def want_token(world: RedisWorld, _: ManualClock) -> None:
    await create_run(world, RUN, "running")


def create_hook(world: RedisWorld, _: None) -> Awaitable[EventResult]:
    return world.events.create(RUN, hook_created())


TOKENS: Final[dict[str, Case]] = {
    "a reservation": Case("tokens/reserve", create_hook, want_token, options=APART),
    "a takeover": Case("tokens/reserve", create_hook, lose_token, options=APART),
    "a probe": Case("tokens/probe", create_hook, lose_token, options=APART),
    "a probe of a live one": Case("tokens/probe", create_hook, hold_token, options=APART),
    "the hook": Case("events/hook_created", create_hook, want_token, options=APART),
    "the conflict": Case("events/hook_created", create_hook, hold_token, options=APART),
    "a release": Case(
        "tokens/release", lambda world, _: world.sweep(), lose_token, options=APART, answers=False
    ),
}


@pytest.mark.parametrize("name", TOKENS)
async def test_a_token_is_had_once(backend: Backend, name: str) -> None:
    await hold_against_twin(backend, TOKENS[name])


# -- what goes -----------------------------------------------------------------------------


async def end_run(world: RedisWorld, _: ManualClock) -> None:
    await create_run(world, RUN, "running")
    await write(world, RUN, step_created(), wait_created(), event("run_completed", output=b""))
    await send(world, content(1, RUN))


async def end_run_of_many_streams(world: RedisWorld, _: ManualClock) -> None:
    """More than one script removes at a time."""
    await create_run(world, RUN, "running")
    await asyncio.gather(*(world.streams.write(RUN, f"s{n}", b"x") for n in range(201)))
    await write(world, RUN, event("run_completed", output=b""))


async def outlive_run(world: RedisWorld, clock: ManualClock) -> None:
    await create_run(world, RUN, "running")
    until_then = clock.now + timedelta(seconds=60)
    await write(world, RUN, hook_created(tokenRetentionUntil=until_then))
    await write(world, RUN, event("run_completed", output=b""))
    await clock.advance(60)


def prune(world: RedisWorld, _: None) -> Awaitable[int]:
    return world.prune(0)


def cancel_many(world: RedisWorld, _: None) -> Awaitable[CancelManyResult]:
    return world.runs.cancel_many([RUN, OTHER, "wrun_none"], "why")


async def two_runs(world: RedisWorld, _: ManualClock) -> None:
    await create_run(world, RUN, "running")
    await create_run(world, OTHER, "cancelled")


REMOVALS: Final[dict[str, Case]] = {
    "a run": Case("runs/remove", prune, end_run, repeats="done"),
    "runs that are cancelled": Case("events/run_cancelled", cancel_many, two_runs),
    "a large run": Case("runs/clean", prune, end_run_of_many_streams, repeats="done"),
    "a hook that has outlived its run": sweeping("hooks/expire", outlive_run),
}


@pytest.mark.parametrize("name", REMOVALS)
async def test_what_goes_goes_once(backend: Backend, name: str) -> None:
    await hold_against_twin(backend, REMOVALS[name])


# -- streams and opening -------------------------------------------------------------------


async def live_run(world: RedisWorld, _: ManualClock) -> None:
    await create_run(world, RUN, "running")


async def written_stream(world: RedisWorld, _: ManualClock) -> None:
    await world.streams.write(RUN, "s", b"0")


async def closed_stream(world: RedisWorld, _: ManualClock) -> None:
    await world.streams.write(RUN, "s", b"0")
    await world.streams.close(RUN, "s")


async def write_chunk(world: RedisWorld, _: None) -> None:
    await world.streams.write(RUN, "s", b"1")


async def write_twice(world: RedisWorld, _: None) -> None:
    await world.streams.write(RUN, "s", b"1")
    await world.streams.write(RUN, "s", b"2")


async def write_many(world: RedisWorld, _: None) -> None:
    await world.streams.write_many(RUN, "s", [b"1", b"", b"2"])


async def write_for_a_writer(world: RedisWorld, _: None) -> None:
    chunks = [b"1", b"", b"2"]
    await world.streams.write_many(RUN, "s", chunks, writer="ab" * 10, sequence=1)


async def close(world: RedisWorld, _: None) -> None:
    await world.streams.close(RUN, "s")


async def noted_run(world: RedisWorld, _: ManualClock) -> None:
    await world.streams.note_run(RUN, "s")


async def note_run(world: RedisWorld, _: None) -> None:
    await world.streams.note_run(RUN, "s")


async def note_another_run(world: RedisWorld, _: None) -> None:
    await world.streams.note_run(OTHER, "s")


STREAMS: Final[dict[str, Case]] = {
    "write": Case("streams/write", write_chunk, live_run, repeats="no"),
    "write, no run": Case("streams/write", write_chunk, repeats="no"),
    "write twice": Case("streams/write", write_twice, repeats="no"),
    "write behind another writer": Case(
        "streams/write", write_chunk, written_stream, repeats="no"
    ),
    "write many": Case("streams/write", write_many, written_stream, repeats="no"),
    "write, closed": Case("streams/write", write_chunk, closed_stream, refused=True),
    "write for a writer": Case("streams/write", write_for_a_writer, written_stream),
    "close": Case("streams/close", close, written_stream),
    "close, new": Case("streams/close", close),
    "close, closed": Case("streams/close", close, closed_stream),
    "note": Case("streams/note_run", note_run),
    "note again": Case("streams/note_run", note_run, noted_run),
    "note another run": Case("streams/note_run", note_another_run, noted_run),
}


# Contract: 8.one request once
@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_is_written_once(backend: Backend, name: str) -> None:
    await hold_against_twin(backend, STREAMS[name])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("is_new", [True, False])
async def test_a_namespace_is_opened(backend: Backend, loss: str, is_new: bool) -> None:
    replies, requests = LOSSES[loss]
    namespace = backend.namespace()
    if not is_new:
        async with direct_world(backend, namespace):
            pass
    before = backend.dump()
    async with cutting_proxy(backend.url) as proxy:
        proxy.drop_requests(runs("worlds/open"), times=requests)
        proxy.drop_replies(runs("worlds/open"), times=replies)
        async with RedisWorld(proxy.url, namespace=namespace, library=LIBRARY) as world:
            await world.runs.list()
        assert proxy.dropped == replies + requests
    after = backend.dump()
    assert len(after) == 1 if is_new else after == before


# -- late resends, pipelines, callers that give up ------------------------------------------

Meanwhile: TypeAlias = Callable[[RedisWorld], Awaitable[Any]]


def writing(*events: Wire) -> Meanwhile:
    return lambda world: write(world, RUN, *events)


def claim(world: RedisWorld) -> Awaitable[Message]:
    return claim_one(world)


async def claim_and_ack(world: RedisWorld) -> None:
    assert await world.queue.ack(await claim_one(world))


async def leave_the_new_step_open(world: RedisWorld) -> None:
    """A message of it is handled, and it goes on: it is owed another one."""
    await send(world, step_message("new", RUN))
    await claim_and_ack(world)


async def write_and_close(world: RedisWorld) -> None:
    await world.streams.write(RUN, "s", b"8")
    await world.streams.close(RUN, "s")


async def due_again(world: RedisWorld, message: Message) -> bool:
    return await world.queue.retry(message, delay=0)


async def ack_and_continue_at_once(world: RedisWorld, message: Message) -> bool:
    return await world.queue.ack(message, follow_up=FollowUp(idempotency_key="next"))


OVER: Final = run_ended("completed")
RUN_OVER: Final = (
    "run_started", "run_started, resilient", "attr_set of the workflow", "attr_set of a step",
    "step_created", "step_started", "step_started, lazy", "step_completed", "step_failed",
    "step_retrying", "hook_created", "hook_created, conflict", "hook_received",
    "hook_received, resume id", "hook_disposed", "wait_created", "wait_completed",
)  # fmt: skip
LATE_EVENTS: Final[dict[str, tuple[str, Meanwhile]]] = {
    **{f"{name}, run over": (name, writing(OVER)) for name in RUN_OVER},
    "run_created, run over": ("run_created", writing(event("run_started"), OVER)),
    "run_cancelled, again": ("run_cancelled", writing(run_ended("cancelled"))),
    "step_created, over": ("step_created", writing(step_started(), step_completed())),
    "step_started, over": ("step_started", writing(step_completed())),
    "step_started, again": ("step_started", writing(step_retrying(), step_started())),
    "step_started, lazy, again": (
        "step_started, lazy",
        writing(step_retrying(), step_started(), step_failed()),
    ),
    "step_started, failed": ("step_started", writing(step_failed())),
    "step_retrying, over": ("step_retrying", writing(step_started(), step_failed())),
    "hook_created, disposed": ("hook_created", writing(hook_disposed())),
    "hook_received, disposed": ("hook_received", writing(hook_received(), hook_disposed())),
    "hook_disposed, token taken": ("hook_disposed", writing(hook_created("hook_2", "token_1"))),
    "wait_created, completed": ("wait_created", writing(wait_completed())),
}
LATE: Final[dict[str, tuple[Case, Meanwhile]]] = {
    **{name: (EVENTS[which].case(), doing) for name, (which, doing) in LATE_EVENTS.items()},
    "event with a message, claimed": (
        EVENTS["step_completed"].case(enqueue=Enqueue(NAME, wake(RUN))), claim
    ),
    "event with a message, acked": (
        EVENTS["hook_received"].case(enqueue=Enqueue(NAME, content(1, RUN))), claim_and_ack
    ),
    "resume with a message, acked": (
        EVENTS["hook_received, resume id"].case(enqueue=Enqueue(NAME, content(1, RUN))),
        claim_and_ack,
    ),
    "start of a running run with a message, claimed": (
        EVENTS["run_started, running"].case(enqueue=Enqueue(NAME, content(1, RUN))),
        claim,
    ),
    "resume of a rival with a message, claimed": (
        EVENTS["hook_received, resumed"].case(enqueue=Enqueue(NAME, content(1, RUN))),
        claim,
    ),
    "send, claimed": (SENDS["replay"], claim),
    "retry, claimed": (Case("queue/retry", due_again, KEYED), claim),
    "release, claimed": (Case("queue/release", release, KEYED), claim),
    "ack and continue, claimed": (Case("queue/ack", ack_and_continue_at_once, KEYED), claim),
    "ack and continue, acked": (
        Case("queue/ack", ack_and_continue_at_once, KEYED), claim_and_ack
    ),
    "step that is born running, owed its message": (
        BATCHES["a step that is born running"], leave_the_new_step_open
    ),
    "write, closed": (STREAMS["write behind another writer"], write_and_close),
}  # fmt: skip
"""A call, and what others do between its first run and its resend."""


@pytest.mark.parametrize("name", LATE)
async def test_a_late_resend_gets_the_answer_of_its_first_run(backend: Backend, name: str) -> None:
    """And changes nothing of what happened since."""
    case, meanwhile = LATE[name]
    twin = await play_twin(backend, case)
    async with (
        direct_world(backend, twin.namespace) as (world, _),
        fragile_world(backend, twin.namespace) as (fragile, proxy),
    ):
        proxy.drop_replies(runs(case.script), then=proxy.cut)
        call = asyncio.ensure_future(case.call(fragile, twin.given))
        await until(lambda: proxy.dropped == 1)
        await meanwhile(world)
        before = backend.dump()
        proxy.restore()
        result = await call
        assert backend.dump() == before
    assert essence(result) == essence(twin.answer)


LAST: Final[dict[str, Case]] = {
    **{f"event {name}": EVENTS[name].case(enqueue=message_of(name)) for name in EVENTS},
    **{f"send {name}": SENDS[name] for name in SENDS},
    **ENDS,
    **LETTERS,
    **{f"stream, {name}": STREAMS[name] for name in STREAMS},
}


@pytest.mark.parametrize("real_backend", KINDS[1:] if IS_LONG else KINDS[1:2], indirect=True)
@pytest.mark.parametrize("name", LAST)
async def test_an_original_that_comes_last_changes_nothing(backend: Backend, name: str) -> None:
    """It was held up in the network, until its resend had been answered."""
    case = LAST[name]
    namespace = backend.namespace()
    given = await prepare(backend, namespace, case)
    held_up: list[list[bytes]] = []

    def first(command: list[bytes]) -> bool:
        if runs(case.script)(command):
            held_up.append(command)
            return True
        return False

    async with fragile_world(backend, namespace, **case.options) as (world, proxy):
        proxy.drop_requests(first)
        await outcome(case.call(world, given))
    before = backend.dump()
    with contextlib.closing(backend.client()) as client:
        client.execute_command(*held_up[0])  # type: ignore[no-untyped-call]
    assert backend.dump() == before


def essence(result: Any) -> Any:
    """Of an event's answer the event and the step, of others what nobody changes any more."""
    if isinstance(result, str):
        return result.partition("_")[0]
    if not isinstance(result, EventResult):
        return result
    found: dict[str, Any] = {"event": result.event, "step_created": result.step_created}
    if result.run is not None:
        found["run"] = result.run.run_id, result.run.created_at
    if result.step is not None:
        found["step"] = result.step
    if result.hook is not None:
        found["hook"] = result.hook.hook_id, result.hook.token, result.hook.created_at
    if result.wait is not None:
        found["wait"] = result.wait.wait_id, result.wait.resume_at, result.wait.created_at
    return found


async def assert_attempts_match(world: RedisWorld) -> None:
    """A step has had as many attempts as its log has starts."""
    starts = Counter(
        each.correlation_id for each in await log(world, RUN) if each.event_type == "step_started"
    )
    steps = (await world.steps.list(RUN, limit=1000)).data
    assert {step.step_id: step.attempt for step in steps if step.attempt} == starts


OVER_AND_OVER: Final[dict[str, Case]] = {
    "step_started": EVENTS["step_started"].case(),
    "step_retrying": EVENTS["step_retrying"].case(),
    "hook_received": EVENTS["hook_received"].case(enqueue=Enqueue(NAME, {"n": 1})),
    "attr_set": EVENTS["attr_set of a step"].case(),
    "send": SENDS["other"],
    "ack": ENDS["ack and continue"],
    "write": STREAMS["write many"],
}


async def test_a_network_that_comes_back_with_all_that_was_sent(backend: Backend) -> None:
    """A caller that waits in vain sends again, over one connection after the other."""

    async def come_back(twin: Twin, case: Case) -> Any:
        async with fragile_world(backend, twin.namespace, socket_timeout=0.5) as (world, proxy):
            before = proxy.accepted
            proxy.silence()
            call = asyncio.ensure_future(case.call(world, twin.given))
            await until(lambda: proxy.accepted == before + 2)
            proxy.resume()
            return await call

    twins = [await play_twin(backend, case) for case in OVER_AND_OVER.values()]
    answers = await asyncio.gather(*map(come_back, twins, OVER_AND_OVER.values()))
    # What was held back has all arrived when no connection is left.
    with contextlib.closing(backend.client()) as client:
        await until(lambda: len(client.client_list()) == 1)
    for twin, answer in zip(twins, answers, strict=True):
        twin.assert_same(backend, answer)


FORGOTTEN: Final = ("step_started", "ack", "send")


@pytest.mark.parametrize("name", FORGOTTEN)
async def test_a_server_that_has_lost_its_scripts_too(backend: Backend, name: str) -> None:
    """The script itself is sent then, and what is lost is the reply to that."""
    case = OVER_AND_OVER[name]
    twin = await play_twin(backend, case)
    async with fragile_world(backend, twin.namespace) as (world, proxy):
        with contextlib.closing(backend.client()) as client:
            client.script_flush()

        def is_source(command: list[bytes]) -> bool:
            return command[0] == b"EVAL" and runs(case.script)(command)

        proxy.drop_replies(is_source, times=2)
        answer = await case.call(world, twin.given)
        assert proxy.dropped == 2
    twin.assert_same(backend, answer)


CALLS: Final = 50
MIXTURES: Final = ("starts", "resumes", "messages", "all of them")
BREAKS: Final = [
    *((mixture, "reply") for mixture in MIXTURES),
    *((mixture, "request") for mixture in (MIXTURES if IS_LONG else MIXTURES[3:])),
]


@pytest.mark.parametrize("answered", range(CALLS) if IS_LONG else (1, 25, 49))
@pytest.mark.parametrize(("mixture", "lost"), BREAKS)
async def test_a_pipeline_that_breaks_on_the_way(
    backend: Backend, mixture: str, lost: str, answered: int
) -> None:
    """Every caller gets its own answer, and every call takes effect once."""
    namespace = backend.namespace()
    kinds = [MIXTURES[n % 3] if mixture == MIXTURES[3] else mixture for n in range(CALLS)]
    async with (
        direct_world(backend, namespace) as (world, _),
        fragile_world(backend, namespace) as (fragile, proxy),
    ):
        await create_run(world, RUN, "running")
        prepared = [hook_created(), *(step_created(f"s{n}") for n in range(CALLS))]
        await asyncio.gather(*(world.events.create(RUN, each) for each in prepared))
        drop = proxy.drop_replies if lost == "reply" else proxy.drop_requests
        drop(nth(answered + 1, runs()))
        results = await asyncio.gather(*(one_call(fragile, kinds[n], n) for n in range(CALLS)))
        assert proxy.dropped == 1
        await assert_done_once(world, kinds, results)


def one_call(world: RedisWorld, kind: str, number: int) -> Awaitable[Any]:
    match kind:
        case "starts":
            return world.events.create(RUN, step_started(f"s{number}"))
        case "resumes":
            return world.events.create(RUN, hook_received(payload=b"%d" % number))
        case _:
            return world.queue.send(NAME, {"number": number})


async def assert_done_once(world: RedisWorld, kinds: list[str], results: list[Any]) -> None:
    events = {each.event_id: each for each in (await log(world, RUN))[3 + CALLS :]}
    messages = await world.queue.claim(TOPIC, limit=1000)
    assert len(events) + len(messages) == CALLS
    numbers = {message.message_id: message.payload["number"] for message in messages}
    for number, (kind, result) in enumerate(zip(kinds, results, strict=True)):
        if kind == "messages":
            assert numbers.pop(result) == number
            continue
        assert events.pop(result.event.event_id) == result.event
        if kind == "starts":
            assert result.event.correlation_id == result.step.step_id == f"s{number}"
            assert (result.step.status, result.step.attempt) == ("running", 1)
        else:
            assert result.event.event_data.payload == b"%d" % number
    assert not events
    assert not numbers
    await assert_attempts_match(world)


async def test_a_caller_that_gives_up_in_the_middle_of_silence(backend: Backend) -> None:
    """Its reply comes later, over the connection that others use by then."""
    namespace = backend.namespace()
    async with (
        direct_world(backend, namespace) as (world, _),
        fragile_world(backend, namespace, max_connections=1) as (fragile, proxy),
    ):
        await create_run(world, RUN, "running")
        sent: list[list[bytes]] = []

        def hush(command: list[bytes]) -> bool:
            """Let the command through, and its reply not."""
            if runs("events/step_created")(command) and not sent:
                sent.append(command)
                proxy.silence()
            return False

        proxy.drop_replies(hush)
        given_up = asyncio.ensure_future(fragile.events.create(RUN, step_created("given up")))
        await until(lambda: bool(sent))
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        others = [asyncio.ensure_future(create_step(fragile, f"s{n}")) for n in range(5)]
        with contextlib.closing(backend.client()) as client:
            events = world.connection.keys.of_run(RUN).events
            await until(lambda: client.xlen(events) == 3)
        proxy.resume()
        assert await asyncio.gather(*others) == [f"s{n}" for n in range(5)]
        assert await step_ids(world) == ["given up", *(f"s{n}" for n in range(5))]
        assert proxy.dropped == 0


@pytest.mark.parametrize("lost", ["reply", "request"])
async def test_callers_that_give_up_while_a_reply_is_lost(backend: Backend, lost: str) -> None:
    """At every point of the way, with others in the same pipeline and behind it."""
    namespace = backend.namespace()
    async with (
        direct_world(backend, namespace) as (world, _),
        fragile_world(backend, namespace, max_connections=1) as (fragile, proxy),
    ):
        await create_run(world, RUN, "running")
        expected: set[str] = set()
        drop = proxy.drop_replies if lost == "reply" else proxy.drop_requests
        for turns in range(200 if IS_LONG else 40):
            drop(nth(1 + turns % 4, runs()))
            names = [f"{turns}-{n}" for n in range(4)]
            tasks = [asyncio.ensure_future(create_step(fragile, name)) for name in names]
            for _ in range(turns):
                await asyncio.sleep(0)
            tasks[turns // 4 % 4].cancel()
            behind = [f"{turns}-behind-{n}" for n in range(3)]
            answers = await asyncio.gather(
                *tasks, *(create_step(fragile, name) for name in behind), return_exceptions=True
            )
            for name, answer in zip(names + behind, answers, strict=True):
                assert answer == name or isinstance(answer, asyncio.CancelledError)
            expected |= {answer for answer in answers if isinstance(answer, str)}
            assert len(answers) - sum(isinstance(answer, str) for answer in answers) <= 1
        assert proxy.dropped
        found = await step_ids(world)
        assert len(found) == len(set(found))
        assert expected <= set(found)


async def create_step(world: RedisWorld, step_id: str) -> str:
    """Create a step; the id of the step that the answer is about."""
    result = await world.events.create(RUN, step_created(step_id))
    assert result.step is not None
    return result.step.step_id


async def step_ids(world: RedisWorld) -> list[str]:
    created = [each for each in await log(world, RUN) if each.event_type == "step_created"]
    return [each.correlation_id or "" for each in created]


def test_every_script_is_covered() -> None:
    """One that writes needs a case here; one that only reads, a place in the list."""
    covered = {
        case.script
        for cases in (SENDS, CLAIMS, ENDS, LETTERS, SWEEPS, BATCHES, TOKENS, REMOVALS, STREAMS)
        for case in cases.values()
    }
    covered |= {chosen.case().script for chosen in EVENTS.values()} | {"worlds/open"}
    assert not covered & READ_ONLY
    assert covered | READ_ONLY == {script.name for script in default_library()}


def test_scripts_that_are_said_to_only_read_do(real_backend: Backend) -> None:
    called = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'")
    with contextlib.closing(real_backend.client()) as client:
        commands = client.command()
    for name in READ_ONLY:
        text = (script_root() / f"{name}.lua").read_text(encoding="utf-8")
        for command in called.findall(text):
            assert "write" not in commands[command.lower()]["flags"], name
