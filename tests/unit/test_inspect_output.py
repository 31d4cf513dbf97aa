"""What `redis-world inspect` makes of payloads, times and logs."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest
from rich.console import Console
from vercel.workflow import RetryableError
from vercel.workflow._internal.serialization import PayloadEncoder
from vercel.workflow._internal.streams import encode_value

from redis_world.cli.inspect.output import (
    Column,
    Listing,
    Mode,
    Output,
    Paging,
    age,
    duration,
    read_pages,
    short_name,
)
from redis_world.cli.inspect.payloads import (
    chunk_payload,
    failure_lines,
    iso,
    one_line,
    printable,
    shown,
)
from redis_world.cli.inspect.run import Picture
from redis_world.cli.inspect.timeline import Item, Timeline
from redis_world.cli.inspect.waterfall import waterfall
from redis_world.ids import event_id
from redis_world.models import Event, Page, Run, RunStatus
from redis_world.rows import _EVENT

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)


def stored(value: Any) -> bytes:
    """A payload as the SDK writes it."""
    if isinstance(value, Exception):
        return PayloadEncoder().encode_error(value)
    return PayloadEncoder().encode(value)


def failed(message: str, *, cause: Exception | None = None, depth: int = 0) -> Exception:
    """An error as it comes out of a step, from so many calls down."""

    def raise_it(depth: int) -> None:
        if depth:
            raise_it(depth - 1)
        raise ValueError(message) from cause

    try:
        raise_it(depth)
    except ValueError as error:
        return error
    raise AssertionError


class TestFailures:
    def test_the_traceback(self) -> None:
        found = failure_lines(stored(failed("no answer")))
        assert found[0] == "Traceback (most recent call last):"
        assert found[-1] == "ValueError: no answer"
        assert any("test_inspect_output.py" in line for line in found)

    def test_causes_come_first(self) -> None:
        found = failure_lines(stored(failed("outer", cause=failed("inner", cause=failed("root")))))
        assert [line for line in found if line.startswith("ValueError")] == [
            *("ValueError: root", "ValueError: inner", "ValueError: outer")
        ]
        assert (
            found.count("The above exception was the direct cause of the following exception:")
            == 2
        )

    def test_without_one_its_name_and_message(self) -> None:
        assert failure_lines(stored(ValueError("no\nanswer"))) == ["ValueError: no", "answer"]

    @pytest.mark.parametrize("value", [b"own", stored("text"), stored({"message": 1}), None, 7])
    def test_what_is_no_error(self, value: Any) -> None:
        assert failure_lines(value) == []

    def test_a_long_one_is_cut(self) -> None:
        found = failure_lines(stored(failed("x" * 5000, depth=300)))
        assert len(found) <= 41
        assert max(map(len, found)) < 500
        assert found[0] == "Traceback (most recent call last):"
        assert found[-1].startswith("ValueError: xxx")
        many = failure_lines(stored(failed("\n".join(map(str, range(5000))))))
        assert len(many) == 41
        assert many[-1] == "4999"
        assert many[6].endswith(" lines, see --json ...")

    def test_a_chain_without_end(self) -> None:
        error = failed("0")
        for number in range(1, 40):
            error = failed(str(number), cause=error)
        assert len(failure_lines(stored(error))) <= 41

    def test_what_a_terminal_would_obey_is_shown(self) -> None:
        assert failure_lines(stored(ValueError("a\tb\x1b[2Jc"))) == ["ValueError: a   b\\x1b[2Jc"]

    def test_a_stack_of_another_language(self) -> None:
        payload = (
            rb'devl[["Error",1],{"name":2,"message":3,"stack":4},"Error","no",'
            rb'"Error: no\n    at f (a.js:1)"]'
        )
        assert failure_lines(payload) == ["Error: no", "    at f (a.js:1)"]


class TestPayloads:
    @pytest.mark.parametrize(
        "value", [None, True, 0, 2**70, -1.5, "", "text\n", [], [1, [2]], {"a": {"b": None}}]
    )
    def test_what_the_sdk_wrote_is_decoded(self, value: Any) -> None:
        assert shown(stored(value)) == value

    def test_also_where_it_is_compressed(self) -> None:
        assert shown(b"gzip" + gzip.compress(stored(["x"] * 9))) == ["x"] * 9
        large = PayloadEncoder(compression=True).encode("x" * 10_000)
        assert large[:4] == b"zstd"
        assert shown(large) == "x" * 10_000

    def test_values_that_json_does_not_have(self) -> None:
        values = [float("nan"), float("-inf"), BEGIN, {1}, b"12345"]
        expected = ["nan", "-inf", "2026-01-01T00:00:00.000Z", [1], {"bytes": 5}]
        assert shown(stored(values)) == expected
        assert shown(b'devl[["Map",1,2],1,"one"]') == [[1, "one"]]

    def test_an_error_is_its_name_and_message(self) -> None:
        payload = stored(RetryableError("no answer", retry_after=BEGIN))
        error = shown(payload)
        assert (error["name"], error["message"]) == ("RetryableError", "no answer")
        assert one_line(payload) == "RetryableError: no answer"
        assert one_line({"error": stored(ValueError("a\nb"))}) == r'{"error": ValueError: a\nb}'
        assert one_line(stored(ValueError())) == "ValueError"

    def test_a_class_is_shown_as_the_data_that_was_stored(self) -> None:
        class_id = "class//decimal//Decimal"
        assert shown(stored(Decimal("1.50"))) == {"classId": class_id, "data": "1.50"}
        # Nobody registered it here.
        payload = b'devl[["Instance",1],{"classId":2,"data":3},"class//app//Tier","pro"]'
        assert shown(payload) == {"classId": "class//app//Tier", "data": "pro"}

    def test_what_only_another_sdk_knows_is_plain_data(self) -> None:
        payload = b'devl[["WritableStream",1],{"name":2,"runId":3},"s","wrun_1"]'
        assert shown(payload) == {"name": "s", "runId": "wrun_1"}
        assert shown(b'devl[["NewType",1],"x"]') == {"NewType": "x"}

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"in",
            b"devl",
            b"devl{",
            b"devl\xff",
            b"devl[]",
            b'devl[["Set",1],[2],1]',
            b"gzipnothing",
            b"zstdnothing",
            b"encr" + bytes(40),
            bytes(range(256)),
            b"devl" + b"[" * 100_000,
        ],
        ids=lambda payload: repr(payload[:16]),
    )
    def test_what_can_not_be_decoded_is_told_by_its_size(self, payload: bytes) -> None:
        assert shown(payload) == {"bytes": len(payload)}
        assert one_line([payload]) == f"[<{len(payload)} bytes>]"

    def test_what_has_no_end_is_told_by_its_size(self) -> None:
        circle = b"devl[[0]]"
        assert shown(circle) == {"bytes": len(circle)}
        # Each list names the next one ten times.
        rows = [[place + 1] * 10 for place in range(20)]
        bomb = b"devl" + json.dumps([*rows, 0]).encode()
        assert shown(bomb) == {"bytes": len(bomb)}

    def test_a_value_that_looks_like_a_size_is_none(self) -> None:
        assert one_line(stored({"bytes": 5})) == '{"bytes": 5}'

    def test_without_the_sdk_all_are_told_by_their_size(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        payload = stored("text")
        for name in [name for name in sys.modules if name.partition(".")[0] == "vercel"]:
            monkeypatch.setitem(sys.modules, name, None)
        assert shown({"input": payload}) == {"input": {"bytes": len(payload)}}

    def test_structures_of_the_world(self) -> None:
        wire = {"at": BEGIN, "list": [b"in"], "none": None, "number": 10**20}
        assert shown(wire) == {
            "at": "2026-01-01T00:00:00.000Z",
            "list": [{"bytes": 2}],
            "none": None,
            "number": 10**20,
        }
        assert shown({"n": 1 << 20_000})["n"].startswith("0x1")
        json.dumps(shown({1: 1 << 20_000}))

    def test_a_chunk_is_read_behind_its_length(self) -> None:
        assert shown(chunk_payload(encode_value("word "))) == "word "
        for chunk in (b"", b"abc", b"\0\0\0\x09abc", b"plain text"):
            assert chunk_payload(chunk) == chunk


class TestWords:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("plain é 漢", "plain é 漢"),
            ("a\tb\nc\r", r"a\tb\nc\r"),
            ("\x1b[31mred", r"\x1b[31mred"),
            ("\x9b31m", r"\x9b31m"),
            ("right\u202eleft", r"right\u202eleft"),
            ("\ud800", r"\ud800"),
        ],
    )
    def test_nothing_is_left_that_a_terminal_obeys(self, text: str, expected: str) -> None:
        assert printable(text) == expected

    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [
            (None, ""),
            (-1.0, "0.00 s"),
            (0.125, "0.12 s"),
            (59.99, "59.99 s"),
            (59.999, "1 min 00 s"),
            (3599.6, "1 h 00 min"),
            (7260.0, "2 h 01 min"),
            (90_000.0, "1 d 01 h"),
        ],
    )
    def test_durations(self, seconds: float | None, expected: str) -> None:
        assert duration(seconds) == expected

    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [(0, "0 s ago"), (59, "59 s ago"), (61, "1 min ago"), (-7200, "in 2 h"), (2e5, "2 d ago")],
    )
    def test_ages(self, seconds: float, expected: str) -> None:
        assert age(BEGIN - timedelta(seconds=seconds), BEGIN) == expected

    def test_times_and_names(self) -> None:
        assert iso(BEGIN + timedelta(milliseconds=7)) == "2026-01-01T00:00:00.007Z"
        assert short_name("step//app.orders//charge") == "charge"
        assert short_name("charge") == "charge"


# -- lists ---------------------------------------------------------------------------------

LISTING: Final = Listing[str](
    "words",
    [
        Column("size", lambda word: str(len(word)), lambda word: str(len(word)), right=True),
        Column("pipe only", lambda word: word.upper()),
        Column("word", lambda word: word, lambda word: word, flexible=True),
    ],
    lambda word: {"word": word},
)


def drawn(what: Any, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def page_of(*words: str, more: bool = False) -> Page[str]:
    return Page[str](data=list(words), cursor="words:9", has_more=more)


class TestLists:
    def test_a_line_has_all_fields_whole(self) -> None:
        assert LISTING.line("long " * 100 + "\t") == "\t".join(
            ["501", "LONG " * 100 + r"\t", "long " * 100 + r"\t"]
        )

    def test_a_table_is_as_wide_as_the_terminal_and_shows_that_it_shortens(self) -> None:
        lines = drawn(LISTING.table(["[bold]word[/bold]", "long " * 100]), 40)
        assert lines[0].split() == ["size", "word"]
        assert lines[2].split() == ["17", "[bold]word[/bold]"]
        assert lines[3].endswith("…")
        assert all(len(line) <= 40 for line in lines)

    @pytest.mark.parametrize("everything", [False, True])
    def test_pages(self, everything: bool) -> None:
        asked: list[tuple[int, str | None]] = []

        async def fetch(limit: int, cursor: str | None) -> Page[str]:
            asked.append((limit, cursor))
            more = len(asked) < 3
            return Page[str](data=[str(len(asked))], cursor=f"c{len(asked)}", has_more=more)

        page = asyncio.run(read_pages(fetch, Paging(7, "c0", everything)))
        if everything:
            assert [cursor for _, cursor in asked] == ["c0", "c1", "c2"]
            assert (page.data, page.cursor, page.has_more) == (["1", "2", "3"], "c3", False)
        else:
            assert asked == [(7, "c0")]
            assert (page.data, page.cursor, page.has_more) == (["1"], "c1", True)

    @pytest.mark.parametrize("mode", Mode)
    def test_more_is_told_on_stderr(self, mode: Mode, capsys: pytest.CaptureFixture[str]) -> None:
        output = Output(mode, Console(file=io.StringIO()))
        output.show(LISTING, page_of("a", more=True), none="none")
        text = "there are more words: add --cursor words:9, or --all\n"
        assert capsys.readouterr().err == text
        output.show(LISTING, page_of("a"), none="none")
        assert capsys.readouterr().err == ""

    def test_one_document_of_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        Output(Mode.JSON).show(LISTING, page_of("é", more=True), none="none")
        out = capsys.readouterr().out
        document = {"data": [{"word": "é"}], "cursor": "words:9", "hasMore": True}
        assert json.loads(out) == document
        assert out.count("\n") == 1

    def test_nothing_to_show(self, capsys: pytest.CaptureFixture[str]) -> None:
        Output(Mode.LINES).show(LISTING, page_of(), none="no words")
        assert capsys.readouterr() == ("", "")
        Output(Mode.TABLE).show(LISTING, page_of(), none="no words")
        assert capsys.readouterr() == ("", "no words\n")


# -- the timeline --------------------------------------------------------------------------


def log_of(*events: tuple[float, str, str | None, dict[str, Any] | None]) -> list[Event]:
    """A log of (seconds, type, correlation id, data)."""
    log = []
    for slot, (seconds, kind, correlation_id, data) in enumerate(events, 1):
        wire = {
            "eventType": kind,
            "eventId": event_id(slot),
            "createdAt": BEGIN + timedelta(seconds=seconds),
        }
        if correlation_id:
            wire["correlationId"] = correlation_id
        if data is not None:
            wire["eventData"] = data
        log.append(_EVENT.validate_python(wire))
    return log


def seconds(moment: datetime | None) -> float | None:
    return None if moment is None else (moment - BEGIN).total_seconds()


def attempts(item: Item) -> list[tuple[float | None, float | None, str]]:
    return [(seconds(each.began), seconds(each.ended), each.outcome) for each in item.attempts]


def items_of(*events: tuple[float, str, str | None, dict[str, Any] | None]) -> Sequence[Item]:
    return Timeline(log_of(*events)).items


CREATED: Final = (1.0, "step_created", "s1", {"stepName": "step//app//charge"})


class TestTimeline:
    def test_attempts_of_a_step(self) -> None:
        (step,) = items_of(
            CREATED,
            (2, "step_started", "s1", None),
            (3, "step_retrying", "s1", None),
            (5, "step_started", "s1", None),
            (6, "step_started", "s1", None),
            (8, "step_completed", "s1", None),
        )
        assert (step.kind, step.name, step.state) == ("step", "step//app//charge", "completed")
        assert attempts(step) == [(2, 3, "retried"), (5, 6, "lost"), (6, 8, "completed")]
        assert step.seconds(BEGIN) == 6
        assert step.to_wire()["attempts"][1]["outcome"] == "lost"

    @pytest.mark.parametrize(
        ("events", "state", "expected"),
        [
            ([], "pending", []),
            ([(2, "step_started", "s1", None)], "running", [(2, None, "running")]),
            (
                [(2, "step_started", "s1", None), (3, "step_retrying", "s1", None)],
                "pending",
                [(2, 3, "retried")],
            ),
            (
                [(2, "step_started", "s1", None), (3, "step_failed", "s1", None)],
                "failed",
                [(2, 3, "failed")],
            ),
            ([(3, "step_failed", "s1", None)], "failed", []),
        ],
    )
    def test_states_of_a_step(
        self, events: list[Any], state: str, expected: list[tuple[float, float, str]]
    ) -> None:
        (step,) = items_of(CREATED, *events)
        assert step.state == state
        assert attempts(step) == expected

    def test_a_step_may_end_after_its_run(self) -> None:
        (step,) = items_of(
            CREATED,
            (2, "step_started", "s1", None),
            (3, "run_cancelled", None, None),
            (4, "step_completed", "s1", None),
        )
        assert (step.state, seconds(step.ended)) == ("completed", 4)

    @pytest.mark.parametrize(
        ("status", "end"), [("running", 60), ("cancelled", 4)], ids=["live", "over"]
    )
    def test_the_end_of_a_run_is_its_last_event(self, status: RunStatus, end: int) -> None:
        timeline = Timeline(
            log_of(
                CREATED,
                (2, "step_started", "s1", None),
                (3, "run_cancelled", None, None),
                (4, "step_completed", "s1", None),
            )
        )
        run = Run(
            run_id="wrun_1",
            deployment_id="",
            workflow_name="w",
            spec_version=7,
            status=status,
            created_at=BEGIN,
            updated_at=BEGIN,
            completed_at=BEGIN + timedelta(seconds=3),
        )
        now = BEGIN + timedelta(seconds=60)
        picture = Picture(run, timeline, timeline.items, 0, [], [], [], [], now)
        assert seconds(picture.end) == end

    def test_sleeps(self) -> None:
        due = {"resumeAt": BEGIN + timedelta(seconds=9)}
        over, gone = items_of(
            (1, "wait_created", "w1", due),
            (2, "wait_created", "w2", due),
            (4, "wait_completed", "w1", None),
            (5, "run_completed", None, {}),
        )
        assert (over.state, seconds(over.ended), over.seconds(BEGIN)) == ("completed", 4, 3)
        assert (gone.state, seconds(gone.ended), seconds(gone.resume_at)) == ("gone", 5, 9)

    def test_hooks(self) -> None:
        later = {"token": "kept", "tokenRetentionUntil": BEGIN + timedelta(days=1)}
        found = items_of(
            (1, "hook_created", "h1", {"token": "answered"}),
            (1, "hook_created", "h2", {"token": "given up"}),
            (1, "hook_conflict", "h3", {"token": "taken", "conflictingRunId": "wrun_2"}),
            (1, "hook_created", "h4", {"token": "forgotten"}),
            (1, "hook_created", "h5", later),
            (1, "hook_created", "h6", {"token": "answered, not disposed"}),
            (2, "hook_received", "h1", None),
            (2, "hook_received", "h1", None),
            (2, "hook_received", "h6", None),
            (3, "hook_disposed", "h1", None),
            (3, "hook_disposed", "h2", None),
            (4, "run_failed", None, {}),
        )
        assert [(each.name, each.state, seconds(each.ended)) for each in found] == [
            ("answered", "received", 3),
            ("given up", "disposed", 3),
            ("taken", "conflict", 1),
            ("forgotten", "gone", 4),
            ("kept", "retained", 4),
            ("answered, not disposed", "received", 4),
        ]
        assert found[0].received == 2

    def test_one_id_of_a_step_and_a_hook_are_two(self) -> None:
        found = items_of(CREATED, (1, "hook_created", "s1", {"token": "t"}))
        assert [each.kind for each in found] == ["step", "hook"]


class TestWaterfall:
    def lines(self, width: int) -> list[str]:
        timeline = Timeline(
            log_of(
                (0, "step_created", "s1", {"stepName": "step//app//charge"}),
                (2, "step_started", "s1", None),
                (4, "step_retrying", "s1", None),
                (6, "step_started", "s1", None),
                (8, "step_completed", "s1", None),
                (8, "hook_created", "h1", {"token": "approve\x1b"}),
                (9, "wait_created", "w1", {"resumeAt": BEGIN + timedelta(seconds=12)}),
                (9, "step_created", "s2", {"stepName": "x" * 100}),
            )
        )
        return drawn(waterfall(timeline.items, BEGIN, BEGIN + timedelta(seconds=10), width), width)

    @pytest.mark.parametrize("width", [60, 80, 120])
    def test_bars_are_in_proportion_to_the_time(self, width: int) -> None:
        head, _, step, hook, sleep, pending = self.lines(width)
        assert head.endswith(" 10.00 s")
        assert all(len(line) <= width for line in (head, step, hook, sleep, pending))
        left = head.index("  0 ") + 2
        room = width - left - 1  # an edge, which is blank
        bar = step[left:]
        assert len(bar) == round(0.8 * room)
        for fraction, char in ((0.1, "─"), (0.3, "█"), (0.5, "─"), (0.7, "█")):
            assert bar[int(fraction * room)] == char
        assert hook.count("░") == room - int(0.8 * room)
        assert sleep.count("░") == room - int(0.9 * room)

    def test_words(self) -> None:
        _, _, step, hook, sleep, pending = self.lines(80)
        assert step.startswith(" ✓ completed  step charge")
        assert "  2  6.00 s  " in step
        assert r"hook approve\x1b" in hook
        assert "2.00 s  " in hook
        assert "◷ waiting    sleep 3.00 s" in sleep
        assert "○ pending    step xxx" in pending
        assert "…" in pending

    def test_a_run_of_no_time(self) -> None:
        items = Timeline(log_of((0, "hook_created", "h", {"token": "t"}))).items
        assert "░" in drawn(waterfall(items, BEGIN, BEGIN, 80), 80)[2]
