"""What all tests share: the time per folder at the end, how workers share them, and seeds."""

from __future__ import annotations

import logging
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A run that decides whether a change may land must not depend on luck: there, property tests try
# the same examples each time. Everywhere else they try new ones.
settings.register_profile("fixed", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("fixed")


TIMEOUT_S = 300  # a test that waits forever fails instead of holding everything up


def folder_of(node_id: str) -> str:
    """``tests/unit/wire/test_frame.py::test_x`` -> ``tests/unit/wire``."""
    return str(PurePosixPath(node_id.partition("::")[0]).parent)


class FolderTimes:
    """Adds up what the tests of each folder took, set-up and tear-down included.

    ``make test`` has a time budget per part; these lines show who spends it.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.tests: defaultdict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = folder_of(report.nodeid)
        self.seconds[folder] += report.duration
        self.tests[folder] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("time per folder")
        for folder, seconds in sorted(self.seconds.items()):
            tests = self.tests[folder]
            terminalreporter.write_line(f"{seconds:8.1f} s  {tests:6} tests  {folder}")


def pytest_configure(config: pytest.Config) -> None:
    # Background jobs of a shell start with SIGINT ignored, those of nohup with SIGHUP ignored, and
    # so would all children of tests.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Not a setting in pyproject.toml: the first test of a newcomer, saved in the checkout, would
    # then need pytest-timeout.
    if config.getvalue("timeout") is None:
        config.option.timeout = TIMEOUT_S
    config.addinivalue_line(
        "markers",
        "serves(*codes): requests that this test of an item of the specification shows served;"
        " docs/compatibility.md cites it",
    )
    config.pluginmanager.register(FolderTimes(), "folder-times")
    if order := os.environ.get("ORDER"):
        from tests.support.random_order import RandomOrder, parse_order

        config.pluginmanager.register(RandomOrder(parse_order(order)), "random-order")
    if os.environ.get("LEDGER") and not hasattr(config, "workerinput"):
        from tests.support.long_runs import LongRunRecorder

        config.pluginmanager.register(LongRunRecorder(), "long-runs")


def group_of(node_id: str) -> str:
    """Tests of one group run in one worker of pytest-xdist, one after the other.

    A file is a group, for its tests may share servers. All that starts Spark is one, so that there
    is one session, and not more memory than a small machine has. Documents share nothing.
    """
    path = node_id.partition("::")[0]
    if path.startswith(("tests/spark/", "tests/fault/test_spark")) or "spark.md" in node_id:
        return "spark"
    return node_id if path == "tests/test_docs.py" else path


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives whole groups to workers."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)  # tests may be run without workers: -p no:xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByGroup:
    return ByGroup(config, log)


def parse_seeds(text: str) -> range | None:
    """``"5-7"`` -> 5, 6, 7; ``"5"`` -> 5 alone; nothing -> ``None``: the test's own choice."""
    if not text:
        return None
    first, _, last = text.partition("-")
    try:
        seeds = range(int(first), int(last or first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise pytest.UsageError(f"SEEDS={text}: expected <seed> or <first>-<last>")
    return seeds


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the format of captured log lines.

    pytest adds its handlers to loggers that do not propagate, and Spark's set the format of every
    handler they get, to one that leaves out ``record.message``.
    """
    plugin = session.config.pluginmanager.get_plugin("logging-plugin")
    if plugin is not None:
        for handler in (plugin.caplog_handler, plugin.report_handler):
            handler.setFormatter = lambda _formatter: None


@pytest.fixture(autouse=True)
def logging_stays() -> Iterator[None]:
    """Logging is as it was: a command that runs within a test configures that of the process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(scope="session")
def seeds() -> range | None:
    """The seeds of ``make crash SEEDS=<first>-<last>``, or ``None`` for the default of the run."""
    return parse_seeds(os.environ.get("SEEDS", ""))
