"""RedisWorld answers as the contract in plain Python does, whatever is asked of it.

`make chaos` runs the long form: 500 lives of 300 calls, on every server.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from support.backends import Backend
from support.model_machine import ModelMachine

IS_LONG = os.environ.get("REDIS_WORLD_CHAOS") == "long"


def live(backend: Backend, lives: int, **options: Any) -> None:
    """Lead random lives in Worlds of these options, the same ones whenever lives are few."""
    machine = type("Machine", (ModelMachine,), {"backend": backend, "options": options})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=500 if IS_LONG else lives,
            stateful_step_count=300 if IS_LONG else 150,
            deadline=None,
            derandomize=not IS_LONG,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_calls_have_the_answers_of_the_reference(backend: Backend) -> None:
    live(backend, 5 if backend.is_memory else 10)
