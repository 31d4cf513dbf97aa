"""Names, kinds, delays and back-off of messages (contract, section 7)."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from redis_world.codec import to_duration_ms
from redis_world.errors import InvalidInputError
from redis_world.queue import FollowUp, backoff, topic_of


# Contract: 7.sending
@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("__wkf_workflow_orders", "__wkf_workflow_"),
        ("__wkf_workflow__", "__wkf_workflow_"),
        ("__wkf_workflow_\n", "__wkf_workflow_"),
        ("__wkf_workflow_workflow//./a//b", "__wkf_workflow_"),
        ("__wkf_workflow_wkf_workflow_a", "__wkf_workflow_"),
        ("__a_wkf_workflow_orders", "__a_wkf_workflow_"),
        ("__a1b2_wkf_workflow_orders", "__a1b2_wkf_workflow_"),
        ("__wkf_wkf_workflow_orders", "__wkf_wkf_workflow_"),
        ("__wkf_workflow_health_check", "__wkf_workflow_"),
    ],
)
def test_a_topic_is_the_name_up_to_the_workflow(name: str, topic: str) -> None:
    assert topic_of(name) == topic


# Contract: 7.sending
@pytest.mark.parametrize(
    "name",
    [
        "",
        "__wkf_workflow_",
        "__a_wkf_workflow_",
        "wkf_workflow_orders",
        "_wkf_workflow_orders",
        " __wkf_workflow_orders",
        "\n__wkf_workflow_orders",
        "__wkf_steps_orders",
        "__a_b_wkf_workflow_orders",
        "__A_wkf_workflow_orders",
        "__1a_wkf_workflow_orders",
        "__a-b_wkf_workflow_orders",
        "__é_wkf_workflow_orders",
        "___wkf_workflow_orders",
        None,
        7,
        b"__wkf_workflow_orders",
    ],
)
def test_what_is_no_queue_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInputError):
        topic_of(name)


# Contract: 7.delay
@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [
        (0, 0),
        (-0.0, 0),
        (0.001, 1),
        (0.0001, 1),
        (0.00101, 2),
        (0.1, 100),
        (0.29, 290),  # its float times 1,000 is a little more than 290
        (1.1, 1100),
        (3, 3000),
        (timedelta(microseconds=10), 1),
        (timedelta(milliseconds=7), 7),
        (timedelta(days=365), 31_536_000_000),
        (timedelta(days=36_500, microseconds=100), 3_153_600_000_001),
        (1e12, 10**15),
    ],
)
def test_a_delay_is_whole_milliseconds_and_never_less(
    delay: float | timedelta, milliseconds: int
) -> None:
    assert to_duration_ms(delay, "delay") == milliseconds


# Contract: 7.delay
@pytest.mark.parametrize(
    "delay",
    [
        -1,
        -0.001,
        -1e-9,
        timedelta(microseconds=-1),
        math.nan,
        math.inf,
        -math.inf,
        True,
        None,
        "1",
        b"1",
        1j,
        10**400,
        1.7e308,
    ],
    ids=lambda delay: str(delay)[:20],
)
def test_what_is_no_delay_is_refused(delay: Any) -> None:
    with pytest.raises(InvalidInputError):
        to_duration_ms(delay, "delay")


# Contract: 7.failures
def test_the_backoff_is_short_at_first_then_doubles_and_is_capped() -> None:
    expected = [5, 5, 5, 10, 20, 40, 80, 160, 300, 300]
    for failures, seconds in enumerate(expected, start=1):
        waits = [backoff(failures) for _ in range(200)]
        assert all(seconds <= wait <= seconds * 1.1 for wait in waits)
        assert len({*waits}) > 1  # what failed together does not come back together
    assert 300 <= backoff(10_000) <= 330


# Contract: 7.continuation
def test_a_continuation_is_due_at_once_unless_it_says_otherwise() -> None:
    assert FollowUp() == FollowUp(delay=0.0, idempotency_key=None)
