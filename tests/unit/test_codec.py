from __future__ import annotations

import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from redis_world.codec import (
    decode_data,
    decode_payload,
    encode_data,
    encode_payload,
    from_ms,
    to_duration_ms,
    to_ms,
)
from redis_world.errors import InvalidEventError, InvalidInputError
from redis_world.text import utf8

ALL_BYTES = bytes(range(256))
LIMIT = 10_000


# Contract: 3.payloads
@pytest.mark.parametrize(
    "value",
    [
        *(
            b"",
            b"\x00",
            b"\x01",
            ALL_BYTES,
            "",
            "\x00",
            "é\U0001f600",
            None,
            True,
            0,
            -1,
            2**53 + 1,
        ),
        *(2**64, -(2**200), 0.1, -0.0, math.inf, [], {}, [None, ""], {"a": {"b": [b"\x00"]}}),
        datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    ],
    ids=repr,
)
def test_a_payload_comes_back_as_it_was(value: Any) -> None:
    back = decode_payload(encode_payload(value, LIMIT, "it"))
    assert type(back) is type(value)
    assert repr(back) == repr(value)


# Contract: 3.payloads
def test_kinds_of_payloads_are_encoded_apart() -> None:
    values: list[Any] = [None, "", b"", 0, False, [], {}, b"\x00", b"\x01", "\x00"]
    blobs = {encode_payload(value, LIMIT, "it") for value in values}
    assert len(blobs) == len(values)
    # No payload is stored as nothing: nothing stands for an absent one.
    assert all(blobs)


# Contract: 3.payloads
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_kept_as_they_are(kind: type) -> None:
    blob = encode_payload(kind(ALL_BYTES), LIMIT, "it")
    assert blob.endswith(ALL_BYTES)
    assert len(blob) == len(ALL_BYTES) + 1
    back = decode_payload(blob)
    assert type(back) is bytes
    assert back == ALL_BYTES


@pytest.mark.parametrize("value", [b"x" * 10, "x" * 9, [0] * 9])
def test_the_limit_counts_what_is_stored(value: Any) -> None:
    """CBOR has a head of one byte here."""
    assert decode_payload(encode_payload(value, 10, "it")) == value
    with pytest.raises(InvalidEventError, match="it has 10 bytes; the limit is 9"):
        encode_payload(value, 9, "it")


@pytest.mark.parametrize(
    "value",
    [object(), {"a": object()}, "a\ud800", {"\ud800": 1}, datetime(2030, 1, 1), print],
    ids=["an object", "an object within", "a surrogate", "a key", "no time zone", "a function"],
)
def test_what_has_no_form_is_refused(value: Any) -> None:
    for refused in (value, [value]):
        with pytest.raises(InvalidEventError, match="it can't be stored"):
            encode_data(refused, "it")
        with pytest.raises(InvalidEventError, match="it can't be stored"):
            encode_payload(refused, LIMIT, "it")


def test_a_structure_without_an_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidEventError, match="it can't be stored"):
        encode_data(endless, "it")


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth - 1):
        found = [found]
    return found


@pytest.mark.parametrize("depth", [1, 100, 300, 399, 400, 401, 402, 1000, 5000])
def test_what_is_encoded_can_be_decoded(depth: int) -> None:
    """What can't be read back must not be stored: it would spoil the whole log."""
    try:
        blob = encode_data(_nested(depth), "it")
    except InvalidEventError:
        assert depth > 300
        return
    found = decode_data(blob)
    for _ in range(depth - 1):
        (found,) = found
    assert found == []


def test_no_depth_ends_the_process() -> None:
    """In a process of its own: a stack that overflows takes the whole of it down."""
    code = """
from redis_world.codec import encode_data
from redis_world.errors import InvalidEventError
value = []
for _ in range(100_000):
    value = [value]
try:
    encode_data(value, "it")
except InvalidEventError:
    print("refused")
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n")


# Contract: 3.event data
def test_structured_data_keeps_the_order_of_keys() -> None:
    data = {"b": 1, "a": 2, "": 3}
    assert list(decode_data(encode_data(data, "it"))) == ["b", "a", ""]


# Contract: 3.dates
@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2030, 1, 1, 0, 0, 0, 1999, tzinfo=UTC), 1893456000001),
        (datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 1893456000000),
        (datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC), -1),
        (datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), 253402300799999),
    ],
)
def test_moments_are_whole_milliseconds(moment: datetime, ms: int) -> None:
    assert to_ms(moment) == ms
    for form in (ms, str(ms), str(ms).encode()):
        back = from_ms(form)
        assert back.utcoffset() == timedelta(0)
        assert timedelta(0) <= moment - back < timedelta(milliseconds=1)


# Contract: 7.delay
@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        (0, 0),
        (0.0, 0),
        (1, 1000),
        (0.1, 100),
        (0.3, 300),
        (1.001, 1001),
        (0.0001, 1),
        (0.0015, 2),
        (1e9, 10**12),
        (timedelta(seconds=1.5), 1500),
        (timedelta(microseconds=1500), 2),
        (timedelta(days=400), 34_560_000_000),
    ],
)
def test_durations_are_never_cut(duration: float | timedelta, ms: int) -> None:
    """What is delayed comes a fraction of a millisecond later, never earlier."""
    assert to_duration_ms(duration, "delay") == ms


# Contract: 3.dates
def test_every_millisecond_is_itself() -> None:
    """Although its float may be a little more."""
    for ms in range(2000):
        assert to_duration_ms(ms / 1000, "delay") == ms


@pytest.mark.parametrize(
    "duration", [-1, -0.001, math.nan, math.inf, timedelta(seconds=-1), True, "1", None]
)
def test_strange_durations_are_refused(duration: Any) -> None:
    with pytest.raises(InvalidInputError, match="delay"):
        to_duration_ms(duration, "delay")


def test_text_is_utf8_or_refused() -> None:
    assert utf8("a\x00é\U0001f600") == "a\x00é\U0001f600".encode()
    for text in ("\ud800", "a\udfff", "\ud83d\ude00"):
        with pytest.raises(InvalidInputError, match="not valid Unicode"):
            utf8(text)
    with pytest.raises(InvalidInputError) as caught:
        utf8("\ud800" * 10_000)
    assert len(str(caught.value)) < 1000
