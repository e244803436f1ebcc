"""The helpers of ``conftest.py``: time per folder, groups and seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import folder_of, group_of, parse_seeds

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("node_id", "folder"),
    [
        ("tests/unit/wire/test_frame.py::TestA::test_b[x::y]", "tests/unit/wire"),
        ("tests/test_tidy.py::test_a", "tests"),
    ],
)
def test_folder_of(node_id: str, folder: str) -> None:
    assert folder_of(node_id) == folder


@pytest.mark.parametrize(
    ("node_id", "group"),
    [
        ("tests/unit/wire/test_frame.py::test_b[x::y]", "tests/unit/wire/test_frame.py"),
        ("tests/spark/test_sink.py::test_a", "spark"),
        ("tests/test_docs.py::test_document[docs/spark.md]", "spark"),
        ("tests/test_docs.py::test_document[README.md]",) * 2,
    ],
)
def test_group_of(node_id: str, group: str) -> None:
    assert group_of(node_id) == group


@pytest.mark.parametrize(
    ("text", "expected"), [("", None), ("7", range(7, 8)), ("5-7", range(5, 8))]
)
def test_seeds(text: str, expected: range | None) -> None:
    assert parse_seeds(text) == expected


@pytest.mark.parametrize("text", ["x", "7-5", "1-x", "-", "1..5"])
def test_bad_seeds_are_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="expected <seed> or <first>-<last>"):
        parse_seeds(text)


def test_the_time_per_folder_is_printed(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(
        **{"tests/a/test_x": "def test_1(): pass\ndef test_2(): pass", "tests/b/test_y": ""}
    )
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*time per folder*", "*0.? s       2 tests  tests/a"])
    result.stdout.no_fnmatch_line("*tests/b")
