"""Old module paths: pickles made at commit 8b204fb still open, old imports still work."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skylark.spark.data_source import DefaultSource
from skylark.spark.exactly_once.commit_protocol import Prepared
from skylark.spark.jobs.archive_job import ArchiveOptions
from skylark.spark.jobs.compact_job import CompactOptions
from skylark.spark.jobs.mirror_job import MirrorOptions, send_rows
from skylark.spark.jobs.redrive_job import RedriveOptions
from skylark.spark.jobs.replay_job import Pace, ReplayOptions
from skylark.spark.jobs.report_job import ReportOptions
from skylark.spark.jobs.transform_job import TransformOptions
from skylark.spark.jobs.verify_job import VerifyOptions
from skylark.spark.moved_modules import MOVED, NAMES_OF_OLD, install
from skylark.spark.option_table import Connection
from skylark.spark.pipelines.pipeline_plan import _try_all
from skylark.spark.sink.row_encoder import RowPlan
from skylark.spark.sink.sink_options import read_sink_options
from skylark.spark.sink.sink_sender import QueueWritten, Written
from skylark.spark.sink.sink_writer import BatchWriter, SinkMessage, StreamWriter
from skylark.spark.sink.task_writer import TaskId, write_at_least_once
from skylark.spark.source.input_partitions import QueueRange
from skylark.spark.source.offset_options import Ago, At, Named, Offsets
from skylark.spark.source.source_options import source_options
from skylark.spark.source.source_readers import BatchReader, StreamReader
from skylark.wire.bodies.common_body import MessageQueue

FOLDER = Path(__file__).parents[2] / "golden" / "spark-8b204fb"
SITE = {"nameServer": "127.0.0.1:9876"}
QUEUE = MessageQueue(topic="orders", broker_name="broker-a", queue_id=1)
GIVEN = {
    **SITE,
    "assign": '{"orders": {"broker-a": [0, 1]}}',
    "startingOffsets": '{"orders": {"broker-a": {"0": 23, "1": -1}}}',
    "group": "lake",
    "tags": "A || B",
}
BATCH = source_options({**GIVEN, "endingTimestamp": "1750000000000"}, streaming=False)
STREAM = source_options({**GIVEN, "startingOffsets": "-2h"}, streaming=True)
SINK = read_sink_options({**SITE, "topic": "alerts", "delivery": "exactly-once"})
ROWS = RowPlan(columns=("body", "keys"))
#: What the program in the README of the folder pickled, as today's code makes it.
VALUES = {
    "connection": Connection(name_server="127.0.0.1:9876", access_key="a", secret_key="b"),
    "positions": (Named.EARLIEST, Ago(60_000), At(1_750_000_000_000), Offsets({QUEUE: 23})),
    "source_options_batch": BATCH,
    "source_options_stream": STREAM,
    "sink_options": SINK,
    "row_plan": ROWS,
    "queue_range": QueueRange(QUEUE, 3, 9, {0: "127.0.0.1:10911"}),
    "sink_message": SinkMessage(
        Written(count=3, size=30, queues={"alerts/broker-a/0": QueueWritten(5, 7, 3)}),
        Prepared(sink="s", batch=2, partition=1, attempt="1-0", count=3, manifests=(8,)),
    ),
    "job_options": (
        ArchiveOptions(topics=("orders",), output="lake"),
        ReplayOptions(lake="lake", to_topic="again", rate=5.0),
        CompactOptions(topic="orders", to_topic="latest"),
        VerifyOptions(topic="orders", lake="lake"),
        TransformOptions(topic="orders", to_topic="paid", sql="SELECT 1", checkpoint="ck"),
        MirrorOptions(topic="orders", to_namesrv="127.0.0.1:9877", checkpoint="ck"),
        RedriveOptions(group="billing", tags=frozenset({"A"})),
        ReportOptions(topic="orders"),
    ),
    "pace": Pace(rates={1: 2.5}, time_scale=2.0, first_micros=7),
    "task_id": TaskId(sink="s", batch=2, partition=1),
    "functions": (send_rows, write_at_least_once, _try_all),
    "source_class": DefaultSource,
}
#: Objects without ``==``: they are compared by class and attributes.
OBJECTS = {
    "batch_reader": BatchReader(BATCH, ("queueOffset", "body")),
    "stream_reader": StreamReader(STREAM, ("queueOffset", "body")),
    "batch_writer": BatchWriter(SINK, ROWS),
    "stream_writer": StreamWriter(SINK, ROWS),
    "default_source": DefaultSource(GIVEN),
}


def unpickle(name: str) -> Any:
    return pickle.loads((FOLDER / f"{name}.pickle").read_bytes())


def test_every_golden_pickle_is_compared() -> None:
    assert {file.stem for file in FOLDER.glob("*.pickle")} == VALUES.keys() | OBJECTS.keys()


@pytest.mark.parametrize("name", VALUES)
def test_an_old_pickle_gives_the_value_of_today(name: str) -> None:
    assert unpickle(name) == VALUES[name]


@pytest.mark.parametrize("name", OBJECTS)
def test_an_old_pickle_gives_an_object_of_today(name: str) -> None:
    found, wanted = unpickle(name), OBJECTS[name]
    assert type(found) is type(wanted)
    attributes = dict(vars(found))
    if name == "batch_writer":  # drawn at random where the options name no transaction
        assert attributes.pop("sink") == "lake"
    assert attributes == {key: vars(wanted)[key] for key in attributes}
    assert attributes


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_gives_the_new_module(old: str) -> None:
    assert importlib.import_module(old) is importlib.import_module(MOVED[old])
    parent, _, child = old.rpartition(".")
    assert getattr(importlib.import_module(parent), child) is importlib.import_module(MOVED[old])


@pytest.mark.parametrize("package", NAMES_OF_OLD)
def test_a_package_has_the_names_of_the_module_that_it_was(package: str) -> None:
    path, names = NAMES_OF_OLD[package]
    for name in names:
        assert getattr(importlib.import_module(package), name) is getattr(
            importlib.import_module(path), name
        )
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = importlib.import_module(package).nonsense


def test_an_unknown_path_is_still_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("skylark.spark.nonsense")


def test_install_adds_one_finder() -> None:
    count = len(sys.meta_path)
    install()
    assert len(sys.meta_path) == count


def test_the_packages_import_no_pyspark() -> None:
    program = (
        f"import sys, importlib; [importlib.import_module(name) for name in {[*NAMES_OF_OLD]}];"
        "from skylark.spark.source import stream_offset;"
        "assert not any(name.startswith('pyspark') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
