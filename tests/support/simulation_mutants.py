"""Scripts from which one rule was taken away."""

from __future__ import annotations

from dataclasses import dataclass

from redis_world.lua import ScriptLibrary, script_root
from redis_world.testing import ManualClock

__all__ = ["Mutant", "mutant"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule less.

    Attributes:
        changes: libraries or scripts, a text that is in each exactly once, and what takes its
            place.
        seed: of a simulation that finds it
        operations: within so many operations, and the end behind them.
        says: what the simulation says of it, among other things.
        favoured: operations that happen more often there.
    """

    changes: tuple[tuple[str, str, str], ...]
    seed: int
    operations: int
    says: str
    favoured: tuple[str, ...] = ()

    def library(self) -> ScriptLibrary:
        """The scripts without the rule, on a manual clock."""
        clocked = ManualClock.library()
        texts = dict(clocked._overrides)
        for file, old, new in self.changes:
            text = texts.get(file) or clocked._read(file, ())
            assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
            texts[file] = text.replace(old, new)
        return ScriptLibrary(script_root(), texts)


def mutant(
    file: str,
    *changes: tuple[str, str],
    seed: int,
    operations: int,
    says: str,
    favoured: tuple[str, ...] = (),
) -> Mutant:
    """All changes in one file."""
    return Mutant(tuple((file, *change) for change in changes), seed, operations, says, favoured)
