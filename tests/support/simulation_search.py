"""Finds seeds for the mutants again, after a change of the simulation.

`python tests/support/simulation_search.py [WORD]...` lives short lives of each mutant, or of those
with one of the words in their names, then longer ones, and prints the seed and the operations that
belong into its entry.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.backends import Backend
from support.queue_simulation import simulate
from support.simulation_mutants import Mutant
from support.simulation_mutants_of_resends import RESENDS
from support.simulation_mutants_of_rules import RULES

LIVES: Final = (20, 40, 80, 160, 320)
SEEDS: Final = 20


async def is_found(backend: Backend, mutant: Mutant, seed: int, operations: int) -> bool:
    library = mutant.library()
    try:
        await simulate(
            backend, seed, operations, library=library, judge_every=1, favoured=mutant.favoured
        )
    except AssertionError as error:
        return mutant.says in str(error)
    finally:
        backend.clear()
    return False


def search(backend: Backend, mutant: Mutant) -> str:
    for operations in LIVES:
        for seed in range(SEEDS):
            if asyncio.run(is_found(backend, mutant, seed, operations)):
                return f"seed={seed}, operations={operations}"
    return "not found"


def main() -> None:
    words = sys.argv[1:]
    logging.disable(logging.WARNING)
    backend = Backend("memory", "memory://search")
    for name, mutant in {**RULES, **RESENDS}.items():
        if not words or any(word in name for word in words):
            found = search(backend, mutant)
            print(f"{name}: {found}", flush=True)  # noqa: T201 - what it is for


if __name__ == "__main__":
    main()
