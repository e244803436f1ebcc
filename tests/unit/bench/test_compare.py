"""The comparison with Apache: lines of Java programs, order, ratios, goals, the table, resuming."""

from __future__ import annotations

import io
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pytest

from bench import compare
from bench.compare_load.lines import (
    Line,
    acknowledged_at_least,
    claim_fault,
    count_at,
    failed_count,
    parse_line,
    parse_lines,
    steady_rate,
)
from bench.compare_load.measures import COLD, MEASURES, crossing, per_million
from bench.compare_load.rows import (
    Figure,
    Goal,
    Row,
    at_most,
    growth_rows,
    rated,
    rows,
    select,
    sessions,
)
from bench.compare_load.session import Timing
from bench.compare_load.summary import (
    Sample,
    Side,
    format_noise,
    format_table,
    judged,
    order,
    summarize,
)
from bench.compare_load.systems import for_work, parse_memory, parse_processor_ticks
from bench.harness import BenchError, Ledger

# ---- what Java programs print --------------------------------------------------------------------

AT = "Current Time: 2026-03-01 10:00:10,123"
AT_S = datetime(2026, 3, 1, 10, 0, 10, 123_000).timestamp()  # noqa: DTZ001 - of the zone we are in


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            f"{AT} | Send TPS: 2950 | Max RT(ms): 41 | Average RT(ms):   0.338 "
            "| Send Failed: 2 | Response Failed: 1",
            Line(2950.0, 3, AT_S),
        ),
        (
            f"{AT} | Send TPS: 3000 | Send MPS: 96000 | Max RT(ms): 41 | Average RT(ms):   0.338 "
            "| Average Message RT(ms):   0.010 | Send Failed: 0 | Send Message Failed: 0",
            Line(96000.0, 0, AT_S),
        ),
        (
            f"{AT} | Consume TPS: 17000 | AVG(B2C) RT(ms):     NaN | AVG(S2C) RT(ms):   1.000 "
            "| MAX(B2C) RT(ms): 7 | MAX(S2C) RT(ms): 6 | Consume Fail: 0",
            Line(17000.0, 0, AT_S),
        ),
        (
            f"{AT} | Send TPS:   950 | Max RT(ms):    41 | AVG RT(ms): 0.3 | Send Failed: 0 "
            "| Check: 5 | UnexpectedCheck: 0 | DuplicatedCheck: 0",
            Line(950.0, 0, AT_S),
        ),
        ("Consumer Started.", None),
        (f"{AT} | Max RT(ms): 41", None),
        (f"{AT} | Send TPS: many | Send Failed: 0", None),
        ("[Complete] Send Total: 10 | Send TPS: 5 | Send Failed: 0", None),
    ],
)
def test_lines_of_the_four_programs(text: str, line: Line | None) -> None:
    assert parse_line(text) == line


def test_other_output_is_passed_over() -> None:
    texts = ["topic: T, threadCount: 1", f"{AT} | Send TPS: 7 | Send Failed: 0", ""]
    assert parse_lines(texts) == [Line(7.0, 0, AT_S)]


def test_lines_with_a_second_of_the_warm_up_do_not_count() -> None:
    lines = [Line(float(rate), 0, 110.0 + rate) for rate in range(20)]
    assert steady_rate(lines, 110.0) == 14.0  # printed from 119 on: lines 9 to 19
    assert steady_rate(lines, 100.0) == 9.5
    assert steady_rate(lines[:9], 110.0) is None


def test_acknowledged_are_counted_in_windows_that_share_no_second() -> None:
    lines = [Line(1000.0, 0)] * 19
    assert acknowledged_at_least(lines) == 3 * 8820  # lines 0, 9 and 18
    assert acknowledged_at_least([Line(1000.0, 20)]) == 8820  # without those that failed
    assert acknowledged_at_least([Line(0.0, 20)]) == 0
    assert acknowledged_at_least([]) == 0
    assert failed_count([Line(1.0, 4), Line(1.0, 7)]) == 7
    assert failed_count([]) == 0


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_have_names_of_their_own_and_someone_who_measures_them() -> None:
    found = [*rows(), *growth_rows()]
    names = [row.name for row in found]
    assert len(set(names)) == len(names)
    assert not any("," in name for name in names)  # a comma divides patterns
    assert {row.kind for row in found} == set(MEASURES)
    assert compare.SYNC_SESSION in sessions(found)
    assert [row.name for row in rows()[:2]] == list(COLD)
    titles = [row.title(figure) for row in found for figure in row.figures]
    assert len(set(titles)) == len(titles)


def test_rows_are_chosen_by_patterns() -> None:
    assert [row.name for row in select(rows(), "1 thread*, catch-up")] == [
        "1 thread 100 B",
        "1 thread 1 KB",
        "catch-up",
    ]
    assert select(rows(), "") == rows()
    with pytest.raises(BenchError, match="no row matches nosuch; there are: start-up, memory"):
        select(rows(), "batch*,nosuch")


def test_the_goals_of_rows() -> None:
    goals = {
        row.title(figure): figure.goal.text
        for row in rows()
        for figure in row.figures
        if figure.goal
    }
    assert goals == {
        "start-up": "at most 0.1x",
        "memory idle": "at most 0.167x",
        "1 thread 100 B": "at least 1.5x",
        "1 thread 1 KB": "at least 1.5x",
        "16 threads 100 B": "at least 1.2x",
        "16 threads 100 B by Java 4.9.8": "at least 1.2x",
        "16 threads 100 B by Java 5.1.4": "at least 1.2x",
        "64 threads 1 KB": "at least 1.3x",
        "batch 32 x 100 B": "at least 1x",
        "catch-up": "at least 1x",
        "produce and consume": "at least 1.2x",
        "transactions": "at least 1.2x",
        "latency at 1000 msg/s: p99": "at most 1x",
        "memory after load": "at most 0.1x",
        "SYNC_FLUSH 64 threads 1 KB": "at least 1x",
        "idle with 1000 topics": "at most 1%",
    }


# ---- samples and ratios --------------------------------------------------------------------------


def test_rounds_alternate() -> None:
    assert order(4) == [
        ("apache", "skylark"),
        ("skylark", "apache"),
        ("apache", "skylark"),
        ("skylark", "apache"),
    ]


def test_an_acknowledged_message_that_is_missing_voids_a_sample() -> None:
    sample = Sample("r", "skylark", 0, {"rate": 1.0}, acknowledged=10, stored=9)
    assert judged(sample).void == "1 of 10 acknowledged messages are missing"
    assert judged(Sample("r", "skylark", 0, {}, acknowledged=10, stored=11)).void is None
    assert judged(Sample("r", "skylark", 0, {})).void is None
    assert judged(Sample("r", "skylark", 0, {}, 10, 9, "worse")).void == "worse"


def test_lines_may_not_claim_more_than_a_topic_grew_by_in_the_same_seconds() -> None:
    looks = [(100.0, 0), (110.0, 10_000), (130.0, 20_000)]
    assert [count_at(looks, at) for at in (99.0, 105.0, 120.0, 131.0)] == [None, 5e3, 15e3, None]
    assert claim_fault([Line(1_000.0, 0, 110.0)], looks) is None  # 9,000 in 9 s
    assert claim_fault([Line(500.0, 0, 129.0)], looks) is None
    assert claim_fault([Line(600.0, 0, 129.0)], looks) == (
        "5,400 acknowledged in some seconds, but only 4,500 stored in them"
    )
    assert claim_fault([Line(500.0, 900, 129.0)], looks) is None  # those that failed are no part
    for lines in ([Line(600.0, 0, 131.0)], []):  # nobody looked, and a program that said nothing
        assert claim_fault(lines, looks) == (
            "no line of the program can be checked: measure for more than 9 s"
        )


def test_spread_and_noise() -> None:
    side = Side((80.0, 100.0, 100.0, 120.0))
    assert side.median == 100.0
    assert side.spread == pytest.approx(0.1)
    assert side.self_ratio == pytest.approx(2 / 3)
    assert (Side((5.0,)).spread, Side((5.0,)).self_ratio) == (0.0, None)


ROW = Row("r", "load", "producer", rated(1.2))


def samples(apache: list[float], skylark: list[float], void: str | None = None) -> list[Sample]:
    return [
        *(Sample("r", "apache", n, {"rate": v, "CPU": 40.0}) for n, v in enumerate(apache)),
        *(Sample("r", "skylark", n, {"rate": v, "CPU": 20.0}) for n, v in enumerate(skylark)),
        *([Sample("r", "skylark", 9, {"rate": 9.0}, void=void)] if void else []),
        Sample("other", "apache", 0, {"rate": 1e9}),
    ]


def test_a_ratio_is_the_median_of_those_within_rounds() -> None:
    rate, processor = summarize(ROW, samples([100, 200, 400], [150, 260, 800]))
    assert (rate.title, rate.ratio, rate.goal_met) == ("r", 1.5, True)
    assert (rate.apache, rate.skylark) == ((100, 200, 400), (150, 260, 800))
    assert (processor.title, processor.ratio, processor.goal) == ("r: CPU", 0.5, None)
    # A round that one of them has not had yet does not count.
    assert summarize(ROW, samples([100, 200], [110]))[0].ratio == 1.1
    assert summarize(ROW, samples([100], [110]))[0].goal_met is False
    alone = summarize(ROW, samples([], [110]))[0]
    assert (alone.ratio, alone.goal_met) == (None, None)


def test_a_void_sample_voids_the_row() -> None:
    rate, _ = summarize(ROW, samples([100], [200], "5 of 9 acknowledged messages are missing"))
    assert (rate.ratio, rate.goal_met) == (None, False)
    text = format_table([rate]).splitlines()
    assert "VOID" in text[1]
    assert text[2] == "VOID r: skylark, round 10: 5 of 9 acknowledged messages are missing"


@pytest.mark.parametrize(
    ("skylark", "met", "verdict"),
    [
        ([130, 140, 125], True, "at least 1.2x: met"),
        ([130, 140, 115], None, "at least 1.2x: within the noise"),
        ([130], None, "at least 1.2x: within the noise"),  # one round knows no noise
        ([110, 140, 115], False, "at least 1.2x: MISSED"),
    ],
)
def test_a_goal_is_met_only_outside_the_noise(
    skylark: list[float], met: bool | None, verdict: str
) -> None:
    rate, _ = summarize(ROW, samples([100] * len(skylark), skylark))
    assert rate.goal_met is met
    assert format_table([rate]).splitlines()[1].endswith(verdict)


def test_goals_may_be_absolute() -> None:
    goal = Goal(1.0, at_least=False, of_ratio=False, unit="%")
    row = Row("r", "idle", "idle", (Figure("rate", "% of a core", goal),))
    assert summarize(row, samples([100] * 2, [0.5, 0.6]))[0].goal_met
    assert summarize(row, samples([100], [1.5]))[0].goal_met is False
    assert at_most(0.1).is_met(0.09, 5.0)
    assert at_most(0.1).is_met(None, 5.0) is None


def test_the_table() -> None:
    head, rate, processor = format_table(
        summarize(ROW, samples([1000, 2000], [1100, 2200]))
    ).splitlines()
    assert " ".join(head.split()) == "row unit Apache spread Skylark spread ratio noise goal"
    assert " ".join(rate.split()) == (
        "r msg/s 1,500 33% 1,650 33% 1.10x 0.50 at least 1.2x: MISSED"
    )
    assert " ".join(processor.split()) == "r: CPU s/million 40 0% 20 0% 0.50x 1.00"


def test_the_noise_of_a_run_is_that_of_rates() -> None:
    results = summarize(ROW, samples([100, 200], [1, 1]))
    assert format_noise(results) == "Apache against itself: 0.50 (median of rows), 0.50 (worst row)"
    assert "not known" in format_noise(summarize(ROW, samples([100], [1])))


# ---- measuring -----------------------------------------------------------------------------------


def test_when_a_number_was_passed_lies_between_two_looks() -> None:
    seen = [(1.0, 0), (2.0, 100), (3.0, 100), (4.0, 300)]
    assert crossing(seen, 50) == 1.5
    assert crossing(seen, 200) == 3.5
    assert crossing(seen, 1_000) == 4.0
    assert per_million(2.0, 500_000) == 4.0
    assert per_million(2.0, 0) == 0.0


def test_costs_are_read_from_proc() -> None:
    status = "Name:\tjava\nRssAnon:\t  2048 kB\nRssFile:\t1024 kB\nRssShmem:\t 512 kB\nThreads:\t9"
    memory = parse_memory(status)
    assert (memory.own, memory.mapped) == (2.0, 1.5)
    assert parse_processor_ticks("1 (a) b) S 1 2 3 4 5 6 7 8 9 10 70 30 0 0 20") == 100


def test_apache_gets_the_heap_and_collector_of_a_server() -> None:
    command = ["java", "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-cp", "x", "Main"]
    assert for_work(command, 2048) == [
        *("java", "-Xms2048m", "-Xmx2048m", "-XX:+UseG1GC", "-cp", "x", "Main")
    ]


# ---- the command ---------------------------------------------------------------------------------


def test_a_second_run_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    timing, facts = Timing(3.0), {"cpu": "x"}
    ledger = Ledger(tmp_path / "samples.json")
    stamp = {"bench": "compare", "machine": facts, "timing": asdict(timing)}
    done = asdict(Sample("a", "apache", 0, {"rate": 5.0}, 3, 3))
    ledger.append(stamp | {"commit": "c"} | done)
    ledger.append(stamp | {"commit": "d"} | done | {"round": 1})
    ran = compare.Run(timing, facts, "c", ledger)
    assert ran.samples == [Sample("a", "apache", 0, {"rate": 5.0}, 3, 3)]
    both = [Row("a", "load", "producer", rated()), Row("b", "load", "producer", rated())]
    assert ran.missing(both, "apache", 0) == both[1:]
    assert ran.missing(both, "skylark", 0) == ran.missing(both, "apache", 1) == both
    assert compare.Run(Timing(4.0), facts, "c", ledger).samples == []
    assert compare.Run(timing, facts, None, ledger).samples == []


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--seconds", "0"], ["--messages", "0"]])
def test_wrong_arguments_are_refused_before_anything_starts(wrong: list[str]) -> None:
    with pytest.raises(BenchError, match="must be positive"):
        compare.run(wrong, stdout=io.StringIO())


def test_growth_has_rows_of_its_own() -> None:
    with pytest.raises(BenchError, match="no row matches catch-up; there are: queues 1, queues"):
        compare.run(["--growth", "--rows", "catch-up"], stdout=io.StringIO())


def test_missed_goals_are_named() -> None:
    results = summarize(ROW, samples([100], [110]))
    assert compare.missed(results) == ["r"]
    assert compare.missed(summarize(ROW, samples([100], [130]))) == []
