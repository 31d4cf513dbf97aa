from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from redis_world.errors import EventNotFoundError, InvalidEventError
from redis_world.ids import (
    IdFactory,
    event_id,
    event_slot,
    new_request_id,
    parse_event_id,
    run_id_time,
)

NOW = 1_700_000_000_123
TESTS: Final = sorted((Path(__file__).parents[1]).rglob("*.py"))


# Contract: 2.run ids, 2.message ids
def test_ids_have_the_contracts_form() -> None:
    factory = IdFactory()
    for made, prefix in ((factory.run_id(NOW), "wrun_"), (factory.message_id(NOW), "msg_")):
        assert made.startswith(prefix)
        ulid = made.removeprefix(prefix)
        assert len(ulid) == 26
        assert set(ulid) <= set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")


# Contract: 2.run ids, 2.message ids
def test_ids_rise_whatever_the_clock_does() -> None:
    factory = IdFactory()
    times = [NOW, NOW, NOW + 1, NOW + 1, NOW, NOW - 10**6, NOW + 2, NOW + 2]
    ids = [factory.run_id(time) for time in times]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert [run_id_time(made) - NOW for made in ids] == [0, 0, 1, 1, 1, 1, 2, 2]


# Contract: 2.run ids, 2.message ids
def test_ids_of_one_millisecond_never_run_out() -> None:
    """The part that counts up begins below its top."""
    for _ in range(200):
        factory = IdFactory()
        first = factory.run_id(NOW)
        assert factory.run_id(NOW) > first


def test_threads_share_a_factory() -> None:
    factory = IdFactory()
    made: list[list[str]] = [[] for _ in range(4)]

    def make(own: list[str]) -> None:
        own.extend(factory.run_id(NOW) for _ in range(2000))

    threads = [threading.Thread(target=make, args=(own,)) for own in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each for own in made for each in own}) == 8000
    assert all(own == sorted(own) for own in made)


def test_factories_of_two_worlds_do_not_meet() -> None:
    one, two = IdFactory(), IdFactory()
    made = {factory.run_id(NOW) for factory in (one, two) for _ in range(1000)}
    assert len(made) == 2000


# Contract: 2.run ids
@pytest.mark.parametrize(
    "run_id",
    [
        "",
        "wrun_",
        "wrun_" + "0" * 25,
        "wrun_" + "0" * 27,
        "wrun_8" + "Z" * 25,
        "wrun_" + "U" * 26,
        "wrun_" + "0" * 25 + "l",
        "wrun_" + "0" * 26 + "\n",
        "msg_" + "0" * 26,
        "0" * 26,
        " wrun_" + "0" * 26,
    ],
    ids=repr,
)
def test_a_run_id_is_a_prefix_and_a_ulid(run_id: str) -> None:
    with pytest.raises(InvalidEventError, match="ULID"):
        run_id_time(run_id)


# Contract: 2.run ids
def test_the_time_of_a_run_id() -> None:
    assert run_id_time("wrun_" + "0" * 26) == 0
    assert run_id_time("wrun_7" + "Z" * 25) == 2**48 - 1
    assert run_id_time(IdFactory().run_id(NOW)) == NOW


# Contract: 2.slots
def test_event_ids_are_slots() -> None:
    slots = (1, 9, 10, 99, 100, 25_000, 10**12)
    ids = [event_id(slot) for slot in slots]
    assert ids[0] == "evnt_00000000000000000000000001"
    assert ids == sorted(ids)
    assert [event_slot(each) for each in ids] == list(slots)
    for form in (12, "12", b"12"):
        assert event_id(form) == event_id(12)


# Contract: 2.slots
@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "evnt_1",
        "evnt_" + "0" * 25,
        "evnt_" + "0" * 26 + "1",
        "evnt_" + "x" * 26,
        "evnt_-" + "1" * 25,
        "evnt_+" + "1" * 25,
        "evnt_" + "0" * 12 + "_" + "0" * 12 + "1",
        "evnt_" + "0" * 25 + "١",  # noqa: RUF001 - a digit, but none of an event id
        "evnt_" + "0" * 25 + "1\n",
        "wrun_" + "0" * 25 + "1",
    ],
    ids=ascii,
)
def test_what_is_no_event_id(text: str) -> None:
    assert parse_event_id(text) is None
    with pytest.raises(EventNotFoundError):
        event_slot(text)


# Contract: 2.slots
def test_there_is_no_slot_0() -> None:
    with pytest.raises(EventNotFoundError):
        event_slot(event_id(0))


def test_request_ids_are_never_made_twice() -> None:
    made = [new_request_id() for _ in range(1000)]
    assert len(set(made)) == 1000
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_request_id().encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        of_child = pipe.read()
    # A forked child counts on from where its parent stood.
    assert of_child
    assert of_child not in {*made, *(new_request_id() for _ in range(10))}


def test_no_test_has_a_run_id_that_is_good_for_one_day() -> None:
    """The World takes it on the day on which the test was written, and never again."""
    written = re.compile(r"wrun_[0-7][0-9A-HJKMNP-TV-Z]{25}")
    for path in TESTS:
        for run_id in written.findall(path.read_text(encoding="utf-8")):
            year = datetime.fromtimestamp(run_id_time(run_id) / 1000, UTC).year
            assert year < 2025, f"{path.name}: {run_id}"
