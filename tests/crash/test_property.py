"""The property tests with new examples: each seed is one run of ``tests/property``.

``make crash PART=property``; ``SEEDS=a-b`` chooses other seeds. The run that decides whether a
change may land tries the same examples each time (``tests/conftest.py``); this one tries others,
and the same seed tries the same again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
DEFAULT_SEEDS = range(1, 11)
RUN_TIMEOUT_S = 3600


@pytest.mark.timeout(10 * RUN_TIMEOUT_S)  # all runs together
def test_new_examples(seeds: range | None) -> None:
    chosen = seeds or DEFAULT_SEEDS
    for seed in chosen:
        done = run(seed)
        if done.returncode:
            pytest.fail(f"{done.stdout}\nrepeat it with make crash PART=property SEEDS={seed}")
        print(f"seed {seed}: {done.stdout.splitlines()[-1]}")
    print(f"{len(chosen)} runs of the property tests, seeds {chosen[0]} to {chosen[-1]}")


def run(seed: int, *tests: str) -> subprocess.CompletedProcess[str]:
    """The property tests with the examples of one seed."""
    # CI is what fixes the examples; the database would try those that failed in another run.
    environ = {name: value for name, value in os.environ.items() if name not in ("CI", "LEDGER")}
    folder = tests or ("tests/property",)
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
            *(f"--hypothesis-seed={seed}", *folder),
        ],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
