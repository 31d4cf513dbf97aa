"""The tables of ARCHITECTURE.md are the ones that the tests drive (contract, section 5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.transitions import TABLES, tables

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"


@pytest.mark.parametrize("name", TABLES)
def test_the_table_is_the_tested_one(name: str) -> None:
    start, end = f"<!-- table: {name} -->\n", "<!-- /table -->"
    text = ARCHITECTURE.read_text(encoding="utf-8")
    assert text.count(start) == 1, f"ARCHITECTURE.md needs one {start.strip()}"
    shown, found, _ = text.partition(start)[2].partition(end)
    assert found, f"no {end} behind {start.strip()}"
    assert shown.strip() == tables()[name], f"paste support.transitions.tables()[{name!r}]"
