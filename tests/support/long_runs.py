"""The ledger of long runs: which part of ``make interop`` and ``make crash`` passed, and when.

``make interop PART=store LEDGER=1`` writes its result into ``tests/ledger.toml``, and so does
``make crash``. A part has one entry, that of its last whole run: a run of some of its tests, or of
files that differ from their commit, is not recorded. ``docs/compatibility.md`` reads the ledger and
says of what it claims whether a run shows it. The entry of a run with some seeds names them.
"""

from __future__ import annotations

import datetime
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest

from bench.harness import current_commit, machine_facts

ROOT: Final = Path(__file__).parents[2]
LEDGER: Final = ROOT / "tests" / "ledger.toml"
_HEAD: Final = (
    "# Written by make interop and make crash with LEDGER=1 (tests/support/long_runs.py).\n"
)
_TEST_FILE: Final = re.compile(r"tests/(interop|crash)/test_([a-z0-9]+)")


class LongRun(msgspec.Struct, kw_only=True, frozen=True):
    """The last whole run of one part."""

    kind: str  #: "interop" or "crash"
    part: str
    commit: str
    date: str
    passed: int
    failed: int
    skipped: int
    machine: str
    seeds: str = ""  #: of ``SEEDS=<first>-<last>``; empty: all of the part

    @property
    def has_passed(self) -> bool:
        return self.passed > 0 and not self.failed


def part_of(node_id: str) -> tuple[str, str] | None:
    """``tests/interop/test_spark_sdp.py::test_x`` -> ``("interop", "spark")``."""
    found = _TEST_FILE.match(node_id)
    return None if found is None else (found[1], found[2])


def parts(folder: Path = ROOT / "tests") -> list[tuple[str, str]]:
    """All parts that there are."""
    paths = [path for kind in ("interop", "crash") for path in (folder / kind).glob("test_*.py")]
    found = {part_of(f"tests/{path.parent.name}/{path.name}") for path in paths}
    return sorted(part for part in found if part is not None)


def read_ledger(path: Path = LEDGER) -> dict[tuple[str, str], LongRun]:
    """The entries by kind and part."""
    if not path.exists():
        return {}
    runs = msgspec.convert(tomllib.loads(path.read_text()).get("run", []), list[LongRun])
    return {(run.kind, run.part): run for run in runs}


def write_ledger(runs: Iterable[LongRun], path: Path = LEDGER) -> None:
    """Put runs in place of earlier ones of their parts."""
    entries = read_ledger(path) | {(run.kind, run.part): run for run in runs}
    blocks = [_HEAD]
    for _, run in sorted(entries.items()):
        fields = msgspec.to_builtins(run).items()
        lines = [f"{name} = {_toml(value)}\n" for name, value in fields if value != ""]
        blocks.append("[[run]]\n" + "".join(lines))
    path.write_text("\n".join(blocks))


def _toml(value: str | int) -> str:
    return msgspec.json.encode(value).decode()  # the same for integers and plain text


class LongRunRecorder:
    """A pytest plugin that records whole runs of parts."""

    def __init__(self, path: Path = LEDGER) -> None:
        self._path = path
        self._counts: dict[tuple[str, str], Counter[str]] = {}
        self._is_partial = False

    def pytest_collection_modifyitems(self, config: pytest.Config) -> None:
        self._is_partial |= any("::" in argument for argument in config.args)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._is_partial |= bool(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        part = part_of(report.nodeid)
        if part is not None and (report.when == "call" or not report.passed):
            self._counts.setdefault(part, Counter())[report.outcome] += 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self._is_partial |= exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        self._is_partial |= bool(session.shouldstop or session.shouldfail)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        commit = current_commit(ROOT)
        if self._is_partial or commit is None or not self._counts:
            why = "files differ from their commit" if commit is None else "it was no whole run"
            terminalreporter.write_line(f"LEDGER: nothing is recorded, {why}")
            return
        write_ledger(self.runs(commit), self._path)
        terminalreporter.write_line(f"LEDGER: recorded in {self._path.name}")

    def runs(self, commit: str) -> list[LongRun]:
        """The results so far, as runs of this commit."""
        facts = machine_facts()
        seeds = os.environ.get("SEEDS", "")
        return [
            LongRun(
                kind=kind,
                part=part,
                commit=commit[:10],
                date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
                passed=counts["passed"],
                failed=counts["failed"],
                skipped=counts["skipped"],
                machine=f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}",
                seeds=seeds if kind == "crash" else "",
            )
            for (kind, part), counts in sorted(self._counts.items())
        ]
