"""Long series of seeded runs: what counts, what is kept, and where they go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.test_client import summary as client_summary
from tests.crash.test_ha import summary as ha_summary
from tests.support.client_storm import StormResult as ClientResult
from tests.support.crash_series import RunResult, Series
from tests.support.ha_storm import StormResult as HaResult


class Result(RunResult, kw_only=True):
    rows: int


class Runs:
    """Runs in which nothing happens; that of seed 4 has no trouble."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commit: str | None = "c1"
        self.begun: list[int] = []
        self.series = Series(
            "part", Result, range(1, 4), folder=folder / "build", commit=lambda: self.commit
        )

    def one(self, seed: int, folder: Path) -> Result:
        self.begun.append(seed)
        folder.mkdir()
        hits = {} if seed == 4 else {"cut": 2, "kill": 1}
        return Result(seed=seed, seconds=8.0, hits=hits, rows=seed * 10)

    def run(self, seeds: range | None = None) -> list[int]:
        return [result.rows for result in self.series.run(self.one, seeds, self.folder)]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_a_series_goes_on_where_it_ended(runs: Runs) -> None:
    assert runs.run(range(1, 3)) == [10, 20]
    assert runs.run() == [10, 20, 30]
    assert runs.run(range(2, 3)) == [10, 20, 30]
    assert runs.begun == [1, 2, 3]
    assert [path.name for path in runs.folder.iterdir()] == ["build"]


def test_a_run_without_trouble_does_not_count(runs: Runs) -> None:
    with pytest.raises(AssertionError, match="no trouble met traffic"):
        runs.run(range(3, 6))
    assert runs.begun == [3, 4]
    assert list(runs.series.finished("c1")) == [3]


@pytest.mark.parametrize(("commit", "begun"), [("c2", [1, 1]), (None, [1, 1, 1])])
def test_runs_of_other_files_do_not_count(runs: Runs, commit: str | None, begun: list[int]) -> None:
    runs.run(range(1, 2))
    runs.commit = commit
    runs.run(range(1, 2))
    runs.run(range(1, 2))
    assert runs.begun == begun


def test_the_runs_of_clients_together() -> None:
    runs = [
        ClientResult(
            seed=seed,
            shape="any",
            messages=20_000,
            seconds=8.0,
            hits={"cut": 2, "kill": 1},
            failed_sends={"SendFailedError": 5},
            repeated=3,
            recovered_s=seed / 100,
        )
        for seed in (1, 2, 3)
    ]
    assert client_summary(runs) == (
        "3 runs, 60000 messages in 24 s; 9 hits: cut 6, kill 3; 15 failed sends,"
        " 9 repeated deliveries, 0 at graceful joins, slowest recovery 0.03 s"
    )


def test_the_runs_of_pairs_together() -> None:
    runs = [
        HaResult(
            seed=seed,
            troubles=["kill master"],
            acknowledged=500,
            log_size=3 << 20,
            seconds=8.0,
            hits={"kill": 1},
            failed_sends={"SLAVE": 2},
            recovered_s=seed / 100,
        )
        for seed in (1, 2)
    ]
    assert ha_summary(runs) == (
        "2 runs, 1000 messages acknowledged, 6 MiB compared, in 16 s; 2 hits: kill 2;"
        " failed sends: SLAVE 4; slowest recovery 0.02 s"
    )
