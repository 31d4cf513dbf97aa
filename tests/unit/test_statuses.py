"""The statuses that entities can have (contract, section 3)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from pydantic import ValidationError

from redis_world.models import Model, Run, Step, Wait

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
