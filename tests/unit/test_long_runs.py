"""The ledger of long runs: what is recorded, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import long_runs
from tests.support.long_runs import LongRun, LongRunRecorder, part_of, read_ledger, write_ledger

pytest_plugins = ["pytester"]

PLUGIN = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.support import long_runs
long_runs.current_commit = lambda _: {commit!r}

def pytest_configure(config):
    config.pluginmanager.register(long_runs.LongRunRecorder(Path("ledger.toml")), "long-runs")
"""
TESTS = """
import pytest

def test_good(): pass
def test_bad(): assert {good}
@pytest.mark.skip
def test_skipped(): pass
"""


def run(part: str, **changes: object) -> LongRun:
    values = {
        "kind": "interop", "part": part, "commit": "abc", "date": "2026-11-18", "passed": 3,
        "failed": 0, "skipped": 1, "machine": "a machine",
    }  # fmt: skip
    return LongRun(**(values | changes))  # type: ignore[arg-type]  # what the test gives


def test_a_part_has_one_entry(tmp_path: Path) -> None:
    path = tmp_path / "ledger.toml"
    assert read_ledger(path) == {}
    write_ledger([run("store"), run("ha", machine='an "odd" machine')], path)
    write_ledger([run("store", failed=1)], path)
    found = read_ledger(path)
    assert found == {
        ("interop", "store"): run("store", failed=1),
        ("interop", "ha"): run("ha", machine='an "odd" machine'),
    }
    assert [each.has_passed for each in found.values()] == [True, False]


def test_parts_are_those_of_the_makefile() -> None:
    assert part_of("tests/interop/test_spark_sdp.py::test_x") == ("interop", "spark")
    assert part_of("tests/unit/test_x.py") is None
    assert {("interop", "store"), ("interop", "mqadmin"), ("crash", "wire")} <= {*long_runs.parts()}


@pytest.mark.parametrize(
    ("commit", "arguments", "counts"),
    [
        ("abc", [], (1, 1, 1)),
        (None, [], None),
        ("abc", ["-k", "good"], None),
        ("abc", ["-x"], None),
    ],
    ids=["whole", "changed files", "some tests", "broken off"],
)
def test_whole_runs_are_recorded(
    pytester: pytest.Pytester,
    commit: str | None,
    arguments: list[str],
    counts: tuple[int, int, int] | None,
) -> None:
    pytester.makeconftest(PLUGIN.format(commit=commit, root=str(long_runs.ROOT)))
    folder = pytester.mkdir("tests") / "interop"
    folder.mkdir()
    (folder / "test_store_more.py").write_text(TESTS.format(good=False))
    pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)
    found = read_ledger(pytester.path / "ledger.toml").get(("interop", "store"))
    assert (None if found is None else (found.passed, found.failed, found.skipped)) == counts


@pytest.mark.parametrize(("kind", "seeds"), [("crash", "3-9"), ("interop", "")])
def test_a_run_with_some_seeds_names_them(
    kind: str, seeds: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEDS", "3-9")
    pytester.makeconftest(PLUGIN.format(commit="abc", root=str(long_runs.ROOT)))
    folder = pytester.mkdir("tests") / kind
    folder.mkdir()
    (folder / "test_store.py").write_text(TESTS.format(good=True))
    pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert read_ledger(pytester.path / "ledger.toml")[kind, "store"].seeds == seeds


def test_nothing_is_recorded_of_other_tests(tmp_path: Path) -> None:
    recorder = LongRunRecorder(tmp_path / "ledger.toml")
    assert recorder.runs("abc") == []
