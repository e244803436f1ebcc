"""Many seeded runs of trouble, one after the other: what the tests in ``tests/crash`` share.

A test says how one run goes and how all of them are summed up::

    class Result(RunResult):                     # what happened in a run that went well
        rows: int

    def run(seed: int, folder: Path) -> Result: ...

    SERIES = Series("spark", Result, range(1, 101))

    def test_storms(seeds: range | None, tmp_path: Path) -> None:
        runs = SERIES.run(run, seeds, tmp_path)
        print(f"{len(runs)} runs; {listed(total(run.hits for run in runs))}")

A run that went wrong raises, and ends the series. Each that went well, and in which trouble met
traffic, is a line in ``build/crash/<part>.jsonl``. A run that is there for the present commit is
not repeated: an interrupted series goes on where it ended. Where files differ from their commit all
runs are made.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from bench.harness import Ledger, current_commit

ROOT: Final = Path(__file__).parents[2]


class RunResult(msgspec.Struct, kw_only=True):
    """What happened in a run that went well; ``str()`` of it is the line that is printed."""

    seed: int
    seconds: float
    hits: dict[str, int]  #: how often which trouble met traffic

    @property
    def hit_count(self) -> int:
        return sum(self.hits.values())


ResultT = TypeVar("ResultT", bound=RunResult)


class Series(Generic[ResultT]):
    """All runs of one part of ``make crash``."""

    def __init__(
        self,
        part: str,
        result_type: type[ResultT],
        seeds: Iterable[int],
        *,
        folder: Path = ROOT / "build" / "crash",
        commit: Callable[[], str | None] = lambda: current_commit(ROOT),
    ) -> None:
        """``seeds``: those that are run if nobody chooses others."""
        self._result_type = result_type
        self.seeds = seeds
        self._ledger = Ledger(folder / f"{part}.jsonl")
        self._commit = commit

    def run(
        self,
        run: Callable[[int, Path], ResultT],
        seeds: Iterable[int] | None,
        folder: Path,
    ) -> list[ResultT]:
        """Run what is left of the seeds, each in a folder of its own, which is deleted.

        Returns all results of this commit, also those of seeds that were not chosen now.
        """
        commit = self._commit()
        results = self.finished(commit)
        print()
        for seed in seeds or self.seeds:
            if seed in results:
                continue
            place = folder / str(seed)
            result = run(seed, place)
            print(result, flush=True)
            assert result.hit_count > 0, "no trouble met traffic: the run does not count"
            results[seed] = result
            self._ledger.append({"commit": commit, **msgspec.to_builtins(result)})
            shutil.rmtree(place)
        return list(results.values())

    def finished(self, commit: str | None) -> dict[int, ResultT]:
        """The runs of a commit, by seed; none for files that differ from theirs."""
        if commit is None:
            return {}
        entries = [entry for entry in self._ledger.entries() if entry.pop("commit", None) == commit]
        return {entry["seed"]: msgspec.convert(entry, self._result_type) for entry in entries}


def total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """The counts of many runs together."""
    together: Counter[str] = Counter()
    for each in counts:
        together.update(each)
    return together


def listed(counts: Mapping[str, int]) -> str:
    """Names and counts in one line."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
