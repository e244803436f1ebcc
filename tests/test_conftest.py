"""The helpers of ``conftest.py``: time per folder, groups, seeds and random order."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger

from tests.conftest import folder_of, group_of, parse_seeds
from tests.crash import test_property
from tests.support.random_order import parse_order, shuffled

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


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getvalue("timeout")  # without one, a test could wait forever


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


def test_the_time_per_folder_is_printed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORDER", raising=False)  # its own run has none of our helpers
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(
        **{"tests/a/test_x": "def test_1(): pass\ndef test_2(): pass", "tests/b/test_y": ""}
    )
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*time per folder*", "*0.? s       2 tests  tests/a"])
    result.stdout.no_fnmatch_line("*tests/b")


def test_the_loggers_of_spark_do_not_change_captured_log_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    PySparkLogger("test").addHandler(caplog.handler)
    logging.getLogger("skylark.test").warning("a line")
    assert [record.message for record in caplog.records] == ["a line"]
    assert "{" not in caplog.text


# ---- random order --------------------------------------------------------------------------------


def test_a_seed_is_an_order_in_which_files_stay_together() -> None:
    files = [[f"{name}{number}" for number in range(5)] for name in "abcdef"]
    orders = [shuffled(files, seed) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        assert sorted(order) == sorted(chain(*files))
        groups = [
            "".join(test[0] for test in order[start : start + 5]) for start in range(0, 30, 5)
        ]
        assert sorted(groups) == [name * 5 for name in "abcdef"]
    assert shuffled([list("abcdefgh")], 1) != list("abcdefgh")


def test_the_seed_of_an_order() -> None:
    assert parse_order("17") == 17
    assert parse_order("random") >= 0
    with pytest.raises(pytest.UsageError, match="expected a seed, or random"):
        parse_order("x")


def test_the_tests_of_a_run_are_shuffled() -> None:
    orders = []
    for seed in ("5", "5", "6"):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0"),
                *("-p", "no:cacheprovider", "-k", "seeds", __file__),
            ],
            env={**os.environ, "ORDER": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        assert f"random order: ORDER={seed} repeats it" in done.stdout
        orders.append([line for line in done.stdout.splitlines() if "::" in line])
    assert orders[0] == orders[1] != orders[2]
    assert len(orders[0]) > 5
    assert sorted(orders[0]) == sorted(orders[2])


# ---- examples of property tests ------------------------------------------------------------------


def test_a_seed_is_a_choice_of_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the run that decides a landing has fixed ones."""
    monkeypatch.setenv("CI", "true")
    path = tmp_path / "test_drawn.py"
    path.write_text(DRAWING)
    drawn = [test_property.run(seed, "-s", str(path)).stdout for seed in (1, 1, 2)]
    found = [[line for line in text.splitlines() if line.startswith("drew")] for text in drawn]
    assert len(found[0]) > 10
    assert found[0] == found[1] != found[2]


DRAWING = """
from hypothesis import given, settings, strategies as st

@settings(database=None, max_examples=20)
@given(st.integers())
def test_it(number):
    print("drew", number)
"""
