"""Tables for terminals, aligned text for pipes, JSON for programs."""

from __future__ import annotations

import datetime
import io
import json
from enum import IntEnum
from pathlib import Path

import msgspec
import pytest

from skylark.cli.output import Output, OutputFormat, cell_text

ROWS = [
    {"topic": "TopicTest", "queue_id": 3, "extra": "not shown"},
    {"topic": "T", "queue_id": 12},
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Color(IntEnum):
    RED = 1


def make(
    output_format: OutputFormat, *, terminal: bool = False
) -> tuple[Output, io.StringIO, io.StringIO]:
    stdout, stderr = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    return Output(output_format, stdout, stderr), stdout, stderr


def test_piped_tables_are_aligned_plain_text() -> None:
    output, stdout, stderr = make("table")
    output.rows(["topic", "queue_id"], ROWS)
    assert stdout.getvalue() == (
        "TOPIC      QUEUE ID\n"  #
        "TopicTest         3\n"
        "T                12\n"
    )
    assert stderr.getvalue() == ""


def test_piped_tables_know_wide_and_combining_characters() -> None:
    output, stdout, _ = make("table")
    output.rows(["a", "b"], [{"a": "\u4e2d\u6587", "b": 1}, {"a": "e\u0301", "b": 2}])
    assert stdout.getvalue() == "A     B\n\u4e2d\u6587  1\ne\u0301     2\n"


def test_piped_tables_are_never_cut() -> None:
    output, stdout, _ = make("table")
    output.rows(["a"], [{"a": "x" * 500}])
    assert "x" * 500 in stdout.getvalue()


def test_a_table_without_rows_still_has_its_heading() -> None:
    output, stdout, _ = make("table")
    output.rows(["topic", "queue_id"], [])
    assert stdout.getvalue() == "TOPIC  QUEUE ID\n"


def test_tables_on_a_terminal_take_markup_literally() -> None:
    output, stdout, _ = make("table", terminal=True)
    output.rows(["topic", "queue_id"], [{"topic": "[red]T[/red]", "queue_id": 3}])
    text = stdout.getvalue()
    assert "[red]T[/red]" in text
    assert "QUEUE ID" in text


def test_json_rows_hold_exactly_the_columns() -> None:
    output, stdout, _ = make("json", terminal=True)
    output.rows(["topic", "queue_id"], [*ROWS, {"topic": "\u4e2d"}])
    assert json.loads(stdout.getvalue()) == [
        {"topic": "TopicTest", "queue_id": 3},
        {"topic": "T", "queue_id": 12},
        {"topic": "\u4e2d", "queue_id": None},
    ]
    assert "\u4e2d" in stdout.getvalue()


def test_a_record_is_one_line_per_field_or_one_object() -> None:
    record = {"name": "T", "read_queues": 4, "order": False}
    output, stdout, _ = make("table")
    output.record(record)
    assert stdout.getvalue() == "name         T\nread_queues  4\norder        no\n"
    output, stdout, _ = make("json")
    output.record(record)
    assert json.loads(stdout.getvalue()) == record


def test_json_knows_common_values_and_refuses_others() -> None:
    output, stdout, _ = make("json")
    output.record(
        {
            "day": datetime.date(2026, 1, 2),
            "time": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
            "file": Path("a/b"),
            "names": {"b", "a"},
        }
    )
    assert json.loads(stdout.getvalue()) == {
        "day": "2026-01-02",
        "time": "2026-01-02T03:04:05+00:00",
        "file": "a/b",
        "names": ["a", "b"],
    }
    with pytest.raises(TypeError, match="cannot encode object as JSON"):
        output.record({"x": object()})


def test_json_survives_a_lone_surrogate() -> None:
    output, stdout, _ = make("json")
    output.record({"name": "a\ud800b"})
    assert json.loads(stdout.getvalue().encode()) == {"name": "a\ud800b"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (1.5, "1.5"),
        (199.18334827208446, "199.18"),
        (-0.0004567891, "-0.000457"),
        (0.1 + 0.2, "0.3"),
        (0.0, "0.0"),
        (float("nan"), "nan"),
        ([], "-"),
        (["a", 1, None], "a, 1, -"),
        (Color.RED, "RED"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        ("caf\u00e9", "caf\u00e9"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("two\nlines\tand\rmore", r"two\nlines\tand\rmore"),
        ("\u202ereversed", r"\u202ereversed"),
    ],
)
def test_cell_text(value: object, text: str) -> None:
    assert cell_text(value) == text


@pytest.mark.parametrize("terminal", [True, False])
def test_hostile_values_cannot_reach_the_terminal(terminal: bool) -> None:
    output, stdout, stderr = make("table", terminal=terminal)
    output.record({"name": "\x1b]0;title\x07"})
    output.info("\x1b[2J")
    assert "\x1b" not in stdout.getvalue() + stderr.getvalue()


def test_notes_go_to_people_only() -> None:
    output, stdout, stderr = make("table")
    output.info("3 topics")
    assert (stdout.getvalue(), stderr.getvalue()) == ("", "3 topics\n")
    output, stdout, stderr = make("json")
    output.info("3 topics")
    assert (stdout.getvalue(), stderr.getvalue()) == ("", "")


@pytest.mark.parametrize("kind", ["table", "json"])
def test_warnings_go_to_programs_too(kind: OutputFormat) -> None:
    output, stdout, stderr = make(kind)
    output.warn("broker-b did not respond")
    assert (stdout.getvalue(), stderr.getvalue()) == ("", "broker-b did not respond\n")


def test_a_gap_between_tables_is_for_people() -> None:
    output, stdout, _ = make("table")
    output.gap()
    assert stdout.getvalue() == "\n"
    output, stdout, _ = make("json")
    output.gap()
    assert stdout.getvalue() == ""


def test_progress_is_shown_on_a_terminal() -> None:
    output, stdout, stderr = make("table", terminal=True)
    with output.progress("sending [x]", total=10) as advance:
        advance(10)
    assert stdout.getvalue() == ""
    assert "sending [x]" in stderr.getvalue()


@pytest.mark.parametrize(("output_format", "terminal"), [("table", False), ("json", True)])
def test_progress_is_silent_elsewhere(output_format: OutputFormat, terminal: bool) -> None:
    output, stdout, stderr = make(output_format, terminal=terminal)
    with output.progress("sending", total=10) as advance:
        advance(10)
    assert (stdout.getvalue(), stderr.getvalue()) == ("", "")


def test_measured_values_are_rounded_for_programs_too() -> None:
    values = {"tps": 199.18334827208446, "small": 0.00123456, "count": 7, "exact": 2.0}
    rounded = {"tps": 199.18, "small": 0.00123, "count": 7, "exact": 2.0}
    output, stdout, _ = make("json")
    output.rows(list(values), [values])
    assert json.loads(stdout.getvalue()) == [rounded]
    output, stdout, _ = make("json")
    nested = {"rows": [values], "pair": (1 / 3, 2), "struct": Measured(200 / 3)}
    output.record(nested)
    assert json.loads(stdout.getvalue()) == {
        "rows": [rounded], "pair": [0.333, 2], "struct": {"rate": 66.67},
    }  # fmt: skip


class Measured(msgspec.Struct):
    rate: float
