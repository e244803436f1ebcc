"""The load on a broker: how figures are made, and a run that is small enough for every day."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

from bench import broker_load
from bench.broker_load import Figure, at_most, format_rows, percentile, shapes, slope
from bench.harness import BenchError
from bench.load.clients import ID_END, Consumer, Tally, count_records
from skylark.wire.bodies.heartbeat import GetConsumerListByGroupResponseBody
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([7.0], 0.99) == 7.0
    assert math.isnan(percentile([], 0.5))


def test_the_slope_is_that_of_a_straight_line() -> None:
    assert slope([(10.0, 5.0), (11.0, 7.0), (12.0, 9.0)]) == pytest.approx(2.0)
    assert slope([(10.0, 5.0), (11.0, 5.0)]) == pytest.approx(0.0)
    assert slope([(10.0, 5.0)]) == 0.0


def test_rows_say_whether_goals_are_met() -> None:
    text = format_rows([Figure("sent", 2000, "messages"), at_most("send p99", 50.1, "ms", 50)])
    sent, late = text.splitlines()
    assert sent.split() == ["sent", "2,000.00", "messages"]
    assert late.endswith("ms           goal at most 50: MISSED")
    assert at_most("send p99", 50.0, "ms", 50).goal_met


def test_every_consumer_has_a_queue_in_both_shapes() -> None:
    small, large = shapes(1_000)
    assert (small.group_count, small.group_size) == (100, 10)
    assert (large.group_count, large.group_size) == (1, 1_000)


def test_records_are_counted_by_their_sizes() -> None:
    record = (100).to_bytes(4, "big") + bytes(96)
    assert count_records(None) == 0
    assert count_records(record * 3) == 3
    with pytest.raises(ValueError, match="a record of 100 bytes at 100 of 150"):
        count_records(record + record[:50])


class Quiet(Consumer):
    """A consumer whose requests go nowhere."""

    def request(self, *request: object) -> None:
        del request


def test_what_goes_wrong_is_counted_once_per_kind() -> None:
    tally = Tally()
    consumer = Quiet(tally, "c1", "g", "T", 0)
    body = (100).to_bytes(4, "big") + bytes(96)
    for next_offset in ("1", "3"):  # the second skips a message
        answer = response_to(Command(code=11), 0, ext={"nextBeginOffset": next_offset})
        answer.body = body
        consumer._pulled(answer)
    consumer._pulled(response_to(Command(code=11), 2, "busy for 12 ms"))
    consumer._pulled(response_to(Command(code=11), 2, "busy for 345 ms"))
    assert (tally.delivered, tally.pulls) == (2, 4)
    assert tally.errors == {
        "a pull from # to # brought # messages": 1,
        "pull: code #, busy for # ms": 2,
    }


def test_members_are_counted_in_the_list_as_it_comes() -> None:
    consumer = Quiet(Tally(), "c1", "g", "T", 0)
    names = [f"c{number}{ID_END}" for number in range(12)]
    answer = response_to(Command(code=38), 0)
    answer.body = encode_body(GetConsumerListByGroupResponseBody(consumer_id_list=names))
    consumer._listed(answer)
    assert consumer.known_count == 12


@pytest.mark.parametrize("wrong", [["--seconds", "0"], ["--rate", "0"], ["--rows", "two groups"]])
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    with pytest.raises(BenchError):
        broker_load.run(wrong, stdout=io.StringIO())


def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where its data goes
    stdout, results = io.StringIO(), tmp_path / "results.json"
    options = ["--seconds", "1.5", "--connections", "20", "--rate", "100", "--json", str(results)]
    options += ["--set", "brokerFastFailureEnable=false"]  # a busy machine is no error here
    broker_load.run(options, stdout=stdout)
    entries = [json.loads(line) for line in results.read_text().splitlines()]
    values = {entry["case"]: entry["value"] for entry in entries}
    for shape in ("groups of 10", "one group"):
        assert values[f"{shape}: connections"] == 30
        assert values[f"{shape}: errors"] == 0, stdout.getvalue()
        assert values[f"{shape}: sent"] >= 100
        assert values[f"{shape}: sent and not stored"] == 0
        assert values[f"{shape}: stored and not delivered"] == 0
        assert values[f"{shape}: change notices"] >= 1
        assert 0 < values[f"{shape}: send p50"] <= values[f"{shape}: send max"]
    assert {entry["bench"] for entry in entries} == {"broker_load"}
    assert "goal at most 50" in stdout.getvalue()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json"]
