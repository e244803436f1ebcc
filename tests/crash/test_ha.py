"""Master and slave that fail, and the link between them: 200 runs.

``make crash PART=ha``; ``SEEDS=a-b`` chooses other seeds. Each run that went well, and in which
trouble met traffic, is a line in ``build/crash/ha.jsonl``. A run that is there for the present
commit is not repeated: an interrupted series goes on where it ended. What must hold is in
:mod:`tests.ha_storm`. Machines that lose their power, and what their disks had not yet, are in
``tests/fault/test_replication.py``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from bench.harness import Ledger, current_commit
from tests.ha_storm import StormResult, run_storm

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parent.parent.parent
LEDGER = Ledger(ROOT / "build" / "crash" / "ha.jsonl")
SEEDS = range(1, 201)
TROUBLES = 3


@pytest.mark.timeout(2 * 3600)  # all runs together; each of them has deadlines of its own
def test_storms(seeds: range | None, tmp_path: Path) -> None:
    commit = current_commit(ROOT)
    results = finished(commit)
    print()
    for seed in seeds or SEEDS:
        if seed in results:
            continue
        folder = tmp_path / str(seed)
        result = run_storm(seed, TROUBLES, folder)
        print(result, flush=True)
        assert result.hit_count > 0, "no trouble met traffic: the run does not count"
        results[seed] = result
        LEDGER.append({"commit": commit, **msgspec.to_builtins(result)})
        shutil.rmtree(folder)
    print(summary(results.values()))
    assert set(seeds or SEEDS) <= results.keys()


def finished(commit: str | None) -> dict[int, StormResult]:
    """The runs of this commit; none where files differ from it."""
    if commit is None:
        return {}
    entries = [entry for entry in LEDGER.entries() if entry.pop("commit", None) == commit]
    return {entry["seed"]: msgspec.convert(entry, StormResult) for entry in entries}


def summary(results: Iterable[StormResult]) -> str:
    """All runs of the commit together."""
    runs = list(results)
    hits: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for run in runs:
        hits.update(run.hits)
        failed.update(run.failed_sends)
    shown = ", ".join(f"{name} {count}" for name, count in hits.most_common())
    failures = ", ".join(f"{name} {count}" for name, count in failed.most_common())
    return (
        f"{len(runs)} runs, {sum(run.acknowledged for run in runs)} messages acknowledged,"
        f" {sum(run.log_size for run in runs) >> 20} MiB compared, in"
        f" {sum(run.seconds for run in runs):.0f} s; {hits.total()} hits: {shown};"
        f" failed sends: {failures};"
        f" slowest recovery {max((run.recovered_s for run in runs), default=0.0):.2f} s"
    )
