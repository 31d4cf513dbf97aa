"""RedisWorld answers as the contract in plain Python does, whatever is asked of it.

`make chaos` runs the long form: 200 lives of 300 calls on every real server, and 20 on the
embedded one, which takes ten seconds and more for each. They are led in parts, so that all
workers share them. A life that fails is told call by call, less those that the failure does not
need.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from redis_world.queue import Enqueue
from support import events as e
from support.backends import Backend
from support.model_life import Life
from support.model_machine import ModelMachine
from support.model_messages import End
from support.queue_tools import NAME, TOPIC, content, health_check, step

IS_LONG = os.environ.get("REDIS_WORLD_CHAOS") == "long"
PARTS = 10 if IS_LONG else 1
LIVES, MEMORY_LIVES = (8, 2) if IS_LONG else (8, 4)
"""In each part."""


def live(backend: Backend, **options: Any) -> None:
    """Lead random lives in Worlds of these options, the same ones whenever lives are few."""
    machine = type("Machine", (ModelMachine,), {"backend": backend, "options": options})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=MEMORY_LIVES if backend.is_memory else LIVES,
            stateful_step_count=300 if IS_LONG else 150,
            deadline=None,
            derandomize=not IS_LONG,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# A failure takes minutes to be told in few calls.
@pytest.mark.timeout(0 if IS_LONG else 900)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_calls_have_the_answers_of_the_reference(backend: Backend, part: int) -> None:
    live(backend)


# -- what chance seldom tells ------------------------------------------------------------------


def behind_a_dead_letter(life: Life) -> None:
    """A step without its message waits while another step's letter is the operator's."""
    run_id = life.run_id(0)
    life.create(0, [(wire, {}) for wire in (e.run_created(), e.event("run_started"))])
    life.create(0, [(e.step_created(name), {}) for name in ("a", "b")])
    life.send([Enqueue(NAME, step("a", run_id))])
    life.fail_for_good(TOPIC, 10, purges=False)
    life.idle([20, 20], 0)
    life.purge(TOPIC)
    life.idle([20, 20], 10)


def with_somebody_elses_message(life: Life) -> None:
    """A run whose creation brings a message along that is not its own."""
    life.create(0, [(e.run_created(), {})], message=Enqueue(NAME, health_check()))
    life.idle([20, 20], 10)


def of_a_workflow_without_a_name(life: Life) -> None:
    """There is no queue to be known by its workflow."""
    life.create(0, [(e.run_created(workflowName=""), {})])
    life.idle([20, 20], 10)


def with_a_message_for_later(life: Life) -> None:
    """An event whose message comes, but not soon."""
    later = Enqueue(NAME, content("timer", life.run_id(0)), 10**6)
    life.create(0, [(wire, {}) for wire in (e.run_created(), e.event("run_started"))])
    life.idle([20, 20], 10)
    life.create(0, [(wire, {}) for wire in (e.lazy_start(), e.step_completed())], message=later)
    life.idle([20, 20], 10)


def wakes_of_a_run_without_its_data(life: Life) -> None:
    """Their headers went with the data: nothing tells one wake from the next."""
    run_id = life.run_id(0)
    creation = e.run_created(attributes={"$retention": "0"}, allowReservedAttributes=True)
    wakes = [
        Enqueue(NAME, {"runId": run_id}, headers=headers) for headers in ({"h": "1"}, None, None)
    ]
    life.create(0, [(wire, {}) for wire in (creation, e.event("run_started"))])
    life.work([End("ack")] * 10)
    life.send(wakes[:1])
    life.create(0, [(e.run_ended("completed"), {})])
    life.send(wakes)
    life.sweep()
    life.send(wakes)
    life.work([End("ack")])
    life.send(wakes)
    life.idle([20], 10)


# Contract: 7.no run is left behind
@pytest.mark.parametrize(
    "story",
    [
        behind_a_dead_letter,
        with_somebody_elses_message,
        of_a_workflow_without_a_name,
        with_a_message_for_later,
        wakes_of_a_run_without_its_data,
    ],
)
def test_no_run_is_left_behind(backend: Backend, story: Callable[[Life], None]) -> None:
    life = Life(backend)
    try:
        story(life)
        life.read_everything("all")
    finally:
        life.close()
