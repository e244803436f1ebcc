"""Clients whose servers and connections fail, short form; ``make crash PART=client`` runs the long
one. What must hold is in :mod:`tests.client_storm`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness import Ledger
from tests.client_storm import StormResult, run_storm
from tests.crash import test_client as long_form


@pytest.mark.parametrize("seed", [1, 9, 17])
def test_2000_messages_in_a_storm(seed: int, tmp_path: Path) -> None:
    result = run_storm(seed, count=2_000, trouble_count=5, folder=tmp_path)
    print(f"\n{result}")
    assert result.hit_count > 0, "no trouble met traffic: the run does not count"


def test_a_long_series_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[int] = []

    def run(seed: int, count: int, trouble_count: int, folder: Path) -> StormResult:
        begun.append(seed)
        folder.mkdir()
        return StormResult(
            seed=seed,
            shape="any",
            messages=count,
            seconds=8.0,
            hits={} if seed == 4 else {"cut": 2, "kill": 1},
            failed_sends={"SendFailedError": 5},
            repeated=3,
            recovered_s=seed / 100,
        )

    monkeypatch.setattr(long_form, "run_storm", run)
    monkeypatch.setattr(long_form, "LEDGER", Ledger(tmp_path / "results.jsonl"))
    monkeypatch.setattr(long_form, "current_commit", lambda _: "c1")
    long_form.test_storms(range(1, 3), tmp_path)
    long_form.test_storms(range(1, 4), tmp_path)
    assert begun == [1, 2, 3]
    assert capsys.readouterr().out.splitlines()[-1] == (
        "3 runs, 60000 messages in 24 s; 9 hits: cut 6, kill 3; 15 failed sends,"
        " 9 repeated deliveries, slowest recovery 0.03 s"
    )
    with pytest.raises(AssertionError, match="no trouble met traffic"):
        long_form.test_storms(range(4, 5), tmp_path)
    assert 4 not in long_form.finished("c1")
    for commit in ("c2", None):  # another one; or files that differ from any
        monkeypatch.setattr(long_form, "current_commit", lambda _, commit=commit: commit)
        begun.clear()
        long_form.test_storms(range(1, 2), tmp_path)
        long_form.test_storms(range(1, 2), tmp_path)
        assert begun == ([1] if commit else [1, 1])
