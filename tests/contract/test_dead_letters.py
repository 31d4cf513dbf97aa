"""Dead letters: what is put aside can be looked at, sent again, deleted (contract, section 7)."""

# Contract: 7.dead letters

from __future__ import annotations

from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidCursorError, InvalidInputError, MessageNotFoundError
from redis_world.queue import Message
from redis_world.testing import ManualClock
from support import events as e
from support.backends import Backend

TOPIC: Final = "__wkf_workflow_"
NAME: Final = f"{TOPIC}orders"
Clocked = tuple[RedisWorld, ManualClock]


async def bury(world: RedisWorld, payload: dict[str, Any], **options: Any) -> Message:
    """Send a message, and let it fail until it is a dead letter."""
    sent = await world.queue.send(NAME, payload, **options)
    while True:
        claimed = await world.queue.claim(TOPIC)
        (message,) = [each for each in claimed if each.message_id == sent]
        assert await world.queue.retry(message, error="no good: \ud800é", delay=0)
        if (await world.queue.stats(TOPIC)).ready == 0:
            return message


@pytest.fixture
def mortal(backend: Backend) -> RedisWorld:
    """A World whose messages die at their second failure."""
    return backend.world(max_failures=2, max_lost_leases=2)


async def test_a_dead_letter_tells_its_story(mortal: RedisWorld) -> None:
    async with mortal as world:
        payload = {"runId": "wrun_x", "content": b"\x00\xff", "n": 2**53 + 1}
        message = await bury(
            world, payload, idempotency_key="k", headers={"h": "1"}, deployment_id="d"
        )
        (letter,) = (await world.queue.dead_letters(TOPIC)).data
        assert letter.message_id == message.message_id
        assert (letter.queue_name, letter.payload) == (NAME, payload)
        assert (letter.headers, letter.deployment_id, letter.idempotency_key) == (
            {"h": "1"},
            "d",
            "k",
        )
        assert (letter.reason, letter.attempt, letter.failures) == ("max_failures", 2, 2)
        assert letter.lost_leases == 0
        assert letter.last_error is not None
        assert letter.last_error.startswith("no good: ")
        assert letter.enqueued_at <= letter.died_at


async def test_lost_leases_are_another_reason(backend: Backend) -> None:
    async with backend.world(library=ManualClock.library(), max_lost_leases=2) as world:
        clock = await ManualClock(world).set()
        await world.queue.send(NAME, {"runId": "wrun_x", "x": 1})
        for _ in range(2):
            assert len(await world.queue.claim(TOPIC, lease=10)) == 1
            await clock.advance(11)
            await world.sweep()
        (letter,) = (await world.queue.dead_letters(TOPIC)).data
        assert (letter.reason, letter.lost_leases) == ("max_lost_leases", 2)
        assert (letter.failures, letter.last_error) == (0, None)
        assert letter.died_at == clock.now


@pytest.mark.parametrize("limit", range(1, 8))
async def test_pages_of_dead_letters(backend: Backend, limit: int) -> None:
    """Several die in each millisecond."""
    async with backend.world(library=ManualClock.library(), max_failures=2) as world:
        clock = await ManualClock(world).set()
        buried = []
        for number in range(6):
            message = await bury(world, {"runId": "wrun_x", "x": number})
            buried.append((number // 3, message.message_id))
            if number % 3 == 2:
                await clock.advance(0.001)
        found: list[str] = []
        cursor = None
        while True:
            page = await world.queue.dead_letters(TOPIC, limit=limit, cursor=cursor)
            found += [letter.message_id for letter in page.data]
            assert page.has_more is (len(found) < 6)
            cursor = page.cursor
            if not page.has_more:
                break
        assert found == [message_id for _, message_id in sorted(buried)]
        assert (await world.queue.dead_letters(TOPIC, cursor=cursor)).data == []
        late = await bury(world, {"runId": "wrun_x", "x": "late"})
        (letter,) = (await world.queue.dead_letters(TOPIC, cursor=cursor)).data
        assert letter.message_id == late.message_id


async def test_bad_questions(world: RedisWorld) -> None:
    with pytest.raises(InvalidCursorError):
        await world.queue.dead_letters(TOPIC, cursor="runs:x")
    with pytest.raises(InvalidInputError):
        await world.queue.dead_letters(TOPIC, limit=0)
    with pytest.raises(InvalidInputError):
        await world.queue.dead_letters("orders")
    assert (await world.queue.dead_letters(TOPIC)).data == []
    assert await world.queue.purge_dead_letters(TOPIC) == 0


async def test_a_redriven_message_begins_anew(mortal: RedisWorld) -> None:
    async with mortal as world:
        letter = await bury(world, {"runId": "wrun_x", "x": 1}, idempotency_key="k")
        assert await world.queue.redrive(letter.message_id) == letter.message_id
        stats = await world.queue.stats(TOPIC)
        assert (stats.ready, stats.dead) == (1, 0)
        # Its key is taken again.
        assert await world.queue.send(NAME, {"runId": "wrun_x"}, idempotency_key="k") == (
            letter.message_id
        )
        (message,) = await world.queue.claim(TOPIC)
        assert (message.message_id, message.attempt, message.failures) == (
            letter.message_id,
            1,
            0,
        )
        assert message.payload == letter.payload
        assert await world.queue.ack(message)


async def test_what_is_no_dead_letter_can_not_be_redriven(world: RedisWorld) -> None:
    sent = await world.queue.send(NAME, {"runId": "wrun_x", "x": 1})
    assert sent is not None
    for message_id in (sent, "msg_00000000000000000000000000", ""):
        with pytest.raises(MessageNotFoundError):
            await world.queue.redrive(message_id)
    assert (await world.queue.stats(TOPIC)).ready == 1


async def test_a_letter_whose_place_is_taken_gives_way(mortal: RedisWorld) -> None:
    async with mortal as world:
        run_id = await e.new_run(world)
        await e.write(world, run_id, e.step_created())
        payload = {"runId": run_id, "stepId": "step_1"}
        letter = await bury(world, payload)
        newer = await world.queue.send(NAME, payload)
        assert newer != letter.message_id
        assert await world.queue.redrive(letter.message_id) == newer
        stats = await world.queue.stats(TOPIC)
        assert (stats.ready, stats.dead) == (1, 0)


async def test_a_letter_of_a_step_that_is_over_only_goes(mortal: RedisWorld) -> None:
    async with mortal as world:
        run_id = await e.new_run(world)
        await e.write(world, run_id, e.step_created())
        letter = await bury(world, {"runId": run_id, "stepId": "step_1"})
        await e.write(world, run_id, e.step_completed())
        assert await world.queue.redrive(letter.message_id) is None
        stats = await world.queue.stats(TOPIC)
        assert (stats.ready, stats.dead) == (0, 0)


@pytest.mark.parametrize("how", ["purge", "redrive"])
async def test_nothing_is_left_of_a_finished_run(
    mortal: RedisWorld, backend: Backend, how: str
) -> None:
    async with mortal as world:
        run_id = await e.new_run(world)
        letters = [await bury(world, {"runId": run_id, "x": n}) for n in range(3)]
        await e.write(world, run_id, e.run_ended("completed"))
        if how == "purge":
            assert await world.queue.purge_dead_letters(TOPIC) == 3
        else:
            for letter in letters:
                await world.queue.redrive(letter.message_id)
            while messages := await world.queue.claim(TOPIC):
                assert [await world.queue.ack(message) for message in messages]
        left = [key for key in backend.dump() if b":queue" in key and b":topics" not in key]
        assert left == []


async def test_a_purge_leaves_what_is_alive(mortal: RedisWorld) -> None:
    async with mortal as world:
        await bury(world, {"runId": "wrun_x", "x": 1})
        alive = await world.queue.send(NAME, {"runId": "wrun_x", "x": 2}, delay=60)
        assert await world.queue.purge_dead_letters(TOPIC) == 1
        stats = await world.queue.stats(TOPIC)
        assert (stats.delayed, stats.dead) == (1, 0)
        assert alive is not None


async def test_many_are_purged_in_bounded_rounds(
    mortal: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_world.queue._LETTERS_AT_ONCE", 2)
    async with mortal as world:
        for number in range(5):
            await bury(world, {"runId": f"wrun_{number}", "x": 1})
        assert await world.queue.purge_dead_letters(TOPIC) == 5
        assert (await world.queue.dead_letters(TOPIC)).data == []


@pytest.mark.parametrize("how", ["purge", "redrive"])
async def test_letters_without_a_run(mortal: RedisWorld, backend: Backend, how: str) -> None:
    """Health checks and other messages that are no run's."""
    async with mortal as world:
        letter = await bury(world, {"__healthCheck": True, "correlationId": "c"})
        if how == "purge":
            assert await world.queue.purge_dead_letters(TOPIC) == 1
        else:
            assert await world.queue.redrive(letter.message_id) == letter.message_id
            (message,) = await world.queue.claim(TOPIC)
            assert await world.queue.ack(message)
        assert not [key for key in backend.dump() if b":queue" in key]
