"""Where a worker looks, and when."""

from __future__ import annotations

import pytest

from redis_world.worker.lookout import Lookout, look_seconds


def lookout(partitions: int = 3) -> Lookout:
    return Lookout({f"c{number}".encode(): number for number in range(partitions)})


def test_at_first_it_looks_everywhere() -> None:
    assert lookout().due(0.5) == [0, 1, 2]


def test_where_it_sleeps_it_looks_when_it_is_time_or_told() -> None:
    here = lookout(1)
    here.looked([0], {0: 3.0}, now=10.0, rest=1.0)
    assert here.due(12.9) == []
    assert here.next_look(12.9) == 13.0
    assert here.due(13.0) == [0]
    here.hear([b"c0"])
    assert here.due(10.1) == [0]


def test_where_it_does_not_sleep_it_rests() -> None:
    here = lookout(2)
    here.looked([0, 1], {0: 3.0}, now=10.0, rest=0.0)
    assert here.due(10.0) == [1]
    here.looked([1], {}, now=10.0, rest=1.0)
    assert here.due(10.0) == []
    assert here.due(11.0)[-1] == 1


def test_looks_at_many_at_once_are_spread_out() -> None:
    here = lookout(16)
    here.looked(range(16), dict.fromkeys(range(16), 16.0), now=0.0, rest=1.0)
    times: list[float] = []
    while (at := here.next_look(times[-1] if times else 0.0)) <= 16.0:
        times.append(at)
    assert len(times) == 16
    assert all(1.6 <= at <= 16.0 for at in times)


def test_what_it_has_no_room_for_is_handed_on_once() -> None:
    here = lookout(2)
    here.looked([0, 1], {0: 3.0, 1: 3.0}, now=0.0, rest=1.0)
    assert here.missed(0.1) == set()
    here.hear([b"c1"])
    assert here.missed(0.1) == {1}
    assert here.missed(0.1) == set()
    # Its own look of the other one comes meanwhile; it does not sleep there any more.
    assert here.missed(3.0) == {0}
    assert here.missed(4.0) == set()
    here.hear([b"c1"])
    assert here.missed(4.0) == {1}
    here.looked([1], {1: 3.0}, now=5.0, rest=1.0)
    assert here.missed(8.0) == {1}


def test_what_others_were_told_of_needs_no_word() -> None:
    here = lookout(2)
    here.looked([0, 1], {1: 3.0}, now=0.0, rest=0.0)
    here.told({0})
    assert here.due(0.0) == [0]
    assert here.missed(0.0) == set()
    here.hear([b"c0"])
    assert here.missed(0.0) == {0}


def test_with_nothing_to_come_it_waits_for_word() -> None:
    here = lookout(1)
    assert here.due(100.0) == [0]
    assert here.next_look(100.0) > 103.0


@pytest.mark.parametrize(("partitions", "seconds"), [(1, 3), (3, 3), (16, 16), (1024, 20)])
def test_how_often(partitions: int, seconds: float) -> None:
    assert look_seconds(partitions) == seconds


def test_it_looks_into_no_more_than_it_has_room_for() -> None:
    here = lookout(16)
    for room, most in ((1, 1), (2, 1), (3, 2), (8, 4), (31, 16), (100, 16)):
        places = here.next_places(0.0, room)
        assert len({*places}) == len(places) == most
    # By chance: none of them waits for the others.
    assert {place for _ in range(1000) for place in here.next_places(0.0, 1)} == {*range(16)}


def test_what_does_not_answer_is_waited_for_together() -> None:
    here = lookout(4)
    here.unanswered([2], now=0.0, rest=1.0)
    assert here.due(0.5) == here.next_places(0.5, 1) == [0, 1, 3]
    assert here.next_places(1.0, 1) == [0, 1, 2, 3]
    here.looked([0, 1, 2, 3], {}, now=1.0, rest=0.0)
    assert len(here.next_places(1.0, 1)) == 1
