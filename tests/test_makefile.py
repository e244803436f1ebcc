"""The Makefile tells its user what there is: targets, and the parts of the long suites."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SUITES = {"interop": "tests/interop/test_", "crash": "tests/crash/test_", "bench": "bench/"}


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    own = re.compile("MAKE|(ORDER|ARGS|PART|ROWS|SEEDS|BASE|LEDGER|PYTHON)$")  # of these tests
    environ = {key: value for key, value in os.environ.items() if not own.match(key)}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )


def parts_of(suite: str) -> list[str]:
    folder, _, prefix = SUITES[suite].rpartition("/")
    names = [path.stem.removeprefix(prefix) for path in (ROOT / folder).glob(f"{prefix}*.py")]
    if suite == "bench":
        names = [name for name in names if name not in ("harness", "owner")]
    if suite == "interop":
        names = [name.split("_")[0] for name in names]  # test_broker_restart.py is of the broker
    return sorted(set(names))


def test_make_alone_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    shown = make()
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == phony.group(1).split()
    assert all(len(line.split()) > 2 for line in lines[1:])


@pytest.mark.parametrize(
    ("suite", "part"),
    [
        *((suite, [wrong]) for suite in SUITES for wrong in ("PART=nosuch", "PART=")),
        *((suite, []) for suite in SUITES if suite != "bench"),
    ],
)
def test_a_missing_or_wrong_part_lists_the_parts(suite: str, part: list[str]) -> None:
    run = make(suite, *part)
    assert run.returncode == 2
    listed = ", ".join(parts_of(suite)).replace(",", "") or "none yet"
    assert f"make {suite} needs PART=<part>, one of: {listed}." in run.stderr


def test_bench_without_a_part_compares() -> None:
    run = make("-n", "bench")
    assert run.returncode == 0, run.stderr
    assert "-m bench.compare --rows ''" in run.stdout


@pytest.mark.parametrize("suite", SUITES)
def test_a_part_is_a_file(suite: str) -> None:
    for part in parts_of(suite):
        run = make("-n", suite, f"PART={part}", "SEEDS=1-5", "ROWS=a*,b c")
        assert run.returncode == 0, run.stderr
        assert f"bench.{part}" in run.stdout or f"{SUITES[suite]}{part}.py" in run.stdout
        if suite == "interop":
            more = sorted((ROOT / "tests" / "interop").glob(f"test_{part}_*.py"))
            assert all(str(path.relative_to(ROOT)) in run.stdout for path in more)
        if suite == "crash":
            assert "SEEDS='1-5'" in run.stdout
        if suite == "bench":
            assert "--rows 'a*,b c'" in run.stdout
            assert "--base '" not in run.stdout


def test_test_order_runs_all_in_one_process() -> None:
    for given, order in (([], "random"), (["ORDER=17"], "17")):
        run = make("-n", "test-order", *given, "ARGS=-k frame")
        assert f"ORDER='{order}' .venv/bin/pytest -n 0 --ignore=tests/interop" in run.stdout
        assert run.stdout.rstrip().endswith("-k frame")


def needs(target: str, *arguments: str) -> list[str]:
    """The steps of set-up that a target runs in an empty checkout, by their first words."""
    run = make("-n", target, "VENV=nosuch", *arguments)
    assert run.returncode == 0, run.stderr
    return re.findall(r"echo \"set-up (\d) of 2: (?!done)", run.stdout)


def test_servers_need_no_spark() -> None:
    assert needs("up") == ["1"]
    assert needs("demo", "ARGS=--no-spark --data x") == ["1"]
    assert needs("demo") == ["1", "2"]
    assert needs("setup") == ["1", "2"]
    assert needs("test") == ["1", "2"]


def test_a_python_that_is_named_has_its_own_environment() -> None:
    run = make("-n", "test", "PYTHON=/opt/bin/python3.99")
    assert "/opt/bin/python3.99 -m venv .venv-python3.99 " in run.stdout
    assert "\n.venv-python3.99/bin/pytest -n 2 " in run.stdout


def test_the_locks_agree() -> None:
    """What both steps of set-up install has one version."""

    def pins(name: str) -> set[str]:
        return {
            line.rstrip(" \\")
            for line in (ROOT / name).read_text().splitlines()
            if "==" in line and not line.startswith(" ")
        }

    everything = pins("requirements.lock")
    assert pins("requirements-base.lock") <= everything
    assert not any(
        re.match(r"(pyspark|pyarrow|pandas)==", pin) for pin in pins("requirements-base.lock")
    )
    names = {pin.partition("==")[0] for pin in everything}
    release = {pin for pin in pins("tools/release.lock") if pin.partition("==")[0] in names}
    assert {pin.partition(" ;")[0] for pin in release} <= {
        pin.partition(" ;")[0] for pin in everything
    }


def test_bench_passes_the_base() -> None:
    run = make("-n", "bench", "PART=path", "BASE=HEAD~1")
    assert "-m bench.path --rows '' --base 'HEAD~1'" in run.stdout


def test_ci_calls_make_test_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines() == [
        "#!/bin/bash",
        "set -euo pipefail",
        'cd "$(dirname "$0")/.."',
        "make test",
    ]
