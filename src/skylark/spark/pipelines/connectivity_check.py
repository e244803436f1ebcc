"""Connectivity check: whether executors reach the brokers (``skylark pipeline check --executors``).

If routes have addresses that only the driver can reach, a query starts and then fails in every
task. So one task per core opens a connection to each address.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from skylark.spark.error_translation import translate_pipeline_errors
from skylark.spark.pipelines.pipeline_file import Pipeline
from skylark.spark.pipelines.pipeline_start import sink_brokers, source_snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CONNECT_TIMEOUT_S: Final = 5.0
_SCHEMA: Final = "host string, address string, problem string"
#: Spark splits so many rows into one partition per core.
_ROWS: Final = 1_000


class ConnectivityResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the tasks on one machine for one address."""

    host: str
    address: str
    tasks: int
    problem: str | None


def broker_addresses(pipelines: Iterable[Pipeline]) -> list[str]:
    """The broker addresses that the tasks of these pipelines connect to."""
    found: set[str] = set()
    for pipeline in pipelines:
        for addresses in source_snapshot(pipeline.source.options).addresses.values():
            found.update(addresses.values())
        found.update(sink_brokers(pipeline))
    return sorted(found)


def try_from_executors(spark: SparkSession, addresses: list[str]) -> list[ConnectivityResult]:
    """Connect from one task per core to each address."""
    with translate_pipeline_errors():
        rows = spark.range(_ROWS).mapInArrow(partial(_try_all, addresses), _SCHEMA).collect()
    counts: dict[tuple[str, str, str | None], int] = {}
    for row in rows:
        key = (row.host, row.address, row.problem)
        counts[key] = counts.get(key, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: tuple(map(str, item[0])))
    return [
        ConnectivityResult(host=host, address=address, tasks=count, problem=problem)
        for (host, address, problem), count in ordered
    ]


def _try_all(addresses: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Connect to all addresses; runs in tasks."""
    import pyarrow as pa

    for _ in batches:
        pass
    host = socket.gethostname()
    rows = [
        {"host": host, "address": address, "problem": _problem(address)} for address in addresses
    ]
    names = ("host", "address", "problem")
    yield pa.RecordBatch.from_pylist(rows, schema=pa.schema([(n, pa.string()) for n in names]))


def _problem(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return None
