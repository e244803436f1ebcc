"""A pipeline of a released version, its checkpoint and its store: this version continues it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from skylark import ClientOptions, Message
from skylark.cli.main import cli
from skylark.sync import Producer
from tests.support.release_folder import COPY, COUNT, RELEASES, TOPIC, unpacked, up


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_a_pipeline_of_a_release_goes_on(
    release: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unpacked(release, tmp_path)
    with up(folder) as namesrv:
        with Producer("shop", ClientOptions(namesrv=namesrv)) as producer:
            producer.send(Message(TOPIC, b"new"))
        monkeypatch.setenv("SKYLARK_NAMESRV", namesrv)
        command = ["--output", "json", "pipeline", "run", str(folder / "pipeline.yaml")]
        done = CliRunner().invoke(cli, [*command, "--available-now"], prog_name="skylark")
        assert done.exit_code == 0, done.output
        (row,) = json.loads(done.stdout)
        assert (row["state"], row["rows"], row["lag"]) == ("done", 1, 0)  # and nothing again
        frame = spark.read.format("rocketmq").option("nameServer", namesrv).option("topic", COPY)
        bodies = [bytes(copied.body) for copied in frame.load().collect()]
    assert len(bodies) == COUNT + 1
    assert b"new" in bodies
