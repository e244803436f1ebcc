"""``skylark pipeline`` on a real session and a real broker: the example, resets, mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from skylark import ClientOptions, Message
from skylark.admin.errors import NotFoundError
from skylark.cli import pipeline_commands as pipeline_command
from skylark.cli.main import cli
from skylark.client.blocking import blocking_functions
from skylark.spark.jobs.job_runner import JobProgress
from skylark.spark.pipelines.last_run import read_last_run
from skylark.spark.sink.sink_client import close_clients
from skylark.sync import Admin, MetricsEndpoint, Producer, read_arrow, serve_metrics
from tests.interop.ours import SkylarkBroker
from tests.interop.process import poll_until
from tests.support.up import cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline" / "orders.yaml"


class Site:
    """A cluster in a process, a session, and files."""

    def __init__(self, namesrv: str, spark: SparkSession) -> None:
        self.namesrv = namesrv
        self.options = ClientOptions(namesrv=namesrv)
        self.spark = spark

    def topic(self, name: str, queue_count: int = 2) -> str:
        with Admin(self.options) as admin:
            admin.topics.create(name, queue_count=queue_count)
        return name

    def send(self, topic: str, bodies: list[bytes], tag: str | None = None) -> None:
        with Producer("test", self.options) as producer:
            for future in [producer.submit(Message(topic, body, tag)) for body in bodies]:
                future.result(30)

    def bodies(self, topic: str) -> Counter[bytes]:
        parts = read_arrow(topic, self.options, columns=["body"])
        return Counter(row["body"] for part in parts for row in part.to_pylist())

    def file(self, folder: Path, *pipelines: dict[str, Any]) -> Path:
        """A file with these pipelines; JSON is YAML."""
        file = folder / "pipelines.yaml"
        document = {
            "name": "test",
            "cluster": {"nameServer": self.namesrv},
            "checkpoints": str(folder / "checkpoints"),
            "spark": {"master": "local[2]"},
            "pipelines": pipelines,
        }
        file.write_text(json.dumps(document))
        return file


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with cluster(tmp_path_factory.mktemp("up")) as namesrv:
        yield Site(namesrv, spark)


def skylark(*arguments: object, given: str = "") -> Result:
    """Run the command here, where the session is."""
    return CliRunner().invoke(cli, list(map(str, arguments)), input=given, prog_name="skylark")


def done(*arguments: object) -> Any:
    """The JSON that a command prints."""
    result = skylark("--output", "json", "pipeline", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def pipeline(topic: str, sink: dict[str, Any], **more: Any) -> dict[str, Any]:
    options = {"topic": topic, "startingOffsets": "earliest", "idlePollMs": "20"}
    return {"name": "p", "source": {"options": options}, "sink": sink, **more}


# ---- the example ---------------------------------------------------------------------------------


def test_the_example_runs(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for topic in ("orders", "alerts"):
        site.topic(topic)
    orders = [b'{"uid": "u%d", "amount": %d}' % (n % 3, n * 100) for n in range(20)]
    site.send("orders", orders[:10], "PAID")
    site.send("orders", orders[10:], "NEW")
    monkeypatch.setenv("SKYLARK_NAMESRV", site.namesrv)
    monkeypatch.setenv("ORDERS_FOLDER", tmp_path.as_uri())
    monkeypatch.setenv("ORDERS_MASTER", "local[2]")

    checked = done("check", EXAMPLE)
    assert [row["pipeline"] for row in checked] == ["paid-to-lake", "alerts"]
    assert checked[0]["columns"][-2:] == ["dt", "uid"]
    assert (checked[1]["transforms"], checked[1]["queues"]) == ("alerting:transform", 2)
    assert checked[1]["writes"] == "rocketmq alerts (exactly-once)"
    reached = done("check", EXAMPLE, "--executors")
    assert [(row["tasks"], row["problem"]) for row in reached] == [(2, None)]
    (planned,) = done("plan", EXAMPLE, "paid-to-lake")
    assert planned["next_batch"] == "0"
    assert [(row["start"], row["queue"]) for row in planned["offsets"]] == [(0, 0), (0, 1)]
    assert "to_date(storeTimestamp" in planned["query"]
    assert not (tmp_path / "checkpoints").exists()

    first = done("run", EXAMPLE, "--available-now")
    assert [(row["pipeline"], row["state"], row["lag"]) for row in first] == [
        ("paid-to-lake", "done", 0),
        ("alerts", "done", 0),
    ]
    assert [row["rows"] for row in first] == [10, 20]
    paid = site.spark.read.parquet(str(tmp_path / "paid"))
    assert Counter(row.uid for row in paid.collect()) == {"u0": 4, "u1": 3, "u2": 3}
    alerts = Counter(b"u%d ordered for %d" % (n % 3, n * 100) for n in range(11, 20))
    assert site.bodies("alerts") == alerts

    second = done("run", EXAMPLE, "--available-now")
    assert [row["rows"] for row in second] == [0, 0]
    assert (paid.count(), site.bodies("alerts")) == (10, alerts)
    assert planned["query"]
    statuses = done("status", EXAMPLE)
    assert [(row["batch"], row["unfinished"], row["lag"]) for row in statuses] == [(0, None, 0)] * 2
    assert sum(queue["committed"] for queue in statuses[0]["queues"]) == 20


# ---- resets --------------------------------------------------------------------------------------


def test_a_reset_reads_again_into_the_same_files(site: Site, tmp_path: Path) -> None:
    """The log of batches in the folder of a file sink must not swallow them."""
    topic = site.topic("ResetFiles", 1)
    sink = {"format": "parquet", "path": "rows"}
    file = site.file(
        tmp_path, pipeline(topic, sink, sql="SELECT body, queueOffset AS o FROM input")
    )
    site.send(topic, [b"%d" % n for n in range(10)])
    assert done("run", file, "--available-now")[0]["rows"] == 10
    folder = tmp_path / "checkpoints" / "p"
    assert {each.name for each in folder.iterdir()} == {"0", "run.json"}

    shown = skylark("pipeline", "reset", file, "--to", "earliest", given="n\n")
    assert shown.exit_code == 1
    assert shown.stdout.split()[-7:] == ["p", topic, "broker-a", "0", "10", "0", "10"]
    assert skylark("pipeline", "reset", file, "--to", "latest", "--dry-run").exit_code == 0
    assert {each.name for each in folder.iterdir()} == {"0", "run.json"}

    offsets = json.dumps({topic: {"broker-a": {"0": 6}}})
    (moved,) = done("reset", file, "--to", offsets, "--yes")
    assert (moved["old"], moved["new"], moved["checkpoint"]) == (10, 6, str(folder / "1"))
    assert done("status", file)[0]["lag"] == 4
    (planned,) = done("plan", file)
    assert (planned["offsets"][0]["start"], planned["next_batch"]) == (6, "1")
    assert done("run", file, "--available-now")[0]["rows"] == 4
    rows = site.spark.read.parquet(str(tmp_path / "rows")).collect()
    assert Counter(row.o for row in rows) == {n: 2 if n >= 6 else 1 for n in range(10)}
    assert done("run", file, "--available-now")[0]["rows"] == 0


def test_a_reset_of_a_query_with_state(site: Site, tmp_path: Path) -> None:
    topic, counts = site.topic("ResetState", 1), site.topic("Counts", 1)
    sink = {"format": "rocketmq", "options": {"topic": counts}}
    shouting(tmp_path)
    file = site.file(tmp_path, pipeline(topic, sink, python="shouting_package:once"))
    site.send(topic, [b"a", b"b", b"a"], "T")
    assert done("run", file, "--available-now")[0]["rows"] == 3
    site.send(topic, [b"a", b"c"], "T")
    assert done("run", file, "--available-now")[0]["rows"] == 2
    assert site.bodies(counts) == {b"a": 1, b"b": 1, b"c": 1}
    result = skylark("pipeline", "reset", file, "--to", "earliest", "--yes")
    assert "the query has state, windows or counts: it starts empty" in result.stderr
    assert done("run", file, "--available-now")[0]["rows"] == 5
    assert site.bodies(counts) == {b"a": 2, b"b": 2, b"c": 2}


def test_a_reset_of_an_exactly_once_pipeline(site: Site, tmp_path: Path) -> None:
    """The new query id is unknown to the sink, which wants batch 0 of it first."""
    topic, copies = site.topic("ResetOnce", 1), site.topic("Copies", 1)
    options = {"topic": copies, "delivery": "exactly-once"}
    sink = {"format": "rocketmq", "options": options}
    file = site.file(tmp_path, pipeline(topic, sink, sql="SELECT body FROM input"))
    for body in (b"a", b"b"):
        site.send(topic, [body])
        assert done("run", file, "--available-now")[0]["rows"] == 1
    done("reset", file, "--to", "earliest", "--yes")
    for rows in (2, 0):
        assert done("run", file, "--available-now")[0]["rows"] == rows
    assert site.bodies(copies) == {b"a": 2, b"b": 2}


def test_a_pipeline_starts_while_the_broker_of_its_sink_is_away(site: Site, tmp_path: Path) -> None:
    """Name servers have forgotten the topic; the pipeline wrote to it before, and waits."""
    topic = site.topic("Here", 1)
    folder = tmp_path / "checkpoints" / "p"
    other = SkylarkBroker(site.namesrv, {"brokerName": "broker-b"}, folder=tmp_path / "other")

    def start_later() -> None:
        def is_running() -> bool:
            last = read_last_run(folder)
            return last is not None and last.state == "running"

        poll_until(is_running, timeout_s=120, what="the start of the query")
        other.start()

    with other, Admin(site.options) as admin:

        def has_two() -> bool:
            return len(admin.stats.clusters().brokers) == 2

        poll_until(has_two, timeout_s=60, what="the second broker")
        admin.topics.create("Elsewhere", queue_count=1, broker="broker-b")
        sink = {"format": "rocketmq", "options": {"topic": "Elsewhere"}}
        file = site.file(tmp_path, pipeline(topic, sink, sql="SELECT body FROM input"))
        site.send(topic, [b"a"])
        assert done("run", file, "--available-now")[0]["rows"] == 1
        site.send(topic, [b"b"])
        other.kill()
        poll_until(lambda: not is_there(admin, "Elsewhere"), timeout_s=60, what="its route to go")
        close_clients()
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(start_later)
            (found,) = done("run", file, "--available-now")
            starting.result()
        assert (found["state"], found["rows"]) == ("done", 1)
        poll_until(lambda: is_there(admin, "Elsewhere"), timeout_s=60, what="its route")
        assert site.bodies("Elsewhere") == {b"a": 1, b"b": 1}


def is_there(admin: Admin, topic: str) -> bool:
    try:
        return bool(admin.topics.route(topic).queue_datas)
    except NotFoundError:
        return False


# ---- functions, failures and stops ---------------------------------------------------------------

MODULE = """
from pyspark.sql import functions as F
from shouting_package.words import shout

def transform(frame):
    loud = F.udf(shout)
    return frame.select(loud(frame.text).alias("body"))

def once(frame):
    return frame.dropDuplicates(["body"]).select("body")

def fail(frame):
    raise ValueError("too loud")

def wrong(frame):
    return 7

def explode(frame):
    def burst(text):
        raise RuntimeError("it burst")
    return frame.select(F.udf(burst)(frame.body.cast("string")).alias("body"))
"""


def shouting(folder: Path) -> None:
    package = folder / "shouting_package"
    package.mkdir()
    (package / "__init__.py").write_text(MODULE)
    (package / "words.py").write_text("def shout(text):\n    return text.upper() + '!'\n")


def test_sql_then_a_function_whose_code_goes_to_the_workers(site: Site, tmp_path: Path) -> None:
    topic, loud = site.topic("Quiet", 1), site.topic("Loud", 1)
    shouting(tmp_path)
    sink = {"format": "rocketmq", "options": {"topic": loud}}
    more = {
        "sql": "SELECT cast(body AS string) AS text FROM input",
        "python": "shouting_package:transform",
        "trigger": {"availableNow": True},
    }
    file = site.file(tmp_path, pipeline(topic, sink, **more))
    site.send(topic, [b"a", b"b"])
    assert done("run", file)[0]["rows"] == 2
    assert site.bodies(loud) == {b"A!": 1, b"B!": 1}


class Impatient:
    """Sends a signal to this process when all pipelines have read something."""

    def __init__(self, names: set[str], number: signal.Signals) -> None:
        self._waiting = names
        self._number = number
        self.sent = False

    def progress(self, name: str, progress: JobProgress) -> None:
        if progress.rows:
            self._waiting.discard(name)
        if not self._waiting and not self.sent:
            self.sent = True
            os.kill(os.getpid(), self._number)


def test_a_stop_request_lets_the_current_batch_finish(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = site.topic("Endless", 1)
    site.send(topic, [b"%d" % n for n in range(30)])
    one = pipeline(topic, {"format": "parquet", "path": str(tmp_path / "rows")})
    one["source"]["options"]["maxOffsetsPerTrigger"] = "5"
    two = pipeline(topic, {"format": "noop"}, trigger={"processingTime": "1 second"}) | {
        "name": "q"
    }
    file = site.file(tmp_path, one, two)
    impatient = Impatient({"p", "q"}, signal.SIGTERM)
    monkeypatch.setattr(pipeline_command, "bars", lambda *_: nullcontext(impatient.progress))
    runs = done("run", file)
    assert impatient.sent
    assert [(run["pipeline"], run["state"]) for run in runs] == [("p", "stopped"), ("q", "stopped")]
    statuses = done("status", file)
    written = site.spark.read.parquet(str(tmp_path / "rows")).count()
    assert statuses[0]["queues"][0]["committed"] == written > 0
    assert done("run", file, "p", "--available-now")[0]["rows"] == 30 - written
    assert site.spark.read.parquet(str(tmp_path / "rows")).count() == 30


def test_metrics_of_a_run(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = site.topic("Measured", 1)
    site.send(topic, [b"%d" % n for n in range(7)])
    file = site.file(tmp_path, pipeline(topic, {"format": "noop"}))
    urls: list[str] = []
    seen: list[str] = []  # when the signal was sent, and after it

    def serve(port: int, *, host: str) -> MetricsEndpoint:
        served = serve_metrics(port, host=host)
        urls.append(served.url)
        return served

    def scrape(*_: object) -> None:
        with urllib.request.urlopen(urls[-1], timeout=10) as answer:
            text = answer.read().decode()
        if seen or 'skylark_spark_rows_total{query="p"} 7' in text:
            seen.append(text)
        if len(seen) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(pipeline_command, "bars", lambda *_: nullcontext(scrape))
    monkeypatch.setattr(blocking_functions, "serve_metrics", serve)
    (run,) = done("run", file, "--metrics-port", 0)
    assert (run["state"], run["rows"]) == ("stopped", 7)
    assert 'skylark_spark_query_running{query="p"} 1' in seen[0]
    assert f'skylark_spark_queue_lag{{query="p",topic="{topic}"' in seen[0]
    with pytest.raises(urllib.error.URLError):  # closed with the run
        scrape()
    result = skylark(
        "pipeline", "run", file, "--metrics-port", 0, "--metrics-host", "nosuch.invalid"
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: metrics cannot be served: ")


def test_one_that_fails_ends_the_others(site: Site, tmp_path: Path) -> None:
    topic = site.topic("Failing", 1)
    site.send(topic, [b"1"])
    shouting(tmp_path)
    bad = pipeline(topic, {"format": "noop"}, python="shouting_package:explode") | {"name": "bad"}
    bad |= {"on_failure": "stop"}
    good = pipeline(topic, {"format": "noop"}) | {"name": "good"}
    file = site.file(tmp_path, good, bad)
    result = skylark("--output", "json", "pipeline", "run", file)
    assert result.exit_code == 1
    states = {row["pipeline"]: row["state"] for row in json.loads(result.stdout)}
    assert states == {"good": "stopped", "bad": "failed"}
    expected = "pipeline bad: Python code in a task raised RuntimeError: it burst"
    assert result.stderr.endswith(f"Error: {expected}\n")
    # A run that ends by itself leaves the others alone, and the next one begins where it was.
    del bad["on_failure"]
    file = site.file(tmp_path, good, bad)
    result = skylark("--output", "json", "pipeline", "run", file, "--available-now")
    assert result.exit_code == 1
    states = {row["pipeline"]: row["state"] for row in json.loads(result.stdout)}
    assert states == {"good": "done", "bad": "failed"}
    bad |= {"restart": {"pause": "10ms", "limit": "2"}}
    file = site.file(tmp_path, good, bad)
    result = skylark("--output", "json", "pipeline", "run", file, "--available-now")
    runs = {row["pipeline"]: row for row in json.loads(result.stdout)}
    assert (result.exit_code, runs["bad"]["state"], runs["bad"]["restarts"]) == (1, "failed", 2)
    statuses = {row["pipeline"]: row for row in done("status", file)}
    assert (statuses["bad"]["state"], statuses["bad"]["failure"]) == ("failed", expected)
    assert (statuses["good"]["state"], statuses["good"]["failure"]) == ("done", None)


# ---- mistakes that Spark finds -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sql": "SELECT nosuch FROM input"}, r"name `nosuch` cannot be resolved.*`topic`"),
        ({"sql": "SELEC body FROM input"}, "Syntax error at or near 'SELEC'"),
        (
            {"sql": "SELECT * FROM inptu"},
            "`inptu` cannot be found: the rows of the source are the v",
        ),
        ({"sql": "SELECT 1 AS body"}, "the result is not a stream: select from the view"),
        ({"sink": {"format": "parket"}}, "Failed to find the data source: parket: check the name"),
        ({"sink": {"format": "noop", "partitionBy": "dy"}}, "partitionBy names the column dy"),
        ({"python": "nosuch_module:f"}, r"no module nosuch_module: put nosuch_module\.py into"),
        ({"python": "shouting_package:nosuch"}, "module shouting_package has no nosuch"),
        ({"python": "shouting_package:MODULE"}, "shouting_package has no MODULE"),
        ({"python": "shouting_package:fail"}, "fail failed: ValueError: too loud"),
        ({"python": "shouting_package:wrong"}, "returned int, not a DataFrame"),
        (
            {"sql": "SELECT 1 AS x FROM input", "sink": "topic"},
            "the sink needs a column body|column x",
        ),
    ],
)
def test_errors_are_one_sentence(
    site: Site, tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with Admin(site.options) as admin:
        if "Mistakes" not in admin.topics.names():
            admin.topics.create("Mistakes", queue_count=1)
    if not (tmp_path / "shouting_package").exists():
        shouting(tmp_path)
    if changes.get("sink") == "topic":
        changes = {**changes, "sink": {"format": "rocketmq", "options": {"topic": "Mistakes"}}}
    file = site.file(tmp_path, pipeline("Mistakes", {"format": "noop"}) | changes)
    result = skylark("pipeline", "check", file)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: pipeline p: ")
    assert result.stderr.count("\n") == 1
    assert re.search(problem, result.stderr), result.stderr


# ---- bad records and expectations ----------------------------------------------------------------


def test_bad_records_and_violations(site: Site, tmp_path: Path) -> None:
    topic, good, bad = site.topic("Mixed", 1), site.topic("Good"), site.topic("Bad")
    site.send(topic, [b'{"uid": "a", "amount": 5}', b"{", b'{"uid": "b", "amount": -1}',
                      b'{"uid": 7}', b'{"uid": "c"}'])  # fmt: skip
    options = {
        "topic": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "valueSchema": "uid string, amount int",
        "mode": "dropmalformed",
        "columns": "value,queueOffset",
    }
    one = {
        "name": "p",
        "source": {"options": options},
        "sql": "SELECT value.uid AS body, value.amount AS amount FROM input",
        "sink": {"format": "rocketmq", "options": {"topic": good, "ignoreExtraColumns": "true"}},
        "bad_records": bad,
        "expect": {"amount": "> 0"},
        "on_violation": "drop",
    }
    (row,) = done("run", site.file(tmp_path, one), "--available-now")
    assert row["state"] == "done"
    assert site.bodies(good) == Counter([b"a"])
    assert site.bodies(bad) == Counter([b"{", b'{"uid": 7}'])
    properties = [
        dict(each["properties"])
        for part in read_arrow(bad, site.options, columns=["properties"])
        for each in part.to_pylist()
    ]
    assert {each["BAD_RECORD_REASON"].partition(":")[0] for each in properties} == {
        "no JSON", "not valid",
    }  # fmt: skip
    assert any("offset 3)" in each["BAD_RECORD_PLACE"] for each in properties)

    failing = site.file(
        tmp_path, {**one, "name": "q", "on_violation": "fail", "on_failure": "restart"}
    )
    result = skylark("pipeline", "run", failing, "--available-now")
    assert result.exit_code == 1
    assert "pipeline q expects amount > 0, found -1" in result.stderr
    (status,) = done("status", failing)
    assert (status["state"], status["restarts"]) == ("failed", 0)  # the same rows fail again
    unknown = site.file(tmp_path, {**one, "name": "r", "expect": {"amonut": "> 0"}})
    assert "expect names the column amonut" in skylark("pipeline", "check", unknown).stderr
