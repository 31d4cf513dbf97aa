"""docs/operations.md tells what is true."""

from __future__ import annotations

import re
from pathlib import Path

from support.acl import acl_rule

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_rights_are_those_that_the_tests_run_under() -> None:
    found = re.search(
        r"^ACL SETUSER world on >password (.*)$", OPERATIONS.read_text(), re.MULTILINE
    )
    assert found is not None
    assert found[1].split() == acl_rule("orders")
