"""The bench harness on a clock that moves only when a case says so: exact figures, no waiting."""

from __future__ import annotations

import gc
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import pytest

from bench import harness
from bench.harness import BenchError, Case, Ledger

MACHINE = {"cpu": "test", "cores": 2, "python": "CPython 3.11"}
COMMIT = "c0ffee"


class Bench:
    """Cases whose runs take a scripted number of nanoseconds."""

    def __init__(self) -> None:
        self.now = 0
        self.order: list[str] = []

    def timer(self) -> int:
        return self.now

    def work(self, name: str, cost: Callable[[], int] | int) -> Callable[[], None]:
        def run() -> None:
            if not self.order or self.order[-1] != name:
                self.order.append(name)
            self.now += cost if isinstance(cost, int) else cost()

        return run

    def case(
        self,
        name: str,
        cost: Callable[[], int] | int = 100,
        *,
        units: int = 1,
        floor: str | None = None,
        time_at_most: float | None = None,
        speed_at_least: float | None = None,
    ) -> Case:
        run = self.work(name, cost)
        return Case(name, run, units, "frame", floor, time_at_most, speed_at_least)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---- measuring -------------------------------------------------------------------------------


def test_rounds_alternate(bench: Bench) -> None:
    cases = [bench.case(name, cost=1000) for name in "ABC"]
    harness.measure(cases, rounds=4, sample_s=1e-6, timer=bench.timer)
    warm_up, rounds = "ABC", "ABCCBAABCCBA"
    # Neighbours of one name are recorded once: forward and backward rounds meet in "CC" and "AA".
    assert "".join(bench.order) == warm_up + rounds.replace("CC", "C").replace("AA", "A")


def test_times_are_per_unit(bench: Bench) -> None:
    (result,) = harness.measure(
        [bench.case("a", cost=5_000, units=50)], rounds=3, sample_s=1e-3, timer=bench.timer
    )
    assert result.samples_ns == (100.0, 100.0, 100.0)
    assert result.median_ns == 100.0
    assert result.units_per_s == 1e7
    assert result.spread == 0.0
    assert result.ratio is None


def test_a_sample_lasts_long_enough(bench: Bench) -> None:
    harness.measure([bench.case("a", 7)], rounds=2, sample_s=1e-5, timer=bench.timer)
    # Two samples of at least 10,000 ns, and a warm-up that ends with one more.
    assert 30_000 <= bench.now < 100_000


def test_median_and_spread(bench: Bench) -> None:
    costs = iter([10, 10, 40, 20, 30, 50])  # the first is the warm-up
    (result,) = harness.measure(
        [bench.case("a", lambda: next(costs))], rounds=5, sample_s=1e-9, timer=bench.timer
    )
    assert list(result.samples_ns) == [10, 40, 20, 30, 50]
    assert result.median_ns == 30
    assert result.spread == pytest.approx((40 - 20) / 30)


def test_the_ratio_pairs_the_samples_of_a_round(bench: Bench) -> None:
    # The machine gets slower from round to round; the case always takes three times its floor.
    floor_costs = iter([10, 10, 20, 40])
    case_costs = iter([30, 30, 60, 120])
    floor = bench.case("floor", lambda: next(floor_costs))
    case = bench.case("case", lambda: next(case_costs), floor="floor", time_at_most=3.0)
    _, result = harness.measure([floor, case], rounds=3, sample_s=1e-9, timer=bench.timer)
    assert result.ratio == 3.0
    assert result.goal == "time at most 3x"
    assert result.goal_met is True


@pytest.mark.parametrize(
    ("time_at_most", "speed_at_least", "cost", "met"),
    [
        (2.0, None, 200, True),
        (2.0, None, 201, False),
        (None, 10.0, 10, True),
        (None, 10.0, 11, False),
    ],
)
def test_goals(
    bench: Bench, time_at_most: float | None, speed_at_least: float | None, cost: int, met: bool
) -> None:
    case = bench.case(
        "case", cost, floor="floor", time_at_most=time_at_most, speed_at_least=speed_at_least
    )
    _, result = harness.measure(
        [bench.case("floor", 100), case], rounds=2, sample_s=1e-9, timer=bench.timer
    )
    assert result.goal_met is met


def test_the_collector_is_off_while_measuring_and_on_again(bench: Bench) -> None:
    seen: set[bool] = set()

    def cost() -> int:
        seen.add(gc.isenabled())
        return 100

    harness.measure([bench.case("a", cost)], rounds=2, sample_s=1e-9, timer=bench.timer)
    assert seen == {False}
    assert gc.isenabled()

    def fail() -> int:
        raise ValueError("broken case")

    with pytest.raises(ValueError, match="broken case"):
        harness.measure([bench.case("b", fail)], rounds=2, timer=bench.timer)
    assert gc.isenabled()


def test_the_real_timer_measures_something() -> None:
    case = Case("sum", lambda: sum(range(1000)), units=1000, unit="addition")
    (result,) = harness.measure([case], rounds=2, sample_s=0.001)
    assert 0 < result.median_ns < 1e6


def test_wrong_declarations_are_refused(bench: Bench) -> None:
    a = bench.case("a")
    for cases, message in (
        ([a, a], "two cases are called 'a'"),
        ([bench.case("a", units=0)], "does no work"),
        ([bench.case("a", floor="x")], "no floor 'x'"),
        ([bench.case("a", floor="a")], "stands on itself"),
        ([bench.case("a", floor="b"), bench.case("b", floor="a")], "stands on itself"),
        ([bench.case("a", time_at_most=1.0)], "goal but no floor"),
    ):
        with pytest.raises(BenchError, match=message):
            harness.measure(cases, timer=bench.timer)
    with pytest.raises(BenchError, match="at least two rounds"):
        harness.measure([a], rounds=1, timer=bench.timer)


# ---- choosing rows ---------------------------------------------------------------------------


def test_rows_are_patterns(bench: Bench) -> None:
    cases = [bench.case(name) for name in ("json 100 B", "json 1 KB", "binary")]
    assert [c.name for c in harness.select(cases, "")] == ["json 100 B", "json 1 KB", "binary"]
    assert [c.name for c in harness.select(cases, "json*")] == ["json 100 B", "json 1 KB"]
    assert [c.name for c in harness.select(cases, "binary, json 1*KB")] == ["json 1 KB", "binary"]
    with pytest.raises(BenchError, match="no row matches nosuch; there are: json 100 B, json 1 KB"):
        harness.select(cases, "json*,nosuch")


def test_floors_come_along_and_make_groups(bench: Bench) -> None:
    base, middle = bench.case("base"), bench.case("middle", floor="base")
    top, other = bench.case("top", floor="middle"), bench.case("other")
    cases = [other, top, middle, base]
    assert [c.name for c in harness.with_floors([top], cases)] == ["top", "middle", "base"]
    grouped = harness.groups([top, other], cases)
    assert [[c.name for c in group] for group in grouped] == [["top", "middle", "base"], ["other"]]


# ---- the file of results ---------------------------------------------------------------------


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "machine_facts", lambda: MACHINE)
    monkeypatch.setattr(harness, "current_commit", lambda folder: COMMIT)


def run(bench: Bench, cases: list[Case], *arguments: str) -> str:
    stdout = io.StringIO()
    quick = ["--rounds", "2", "--sample-s", "1e-9"]
    harness.run("demo", cases, [*quick, *arguments], stdout=stdout, timer=bench.timer)
    return stdout.getvalue()


@pytest.mark.usefixtures("pinned")
def test_a_run_appends_its_results(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "new" / "results.jsonl"
    cases = [bench.case("floor", 100), bench.case("case", 250, floor="floor", time_at_most=2.0)]
    run(bench, cases, "--json", str(file))
    floor, case = (json.loads(line) for line in file.read_text().splitlines())
    assert floor["case"] == "floor"
    assert case == {
        "bench": "demo",
        "case": "case",
        "commit": COMMIT,
        "unit": "frame",
        "median_ns": 250.0,
        "spread": 0.0,
        "units_per_s": 4e6,
        "floor": "floor",
        "ratio": 2.5,
        "goal": "time at most 2x",
        "goal_met": False,
        "samples_ns": [250.0, 250.0],
        "machine": MACHINE,
    }


@pytest.mark.usefixtures("pinned")
def test_a_run_resumes(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    cases = [
        bench.case("floor", 100),
        bench.case("a", 200, floor="floor"),
        bench.case("b", 300, floor="floor"),
        bench.case("alone", 50),
    ]
    run(bench, cases, "--json", str(file), "--rows", "a")
    assert [json.loads(line)["case"] for line in file.read_text().splitlines()] == ["floor", "a"]
    bench.order.clear()
    first = run(bench, cases, "--json", str(file))
    assert set(bench.order) == {"floor", "b", "alone"}  # a is done; b needs its floor again
    assert [json.loads(line)["case"] for line in file.read_text().splitlines()] == [
        "floor",
        "a",
        "b",
        "alone",
    ]
    bench.order.clear()
    assert run(bench, cases, "--json", str(file)) == first
    assert bench.order == []


@pytest.mark.usefixtures("pinned")
def test_groups_are_saved_as_they_end(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"

    def fail() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(bench, [bench.case("a"), bench.case("b", fail)], "--json", str(file))
    assert [json.loads(line)["case"] for line in file.read_text().splitlines()] == ["a"]


@pytest.mark.parametrize(
    ("facts", "commit"),
    [(MACHINE, "other"), (MACHINE | {"cores": 4}, COMMIT), (MACHINE, None)],
)
def test_other_machines_and_commits_are_measured_again(
    bench: Bench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, object],
    commit: str | None,
) -> None:
    ledger = Ledger(tmp_path / "results.jsonl")
    (result,) = harness.measure([bench.case("a")], rounds=2, sample_s=1e-9, timer=bench.timer)
    ledger.append(harness.to_entry("demo", result, facts, commit))
    ledger.append(harness.to_entry("another", result, MACHINE, COMMIT))
    assert harness.finished(ledger, "demo", MACHINE, COMMIT) == {}
    assert harness.finished(ledger, "another", MACHINE, COMMIT) == {"a": result}
    assert harness.finished(ledger, "another", MACHINE, None) == {}


def test_a_torn_line_is_ignored_and_closed(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text('{"case": "a"}\n{"case": "b", "sampl')
    ledger = Ledger(file)
    assert ledger.entries() == [{"case": "a"}]
    ledger.append({"case": "c"})
    assert ledger.entries() == [{"case": "a"}, {"case": "c"}]
    assert file.read_text().endswith('"sampl\n{"case": "c"}\n')


# ---- facts, table, command -------------------------------------------------------------------


def test_machine_facts_name_no_machine() -> None:
    facts = harness.machine_facts()
    assert facts["cores"] >= 1
    assert facts["python"].startswith("CPython 3.")
    assert facts["versions"]["msgspec"]
    text = json.dumps(facts)
    host = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout
    assert host.strip() not in text
    assert "/" not in facts["system"] + facts["python"]
    assert json.loads(text) == facts


def test_the_commit_is_known_only_in_a_clean_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    assert harness.current_commit(tmp_path) is None
    git("add", "a")
    git("commit", "-q", "-m", "a")
    assert harness.current_commit(tmp_path) == git("rev-parse", "HEAD").strip()
    (tmp_path / "a").write_text("2")
    assert harness.current_commit(tmp_path) is None
    assert harness.current_commit(tmp_path / "absent") is None


@pytest.mark.usefixtures("pinned")
def test_the_table(bench: Bench) -> None:
    cases = [
        bench.case("floor", 100),
        bench.case("slow case", 1_250, floor="floor", time_at_most=3.0),
        bench.case("quick case", 5, floor="floor", speed_at_least=10.0),
    ]
    machine, *lines = run(bench, cases).splitlines()
    assert machine == "test, 2 cores, CPython 3.11"
    assert [re.split(r" {2,}", line) for line in lines] == [
        ["case", "time", "spread", "rate", "to its floor", "goal"],
        ["floor", "100 ns/frame", "0%", "10,000,000 frames/s"],
        [
            "slow case",
            "1,250 ns/frame",
            "0%",
            "800,000 frames/s",
            "12.50x (floor)",
            "time at most 3x: MISSED",
        ],
        [
            "quick case",
            "5 ns/frame",
            "0%",
            "200,000,000 frames/s",
            "0.05x (floor)",
            "speed at least 10x: met",
        ],
    ]
    assert len({line.index("frames/s") for line in lines[1:]}) == 1  # aligned


def test_a_wrong_row_ends_with_a_sentence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["demo", "--rows", "nosuch"])
    with pytest.raises(SystemExit, match=r"bench\.demo: no row matches nosuch; there are: a"):
        harness.main("demo", [bench.case("a")])


@pytest.mark.parametrize(("met", "code"), [(True, 0), (False, 1)])
def test_a_program_ends_with_what_it_found(
    met: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        harness.run_program("demo", lambda arguments, *, stdout: met)
    assert ended.value.code == code


def test_errors_of_a_program_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: Sequence[str], *, stdout: TextIO) -> bool:
        raise LookupError("no tool")

    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        harness.run_program("demo", fail, LookupError)
    assert ended.value.code == "bench.demo: no tool"


# ---- another commit --------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits of a part, whose row takes 100 ns at the first and cannot run at the second."""
    root = tmp_path / "repository"
    (root / "bench").mkdir(parents=True)
    (root / "src").mkdir()
    part = root / "bench" / "part.py"
    part.write_text(
        "import json, sys\n"
        "options = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "with open(options['--json'], 'a') as file:\n"
        "    for case in options['--rows'].split(','):\n"
        "        entry = {'case': case, 'median_ns': 100, 'rounds': int(options['--rounds'])}\n"
        "        file.write(json.dumps(entry) + '\\n')\n"
    )
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "one"]):
        git(root, *arguments)
    part.write_text("raise SystemExit('this part is broken')\n")
    git(root, "commit", "--quiet", "-a", "-m", "two")
    return root


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_base_is_checked_out_once(repository: Path) -> None:
    base = harness.checkout_base("HEAD~1", repository)
    assert base.commit == git(repository, "rev-parse", "HEAD~1")
    assert base.folder == repository / "build" / "base" / base.commit[:12]
    assert "json" in (base.folder / "bench" / "part.py").read_text()
    assert harness.checkout_base(base.commit, repository) == base
    # What `make clean` leaves behind does not disturb.
    shutil.rmtree(repository / "build")
    assert harness.checkout_base("HEAD~1", repository).folder.exists()
    with pytest.raises(BenchError, match="cannot check out nosuch: fatal"):
        harness.checkout_base("nosuch", repository)


def test_the_base_measures_by_its_own_code(repository: Path) -> None:
    base = harness.checkout_base("HEAD~1", repository)
    runs = harness.BaseRuns("part", base, 5, ["--rows", "a,b"])
    runs.run_half()
    assert runs.finish("rounds") == {"a": 2.5, "b": 2.5}  # 3 before and 2 after
    broken = harness.checkout_base("HEAD", repository)
    with pytest.raises(BenchError, match="this part is broken"):
        harness.BaseRuns("part", broken, 5, []).run_half()


def test_the_table_shows_the_ratio_to_the_base(
    bench: Bench, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = harness.checkout_base("HEAD~1", repository)
    monkeypatch.setattr(harness, "checkout_base", lambda name: base)
    shown = io.StringIO()
    cases = [bench.case("a", 150), bench.case("b", 50)]
    arguments = ["--rows", "a", "--base", "HEAD~1", "--sample-s", "0.001"]
    harness.run("part", cases, arguments, stdout=shown, base_timer=bench.timer)
    heading, line = shown.getvalue().splitlines()[1:]
    assert heading.split()[-3:] == ["to", "the", "base"]
    assert line.split()[-1] == "1.50x"
    assert harness.format_ratio(1.0, None) == "new"
