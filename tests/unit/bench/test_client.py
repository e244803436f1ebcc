"""The benchmark of clients: how rows are chosen and judged, and a small run of our side."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from bench import client
from bench.client import Result, Row, format_table, groups, make_result, rows, select
from bench.client_load.job import Job, Watch, bodies
from bench.harness import BenchError


def sample(rate: float, processor_s: float = 0.5, **more: Any) -> dict[str, Any]:
    return {"count": 1000, "wall_s": 1000 / rate, "processor_s": processor_s, "missing": 0, **more}


def test_what_a_row_is_compared_with_comes_along() -> None:
    found = [row.name for row in select(rows(), "1 KB read_arrow two*")]
    assert found == [
        "1 KB wheel push",
        "1 KB push async per message",
        "1 KB read_arrow two columns",
    ]
    assert [row.name for row in select(rows(), "memory*")] == ["memory"]
    with pytest.raises(BenchError, match="no row matches nosuch; there are: 100 B wheel one"):
        select(rows(), "nosuch")


def test_rows_on_one_floor_are_measured_together() -> None:
    sizes = [len(group) for group in groups(rows())]
    assert sizes == [2, 4, 6, 2, 2, 4, 6, 2, 1]


def test_goals_are_judged_by_ratios_within_rounds_and_processor_time() -> None:
    row = Row("fast", "ours", "send", "", 1000, 100, "slow", (2, 3), 40)
    result = make_result(
        row, [sample(200), sample(500), sample(900)], [sample(100), sample(200), sample(300)]
    )
    assert result.rate == pytest.approx(500)
    assert result.ratio == pytest.approx(2.5)
    assert result.processor_s == pytest.approx(50)
    assert result.goals == [("2x", True), ("3x", False), ("40 s", False)]
    lost = make_result(row, [sample(300, 0.1) | {"missing": 2}], [sample(100)])
    assert lost.goals[-2:] == [("40 s", True), ("2 acknowledged and not there", False)]


def test_latency_must_be_short_and_no_worse_than_that_of_the_peer() -> None:
    row = Row("ours", "ours", "latency", "", 1000, 100, "theirs")
    ours, theirs = [0.5] * 98 + [7.0] * 2, [1.5] * 98 + [6.0] * 2
    result = make_result(
        row, [sample(1000, latencies_ms=ours)], [sample(1000, latencies_ms=theirs)]
    )
    assert (result.p50_ms, result.p99_ms) == (0.5, 7.0)
    assert result.goals == [("p50 1 ms", True), ("p99 6.0 ms", False)]


def test_memory_is_judged_by_the_slope_of_the_second_half() -> None:
    row = Row("memory", "ours", "memory", "", 1000, 100)
    sizes = [[0, 10.0], [100_000, 50.0], [200_000, 50.5], [300_000, 51.0]]
    result = make_result(row, [sample(1000, sizes=sizes)], ())
    assert result.size_mib == 51.0
    assert result.growth_mib == pytest.approx(5.0)
    assert result.goals == [("at most 8 MiB per million", True)]


def test_the_table_says_what_was_missed() -> None:
    result = Result("a", [10.0, 20.0, 30.0], 1.5, "b", 2.0, goals=[("2x", True), ("3x", False)])
    text = format_table([result]).splitlines()[1]
    assert text.split() == ["a", "20/s", "50%", "2.0x", "1.50", "s", "2x:", "met,", "3x:", "MISSED"]


def test_bodies_differ_and_have_their_size() -> None:
    found = bodies(1_000, 100)
    assert len(set(found)) == 1_000
    assert {len(body) for body in found} == {100}


def test_a_job_travels_as_text() -> None:
    job = Job("send", "one by one", "127.0.0.1:9876", "T", 5, 100)
    assert Job.from_json(job.to_json()) == job


def test_a_watch_counts_the_work_of_its_process() -> None:
    watch = Watch()
    watch.start()
    sum(range(200_000))
    watch.stop()
    report = watch.report(7, stored=9)
    assert (report["count"], report["stored"]) == (7, 9)
    assert report["wall_s"] > 0
    assert report["processor_s"] > 0


def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending, receiving and reading back, each in its process, without the peer."""
    monkeypatch.chdir(Path(client.__file__).parents[1])
    with client.open_bench() as bench:
        row = Row("few", "ours", "send", "gathered", 1_500, 100)
        sent = bench.sample(row)
        assert (sent["count"], sent["stored"], sent["missing"]) == (1_500, 1_700, 0)
    out, ledger = io.StringIO(), tmp_path / "results.json"
    arguments = ["--rows", "memory*", "--messages", "20000", "--json", str(ledger)]
    assert client.run(arguments, stdout=out)
    (entry,) = map(json.loads, ledger.read_text().splitlines())
    assert (entry["bench"], entry["case"]) == ("client", "memory")
    assert entry["size_mib"] > 1
    assert "at most 8 MiB per million: met" in out.getvalue()
