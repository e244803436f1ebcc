"""The Spark part of the demo: runs ``pipeline.yaml`` twice, and counts the rows in the lake.

The second run demonstrates exactly once: it starts from the checkpoints of the first, finds no new
messages, and sends nothing.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from skylark.client.core.client_options import ClientOptions
from skylark.core.errors import SkylarkError
from skylark.core.interrupts import run_whole
from skylark.demo import totals
from skylark.spark.cluster_client import close_clusters
from skylark.spark.error_translation import translate_errors
from skylark.spark.exactly_once.txn_admin import list_batches
from skylark.spark.pipelines.pipeline_file import load
from skylark.spark.pipelines.pipeline_runner import open_session, run_pipelines
from skylark.spark.sink.sink_client import close_clients, open_client

PIPELINE_FILE: Final = Path(__file__).with_name("pipeline.yaml")
LAKE: Final = "lake/orders"
FUNCTION: Final = f"{totals.__name__}:{totals.hourly_totals.__name__}"


class LakeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that Spark reports."""

    read: int  #: orders that were aggregated
    sent: int  #: rows that the exactly-once sink has committed
    archived: int  #: rows in the lake
    read_again: int  #: rows that the second run has read


def fill_lake(namesrv: str, folder: Path, *, quiet: bool = True) -> LakeCounts:
    """Run the pipelines below ``folder``; raises SkylarkError if one fails."""
    file = Path(shutil.copy(PIPELINE_FILE, folder))
    document = load(file, {"DEMO_NAMESRV": namesrv})
    assert FUNCTION in (pipeline.python for pipeline in document.pipelines)
    try:
        with open_session(document, quiet=quiet) as spark, translate_errors():
            first = {
                run.pipeline: run for run in run_pipelines(spark, document, document.pipelines)
            }
            again = run_pipelines(spark, document, document.pipelines)
            for run in (*first.values(), *again):
                if run.problem is not None:
                    raise SkylarkError(run.problem)
            sent = run_whole(partial(_committed, namesrv))
            archived = spark.read.parquet(str(folder / LAKE)).count()
    finally:
        close_clients()
        close_clusters()
    return LakeCounts(
        read=first["totals"].rows,
        sent=sent,
        archived=archived,
        read_again=sum(run.rows for run in again),
    )


async def _committed(namesrv: str) -> int:
    """The number of rows that the sink has committed, from its log."""
    client = await open_client(ClientOptions(namesrv=namesrv), "demo-audit")
    try:
        batches = await list_batches(client, with_done=True)
    finally:
        await client.close()
    return sum(batch.rows for batch in batches if batch.state == "done")
