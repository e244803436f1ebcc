"""The matrix of the coverage benchmark, and what is computed from its results."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bench.compare_load.rows import Row
from bench.compare_load.summary import Result
from bench.coverage import COVERAGE, FOLDER, JAVA, OTHERS, WHERE, spreads

WHATS = (
    *("bare", "tag and key", "user properties", "traced", "ordered", "delayed", "half"),
    "compressed",
)
#: What ali-ons 3.12.0 demands of a program; each message is printed, and the fourth ends it.
ALI_ONS = """
class Message {
  constructor(...words) { this.words = words; }
  set keys(words) { this.words.push(words.join(' ')); }
}
class Producer {
  constructor(options) {
    if (!options.httpclient) throw new Error('options.httpclient is required');
  }
  on() {}
  async ready() {}
  async send(message) {
    console.log(JSON.stringify(message.words.map(String)));
    if (--left === 0) process.exit(0);
  }
}
let left = 4;
module.exports = { Message, Producer };
"""
CONSUMERS = ("no filter", "one tag", "three tags", "SQL", "orderly", "broadcast")


@pytest.mark.parametrize(
    ("dimension", "values"),
    [("who", (*JAVA, *OTHERS)), ("what", WHATS), ("where", tuple(WHERE)), ("how", CONSUMERS)],
)
def test_every_value_of_each_dimension_occurs_at_least_twice(
    dimension: str, values: tuple[str, ...]
) -> None:
    found = Counter(str(row.options[dimension]) for row in COVERAGE.rows)
    del found[""]  # no consumer
    assert set(found) == set(values)
    assert min(found.values()) >= 2


def test_cells_have_names_of_their_own_and_java_cells_a_goal() -> None:
    names = [row.name for row in COVERAGE.rows]
    assert len(set(names)) == len(names)
    assert not any("," in name for name in names)  # a comma divides patterns
    for row in COVERAGE.rows:
        assert (row.figures[0].goal is not None) == (row.options["who"] in JAVA)


def result(row: Row, cost: float) -> Result:
    return Result(row.name, row.name, "CPU", "us", (), (cost,), None, None, None, None)


def test_the_dearest_java_cell_is_compared_with_the_cheapest_of_the_same_work() -> None:
    rows = [row for row in COVERAGE.rows if row.options["work"] in ("tag and key", "half")]
    results = [result(row, 10.0) for row in rows]
    results[1] = result(rows[1], 12.0)
    others = [n for n, row in enumerate(rows) if row.options["who"] not in JAVA]
    results[others[0]] = result(rows[others[0]], 99.0)
    assert spreads(rows, results) == {"tag and key": pytest.approx(1.2), "half": 1.0}
    assert spreads(rows, results[:1]) == {}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
@pytest.mark.parametrize(
    ("what", "first"),
    [("tag and key", ["topic", "TagA", "x" * 100, "order-0"]), ("bare", ["topic", "x" * 100])],
)
def test_the_node_program_gives_its_client_what_it_demands(
    what: str, first: list[str], tmp_path: Path
) -> None:
    client = tmp_path / "node_modules" / "ali-ons"
    client.mkdir(parents=True)
    (client / "index.js").write_text(ALI_ONS)
    program = shutil.copy(FOLDER / "node" / "load.js", tmp_path)
    options = ["namesrv=127.0.0.1:1", "topic=topic", "group=group", "threads=2", f"what={what}"]
    done = subprocess.run(
        ["node", program, *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    record, *messages = map(json.loads, done.stdout.splitlines())
    assert (record["event"], record["count"], record["failed"]) == ("count", 0, 0)
    assert messages[0] == first
    assert len(messages) == 4
