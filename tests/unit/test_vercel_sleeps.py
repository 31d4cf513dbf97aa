"""A run is woken when its sleeps end, however often and late it was replayed meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from vercel.workflow._internal import world as w

from redis_world.vercel.outbox import Ahead, delivery

HOUR = 3600


def begun(wait: str, seconds: float) -> w.WaitCreatedEvent:
    end = datetime.now(UTC) + timedelta(seconds=seconds)
    return w.WaitCreatedEventData(resume_at=end).into_event(wait)


def asked(ahead: Ahead, delay: float, key: str | None) -> tuple[float, str | None]:
    answer = ahead.on_time(w.QueueContinuation(delay_seconds=delay, idempotency_key=key))
    assert answer is not None
    return answer.delay_seconds, answer.idempotency_key


@pytest.fixture
def ahead() -> Ahead:
    with delivery("__wkf_workflow_flow", is_replay=True) as here:
        here.see(begun("wait_1", 10 * HOUR))
        here.see(begun("wait_2", 6 * HOUR))
        return here


def test_what_a_replay_asks_for(ahead: Ahead) -> None:
    assert asked(ahead, 6 * HOUR, "wait_2") == (6 * HOUR, "wait_2")


def test_a_replay_that_computes_a_later_end(ahead: Ahead) -> None:
    ahead.see(w.WaitCompletedEvent(correlation_id="wait_2"))
    assert asked(ahead, 16 * HOUR, "wait_1") == (10 * HOUR, "wait_1")


def test_a_sleep_that_is_begun_again_ends_as_at_first(ahead: Ahead) -> None:
    ahead.see(begun("wait_2", 60 * HOUR))
    assert asked(ahead, 10 * HOUR, "wait_1") == (6 * HOUR, "wait_1")


def test_a_long_sleep_has_no_hops() -> None:
    with delivery("__wkf_workflow_flow", is_replay=True) as here:
        here.see(begun("wait_1", 30 * 24 * HOUR))
        assert asked(here, 82_800, "wait_1:hop-32") == (30 * 24 * HOUR, "wait_1")


def test_a_sleep_that_has_ended_is_seen_soon(ahead: Ahead) -> None:
    ahead.see(begun("wait_3", -5))
    assert asked(ahead, 6 * HOUR, "wait_2:1234") == (1, "wait_2:1234")


@pytest.mark.parametrize("key", [None, "", "step_1"])
def test_what_is_no_sleep(ahead: Ahead, key: str | None) -> None:
    assert asked(ahead, 3.0, key) == (3.0, key)


def test_a_replay_that_ends(ahead: Ahead) -> None:
    assert ahead.on_time(None) is None
