"""Failures that repeat are logged as transitions."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Any

import pytest

from redis_world.outages import Outage


class Scene:
    """An outage with a clock of its own, and what it has logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "redis_world.outages")
        self._caplog = caplog
        self.now = 100.0
        self.outage = Outage(lambda: "127.0.0.1:6379", clock=lambda: self.now)

    def told(self) -> list[Any]:
        """The lines since the last look: level, event, seconds, text."""
        rows = [
            (r.levelname, r.__dict__["event"], r.__dict__["seconds"], r.getMessage())
            for r in self._caplog.records
        ]
        self._caplog.clear()
        return rows


@pytest.fixture
def scene(caplog: pytest.LogCaptureFixture) -> Scene:
    return Scene(caplog)


LOST = ("WARNING", "redis.lost", 0.0, "lost Redis at 127.0.0.1:6379: refused")


def test_an_outage_is_three_kinds_of_lines(scene: Scene) -> None:
    scene.outage.failed("claim", ConnectionError("refused"))
    assert scene.told() == [LOST]
    for _ in range(119):
        scene.now += 0.5
        scene.outage.failed("claim", ConnectionError("refused"))
    assert scene.told() == []
    scene.now += 0.5
    scene.outage.failed("claim", ConnectionError("refused"))
    text = "still lost after 60 s: Redis at 127.0.0.1:6379: refused"
    assert scene.told() == [("WARNING", "redis.still_lost", 60.0, text)]
    scene.now += 3.24
    scene.outage.succeeded("claim")
    assert scene.told() == [("INFO", "redis.reconnected", 63.2, "reconnected after 63.2 s")]
    scene.outage.succeeded("claim")
    assert scene.told() == []
    scene.outage.failed("claim", ConnectionError("refused"))
    assert scene.told() == [LOST], "the next outage"


def test_several_sources_tell_one_outage(scene: Scene) -> None:
    for source in ("notifications", "claim", "sweep", "heartbeat"):
        scene.outage.failed(source, "refused")
    assert scene.told() == [LOST]
    scene.now += 2
    scene.outage.succeeded("claim")
    assert [row[1] for row in scene.told()] == ["redis.reconnected"]
    for source in ("notifications", "sweep", "heartbeat"):
        scene.outage.succeeded(source)
    assert scene.told() == []


def test_success_of_a_source_that_never_failed_ends_nothing(scene: Scene) -> None:
    scene.outage.failed("notifications", "refused")
    scene.told()
    scene.outage.succeeded("claim")
    assert scene.told() == []
    scene.outage.succeeded("notifications")
    assert [row[1] for row in scene.told()] == ["redis.reconnected"]


def test_one_source_that_goes_on_failing_does_not_flap(scene: Scene) -> None:
    scene.outage.failed("notifications", "refused")
    scene.outage.failed("claim", "refused")
    scene.outage.succeeded("claim")
    scene.told()
    for _ in range(118):
        scene.now += 0.5
        scene.outage.failed("notifications", "refused")
        scene.outage.succeeded("claim")
    assert scene.told() == []
    scene.now += 1
    scene.outage.failed("notifications", "refused")
    assert [row[1:3] for row in scene.told()] == [("redis.still_lost", 60.0)]
    scene.outage.succeeded("notifications")
    assert [row[1:3] for row in scene.told()] == [("redis.reconnected", 60.0)]


def test_the_first_line_says_what_was_lost(scene: Scene) -> None:
    scene.outage.failed(
        "notifications",
        "closed",
        what="the notification connection to",
        meanwhile="polling every second until it is back",
    )
    assert scene.told()[0][3] == (
        "lost the notification connection to 127.0.0.1:6379: closed; "
        "polling every second until it is back"
    )


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"), [(UnspeakableError(), "UnspeakableError"), (TimeoutError(), "TimeoutError")]
)
def test_an_error_without_a_text(scene: Scene, error: Exception, text: str) -> None:
    scene.outage.failed("claim", error)
    assert scene.told()[0][3] == f"lost Redis at 127.0.0.1:6379: {text}"


def test_many_threads_tell_one_outage(scene: Scene) -> None:
    start = threading.Barrier(8)

    def fail(number: int) -> None:
        start.wait()
        for _ in range(200):
            scene.outage.failed(f"source {number}", "refused")

    threads = [threading.Thread(target=fail, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scene.told() == [LOST]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(scene: Scene) -> None:
    with scene.outage._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            scene.outage.failed("claim", ConnectionError("refused"))
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
