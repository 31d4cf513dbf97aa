"""The simulation finds every rule of the queue that is taken away.

Each mutant is a text of the scripts replaced by another one (`support/simulation_mutants_*.py`); a
text that is not there any more, or is there twice, fails. `make chaos` also lives each life with
all rules, and tells how many other lives find the mutant.
"""

# Contract: 7.delivery

from __future__ import annotations

import os
from typing import Final

import pytest

from support.backends import Backend
from support.queue_simulation import simulate
from support.simulation_mutants import Mutant
from support.simulation_mutants_of_resends import RESENDS
from support.simulation_mutants_of_rules import RULES

IS_LONG: Final = os.environ.get("REDIS_WORLD_CHAOS") == "long"
MUTANTS: Final = {**RULES, **RESENDS}

pytestmark = pytest.mark.parametrize("backend", ["memory"], indirect=True)
each_mutant = pytest.mark.parametrize("name", MUTANTS)


async def what_is_found(backend: Backend, mutant: Mutant, seed: int, operations: int) -> str:
    """What the simulation says; "" when it finds nothing."""
    library = mutant.library()
    try:
        await simulate(
            backend, seed, operations, library=library, judge_every=1, favoured=mutant.favoured
        )
    except AssertionError as error:
        return f"found: {error}"
    return ""


@each_mutant
async def test_a_rule_that_is_missing_is_found(backend: Backend, name: str) -> None:
    mutant = MUTANTS[name]
    found = await what_is_found(backend, mutant, mutant.seed, mutant.operations)
    assert found, f"nothing was found by seed {mutant.seed} in {mutant.operations} operations"
    assert mutant.says in found
    if IS_LONG:
        # With all rules the same life finds nothing.
        await simulate(
            backend, mutant.seed, mutant.operations, judge_every=1, favoured=mutant.favoured
        )
