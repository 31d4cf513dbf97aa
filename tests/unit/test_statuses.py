"""The statuses of entities (contract, section 3), and those of scripts that are errors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from pydantic import ValidationError

from redis_world.errors import ScriptError
from redis_world.events.plans import PLANS
from redis_world.lua import Script, default_library
from redis_world.models import Model, Run, Step, Wait
from redis_world.refusals import REFUSALS, refusal

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
COMMON: Final[dict[str, Any]] = {
    "runId": "wrun_1",
    "specVersion": 7,
    "createdAt": NOW,
    "updatedAt": NOW,
}
ENTITIES: Final[dict[type[Model], dict[str, Any]]] = {
    Run: {**COMMON, "deploymentId": "d", "workflowName": "w"},
    Step: {**COMMON, "stepId": "s", "stepName": "s", "attempt": 1},
    Wait: {**COMMON, "waitId": "wrun_1-w", "resumeAt": NOW},
}
WORK: Final = {"pending", "running", "completed", "failed", "cancelled"}
STATUSES: Final[dict[type[Model], set[str]]] = {
    Run: WORK,
    Step: WORK,
    Wait: {"waiting", "completed"},
}


# Contract: 3.run, 3.step, 3.wait
@pytest.mark.parametrize("model", ENTITIES)
def test_an_entity_has_its_statuses_and_no_other(model: type[Model]) -> None:
    accepted = set()
    for status in WORK | {"waiting", "disposed", "done", ""}:
        try:
            entity = model.from_wire({**ENTITIES[model], "status": status})
        except ValidationError:
            continue
        assert entity.to_wire()["status"] == status
        accepted.add(status)
    assert accepted == STATUSES[model]


def statuses_of(script: Script) -> set[str]:
    """What the header of a script promises."""
    return {answer.split()[0] for answer in script.returns.split("|")}


def test_every_refusal_of_an_event_is_an_error_and_no_other_status() -> None:
    library = default_library()
    # What only the creation of a hook across partitions hears.
    of_tokens = {"UNRESERVED", "REVOKED"}
    refused: set[str] = set()
    for plan in PLANS.values():
        accepted = {status.decode() for status in plan.accepted}
        promised = statuses_of(library[plan.script])
        assert accepted <= promised, plan.script
        refused |= promised - accepted
    assert refused - of_tokens == set(REFUSALS)


@pytest.mark.parametrize("name", ["steps/get", "waits/get"])
def test_every_refusal_of_a_look_at_an_entity_is_an_error(name: str) -> None:
    assert statuses_of(default_library()[name]) - {"OK"} <= set(REFUSALS)


@pytest.mark.parametrize("reply", [[b"FROM_LATER"], [b"FROM_LATER", b"detail"]])
def test_a_status_of_another_release_is_told(reply: list[bytes]) -> None:
    error = refusal(reply, run_id="wrun_1", entity_id="s")
    assert isinstance(error, ScriptError)
    assert str(error) == "unexpected status FROM_LATER for 's' of run wrun_1"
