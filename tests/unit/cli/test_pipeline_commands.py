"""``skylark pipeline`` where no Spark is needed: status, resets, mistakes told before it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skylark import ClientOptions, Message
from skylark.cli.main import cli
from skylark.spark import java
from skylark.spark.source.stream_offset import StreamOffset
from skylark.sync import Admin, Producer
from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv
from tests.interop.process import draw_port
from tests.support.up import cluster
from tests.unit.spark.pipelines.test_checkpoint_folders import plan

TIMEOUT_S = 60

# Runs `skylark` and says whether Spark was imported.
PROGRAM = """
import sys
from skylark.cli.main import cli
try:
    cli(sys.argv[1:])
finally:
    print("pyspark" in sys.modules, file=sys.stderr)
"""


class Site:
    """A cluster with a topic ``Orders`` of two queues, the first with ten messages."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.options = ClientOptions(namesrv=namesrv)
        self.times: list[int] = []

    def fill(self) -> None:
        with Producer("test", self.options, batching=False) as producer:
            for number in range(10):
                producer.send(Message("Orders", b"%d" % number), queue=queue(0))


def queue(number: int) -> MessageQueue:
    return MessageQueue(topic="Orders", broker_name="broker-a", queue_id=number)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with cluster(tmp_path_factory.mktemp("up"), "--topic", "Orders:2") as namesrv:
        found = Site(namesrv)
        found.fill()
        yield found


def write(folder: Path, namesrv: str, *names: str, **changes: Any) -> Path:
    """A file with pipelines of these names; ``changes`` are those of each of them."""
    pipelines = [
        {
            "name": name,
            "source": {"options": {"topic": "Orders", "fetchOffset.numRetries": "0"}},
            "sink": {"format": "noop"},
            **changes,
        }
        for name in names or ("p",)
    ]
    document = {
        "name": "test",
        "cluster": {"nameServer": namesrv},
        "checkpoints": str(folder / "ck"),
        "pipelines": pipelines,
    }
    file = folder / "orders.yaml"
    file.write_text(json.dumps(document, indent=1))
    return file


def skylark(*arguments: object, given: str | None = None) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)), input=given, prog_name="skylark")


def refused(code: int, *arguments: object) -> str:
    """The one line that is said."""
    result = skylark("pipeline", *arguments)
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("Error: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("Error: ").strip()


# ---- status --------------------------------------------------------------------------------------


def test_status_without_spark(site: Site, tmp_path: Path) -> None:
    file = write(tmp_path, site.namesrv, "p", "new")
    plan(tmp_path / "ck" / "p" / "0", 3, StreamOffset({queue(0): 4, queue(1): 0}))
    plan(tmp_path / "ck" / "p" / "0", 4, StreamOffset({queue(0): 9, queue(1): 0}), done=False)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--output", "json", "pipeline", "status", str(file)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "False\n")
    old, new = json.loads(done.stdout)
    assert (old["pipeline"], old["batch"], old["unfinished"], old["lag"]) == ("p", 3, 4, 6)
    assert old["checkpoint"] == str(tmp_path / "ck" / "p" / "0")
    assert datetime.fromisoformat(old["changed"]).tzinfo is not None
    first = {
        "topic": "Orders", "broker": "broker-a", "queue": 0, "committed": 4, "end": 10, "lag": 6
    }  # fmt: skip
    assert old["queues"] == [first, {**first, "queue": 1, "committed": 0, "end": 0, "lag": 0}]
    assert (new["pipeline"], new["checkpoint"], new["lag"]) == ("new", None, None)
    assert [each["end"] for each in new["queues"]] == [10, 0]


def test_status_as_tables_and_of_some(site: Site, tmp_path: Path) -> None:
    file = write(tmp_path, site.namesrv, "p", "q")
    plan(tmp_path / "ck" / "q" / "0", 0, StreamOffset({queue(0): 10, queue(1): 0}))
    result = skylark("pipeline", "status", file, "q")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == [
        *("PIPELINE", "STATE", "BATCH", "UNFINISHED", "LAG", "RESTARTS", "CHANGED", "CHECKPOINT"),
    ]
    assert lines[1].split()[:6] == ["q", "-", "0", "-", "0", "0"]
    assert lines[4].split() == ["q", "Orders", "broker-a", "0", "10", "10", "0"]


def test_status_tells_what_it_knows_when_nobody_answers(tmp_path: Path) -> None:
    file = write(tmp_path, f"127.0.0.1:{draw_port()}")
    plan(tmp_path / "ck" / "p" / "0", 3, StreamOffset({queue(0): 4}))
    result = skylark("--output", "json", "pipeline", "status", file)
    assert result.exit_code == 3
    (row,) = json.loads(result.stdout)
    assert (row["batch"], row["lag"], row["queues"][0]["committed"]) == (3, None, 4)
    assert row["problem"]
    assert result.stderr.startswith("Error: ")


# ---- reset ---------------------------------------------------------------------------------------


def test_a_reset_is_shown_asked_and_done(site: Site, tmp_path: Path) -> None:
    file = write(tmp_path, site.namesrv)
    old = tmp_path / "ck" / "p" / "0"
    plan(old, 3, StreamOffset({queue(0): 4, queue(1): 0}))
    plan(old, 4, StreamOffset({queue(0): 9, queue(1): 0}), done=False)
    asked = skylark("pipeline", "reset", file, "--to", "latest", given="n\n")
    assert asked.exit_code == 1
    assert asked.stdout.splitlines()[1].split() == ["p", "Orders", "broker-a", "0", "4", "10", "10"]
    assert "batch 4 was started and not finished: it is dropped" in asked.stderr
    dry = skylark("pipeline", "reset", file, "--to", "latest", "--dry-run")
    assert (dry.exit_code, "dry run: nothing was written" in dry.stderr) == (0, True)
    assert [each.name for each in old.parent.iterdir()] == ["0"]
    done = skylark("pipeline", "reset", file, "--to", "latest", given="y\n")
    assert done.exit_code == 0
    assert f"pipeline p continues with {old.parent / '1'}" in done.stderr
    (row,) = json.loads(skylark("--output", "json", "pipeline", "status", file).stdout)
    assert (row["batch"], row["unfinished"], row["lag"]) == (4, None, 0)


@pytest.mark.parametrize(
    ("position", "start"),
    [
        ("earliest", 0),
        ("latest", 10),
        ("-1d", 0),
        ("2020-01-01T00:00:00Z", 0),
        ("4102444800000", 10),  # the year 2100
        ('{"Orders": {"broker-a": {"0": 7}}}', 7),
    ],
)
def test_positions_of_a_reset(site: Site, tmp_path: Path, position: str, start: int) -> None:
    """Also of a pipeline that has never run."""
    file = write(tmp_path, site.namesrv)
    options = ("--output", "json", "pipeline", "reset", file, f"--to={position}", "--yes")
    result = skylark(*options)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [(row["old"], row["new"]) for row in rows] == [(None, start), (None, 0)]
    assert {row["checkpoint"] for row in rows} == {str(tmp_path / "ck" / "p" / "0")}


def test_resets_that_are_refused(site: Site, tmp_path: Path) -> None:
    file = write(tmp_path, site.namesrv, "p", "q")
    said = refused(2, "reset", file, "p", "--to", "yesterday")
    assert said.startswith("--to 'yesterday' is not a position: it must be earliest, latest, group")
    offsets = '{"Orders": {"broker-a": {"0": 11}}}'
    said = refused(2, "reset", file, "p", "--to", offsets)
    assert "ends at offset 10, and 11 is its start" in said
    result = skylark("pipeline", "reset", file, "--to", "latest")
    assert (result.exit_code, "has several pipelines: give the names" in result.stderr) == (2, True)
    assert not (tmp_path / "ck").exists()


def test_a_file_sink_goes_on_with_its_log(site: Site, tmp_path: Path) -> None:
    sink = {"format": "parquet", "path": "rows"}
    file = write(tmp_path, site.namesrv, sink=sink)
    log = tmp_path / "rows" / "_spark_metadata"
    log.mkdir(parents=True)
    for name in ("8", "9.compact", "10", ".10.crc"):
        (log / name).write_text("v1\n")
    said = refused(2, "check", file)
    assert "continues with batch 0, and the last in" in said
    assert "is batch 10: they do not belong together" in said
    checkpoint = tmp_path / "ck" / "p"
    plan(checkpoint / "0", 12, StreamOffset({queue(0): 4}), done=False)
    assert "continues with batch 12" in refused(2, "check", file)
    assert skylark("pipeline", "reset", file, "--to", "earliest", "--yes").exit_code == 0
    assert sorted(each.name for each in (checkpoint / "1" / "offsets").iterdir()) == ["10", "9"]
    plan(checkpoint / "2", 12, StreamOffset({queue(0): 4}))
    (checkpoint / "2" / "state").mkdir()
    said = refused(2, "reset", file, "--to", "earliest")
    assert "a query with state starts with batch 0" in said


# ---- mistakes ------------------------------------------------------------------------------------


def test_mistakes_in_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "h:1")
    file.write_text(file.read_text().replace('"sink"', '"sinc"'))
    for command in ("check", "plan", "run", "status"):
        said = refused(2, command, file)
        assert (
            said == "orders.yaml: line 16, column 4: a pipeline has no key sinc: did you mean sink?"
        )
    assert "cannot be read: no such file" in refused(2, "run", tmp_path / "nosuch.yaml")


def _without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wants to start Spark is told that there is no Java."""
    monkeypatch.setattr(java, "find_java_home", lambda environ: None)
    monkeypatch.setattr(java, "bundled_java_home", lambda: None)


@pytest.mark.parametrize("command", ["check", "plan", "run"])
def test_what_is_wrong_outside_is_told_before_spark_starts(
    site: Site, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_java(monkeypatch)
    down = write(tmp_path, f"127.0.0.1:{draw_port()}")
    assert refused(3, command, down).startswith("pipeline p: ")
    file = write(tmp_path, site.namesrv)
    assert "has no pipeline x" in refused(2, command, file, "x")
    plan(tmp_path / "ck" / "p" / "0", 0, StreamOffset({queue(0): 4}))
    other = {"options": {"topic": "Nowhere"}}
    said = refused(2, command, write(tmp_path, site.namesrv, source=other))
    assert "is of topic Orders, and the file says Nowhere: give the pipeline another name" in said
    said = refused(4, command, write(tmp_path, site.namesrv, "q", source=other))
    assert said.startswith("pipeline q: topic Nowhere does not exist: create it with")
    sink = {"format": "rocketmq", "options": {"topic": "Nirvana"}}
    said = refused(4, command, write(tmp_path, site.namesrv, "q", sink=sink))
    assert said.startswith("pipeline q: topic Nirvana")
    said = refused(2, command, write(tmp_path, site.namesrv))
    assert said.startswith("Spark needs Java 17 or newer and none was found: set JAVA_HOME")
    (tmp_path / "ck" / "r").write_text("")
    said = refused(2, command, write(tmp_path, site.namesrv, "r"))
    assert "pipeline r cannot write its checkpoint to" in said


def test_a_topic_whose_broker_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server forgets the topics of a broker whose connection ends."""
    _without_java(monkeypatch)
    with SkylarkNamesrv(folder=tmp_path / "n") as namesrv:  # noqa: SIM117 - the broker needs it
        with SkylarkBroker(namesrv.address, folder=tmp_path / "b") as broker:
            with Admin(ClientOptions(namesrv=namesrv.address)) as admin:
                admin.topics.create("Orders", queue_count=2)
            broker.kill()
            file = write(tmp_path, namesrv.address)
            said = refused(4, "check", file)
            assert said.startswith("pipeline p: topic Orders")
            assert said.endswith("or check that its brokers run")
            plan(tmp_path / "ck" / "p" / "0", 3, StreamOffset({queue(0): 4}))
            said = refused(3, "status", file)
            assert said.startswith("broker broker-a does not answer")
            said = refused(2, "run", file)  # a stream holds the queues of a broker that is away
            assert said.startswith("Spark needs Java")
