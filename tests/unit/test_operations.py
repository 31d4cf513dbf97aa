"""docs/operations.md tells what is true."""

from __future__ import annotations

import re
from pathlib import Path

from redis_world.checkup.facts import Facts
from redis_world.checkup.rights import RIGHTS, rights
from redis_world.config import WorldConfig
from support.acl import acl_rule, minimal_commands

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_rights_are_those_of_the_scripts_and_of_the_world() -> None:
    assert RIGHTS.split() == [f"+{command}" for command in minimal_commands()]


def test_the_manual_doctor_and_the_tests_have_the_same_rights() -> None:
    found = re.search(
        r"^ACL SETUSER world on >password (.*)$", OPERATIONS.read_text(), re.MULTILINE
    )
    assert found is not None
    assert found[1] == rights("orders")
    assert found[1].split() == acl_rule("orders")
    facts = Facts(WorldConfig(namespace="orders"), "world")
    assert facts.grant_all() == f"`ACL SETUSER world {found[1]}`"


def test_the_rights_of_a_world_that_waits_for_the_disk() -> None:
    facts = Facts(WorldConfig(namespace="orders", durability="disk"), "world")
    assert facts.grant_all().endswith(" +waitaof`")
