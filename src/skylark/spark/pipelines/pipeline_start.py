"""Start of a pipeline: where a run would begin, by its checkpoint and the brokers, without Spark.

A pipeline with a checkpoint continues after its last completed batch; a batch that was planned and
not completed runs again with the same rows. A pipeline without one begins at its
``startingOffsets``. :func:`check_checkpoint` refuses what would fail, or would lose rows without
an error:

* a checkpoint of other topics than the options select;
* a file sink whose folder does not belong to the checkpoint. Such a sink keeps a log of its batches
  beside the data: Spark silently skips a batch whose number is in the log, and cannot read the
  folder any more if a number is missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from skylark.admin.admin_session import Session, no_topic
from skylark.client.core.route_cache import MASTER_ID
from skylark.core.errors import ConfigError, SkylarkError
from skylark.spark.cluster_client import shared_cluster
from skylark.spark.pipelines.checkpoint_folders import Checkpoint, Checkpoints, local_path
from skylark.spark.pipelines.pipeline_file import FILE_FORMATS, Pipeline, PipelineFile
from skylark.spark.source.queue_bounds import ClusterInspector, ClusterSnapshot, ask_cluster
from skylark.spark.source.source_options import SourceOptions
from skylark.spark.source.start_offsets import OffsetResolver
from skylark.wire.bodies.common_body import MessageQueue

T = TypeVar("T")

SINK_LOG: Final = "_spark_metadata"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a run."""

    location: str  #: of the checkpoint
    batch: int | None  #: number of the next batch; None if only Spark can read the checkpoint
    again: bool  #: that batch was planned before
    positions: Mapping[MessageQueue, int]
    ends: Mapping[MessageQueue, int]  #: of the queues whose brokers answer


@contextmanager
def name_in_errors(pipeline: Pipeline) -> Iterator[None]:
    """Prefix errors with the name of the pipeline."""
    try:
        yield
    except SkylarkError as error:
        prefix = f"pipeline {pipeline.name}: "
        if not error.message.startswith(prefix.removesuffix(": ")):
            error.message = prefix + error.message
        raise


def file_checkpoints(document: PipelineFile) -> Checkpoints:
    """The checkpoints of the pipelines of a file."""
    return Checkpoints(document.checkpoints, document.path.absolute().parent)


def _ask(options: SourceOptions, work: Callable[[Session], Awaitable[T]]) -> T:
    """Ask the cluster for a command that the user waits for."""
    return ask_cluster(options, work, options.fetch_patience_s)


def source_snapshot(options: SourceOptions) -> ClusterSnapshot:
    """Snapshot of the queues of a source; its topics must exist and their brokers answer."""
    return _ask(options, lambda session: ClusterInspector(session, options).first_snapshot())


def known_snapshot(options: SourceOptions, known: Mapping[MessageQueue, int]) -> ClusterSnapshot:
    """Snapshot of the queues of a source that has run before; brokers may be down."""
    return _ask(options, lambda session: ClusterInspector(session, options).snapshot(known))


def resolve_start(options: SourceOptions, snapshot: ClusterSnapshot) -> dict[MessageQueue, int]:
    """The start offsets by the options."""
    return _ask(options, lambda session: OffsetResolver(session, options, snapshot).start())


def sink_brokers(pipeline: Pipeline) -> set[str]:
    """The addresses of the masters that a sink writes to; raises NotFoundError."""
    options = pipeline.sink.topic_options
    found: set[str] = set()
    if options is None:
        return found
    cluster = shared_cluster(options.connection)
    for topic in (options.topic, options.bad_row_topic):
        if topic is not None:
            route = cluster.run(cluster.session.find_route(cluster.session.wrap(topic)))
            if route is None:
                raise no_topic(topic)
            for broker in route.broker_datas:
                found.update(a for number, a in broker.broker_addrs.items() if number == MASTER_ID)
    return found


def find_start(pipeline: Pipeline, checkpoints: Checkpoints, *, strict: bool) -> Start:
    """Where ``pipeline`` would begin now; raises SkylarkError.

    A query with a checkpoint continues while one of its brokers is down: here that is an error only
    if ``strict``.
    """
    options = pipeline.source.options
    newest = None if checkpoints.root is None else checkpoints.newest(pipeline.name)
    if strict or newest is None or newest.last is None:
        snapshot = source_snapshot(options)
    else:
        snapshot = known_snapshot(options, newest.positions)
    ends = {queue: bounds.high for queue, bounds in snapshot.bounds.items()}
    location = checkpoints.location(pipeline.name)
    if checkpoints.root is None:
        return Start(location=location, batch=None, again=False, positions={}, ends=ends)
    if newest is None or newest.last is None:
        positions = resolve_start(options, snapshot)
        return Start(location=location, batch=0, again=False, positions=positions, ends=ends)
    return Start(
        location=location,
        batch=newest.next_number,
        again=newest.unfinished is not None,
        positions=newest.positions,
        ends=ends,
    )


def check_checkpoint(pipeline: Pipeline, document: PipelineFile) -> None:
    """Raise ConfigError if the pipeline cannot continue with its checkpoint (module docstring)."""
    checkpoints = file_checkpoints(document)
    if checkpoints.root is None:
        return
    checkpoints.check_writable(pipeline.name)
    newest = checkpoints.newest(pipeline.name)
    if newest is not None:
        _check_topics(pipeline, newest)
    folder = sink_folder(pipeline, document)
    if folder is None:
        return
    next_number = 0 if newest is None else newest.next_number
    may_follow = {next_number - 1}
    if newest is not None and newest.unfinished is not None:
        may_follow.add(
            next_number
        )  # its files are complete, but the checkpoint does not have the commit
    if (logged := last_logged(folder)) not in may_follow:
        last = "nothing" if logged < 0 else f"batch {logged}"
        raise ConfigError(
            f"pipeline {pipeline.name}: its checkpoint continues with batch {next_number}, and the"
            f" last in {folder} is {last}: they do not belong together",
            hint="use the path that was used before, or start again: another path, and"
            f" skylark pipeline reset FILE {pipeline.name} --to earliest",
        )


def _check_topics(pipeline: Pipeline, checkpoint: Checkpoint) -> None:
    options = pipeline.source.options
    foreign = sorted(name for name in checkpoint.topics if not options.wants_topic(name))
    if foreign:
        wanted = options.topics_pattern or ", ".join(options.topics)
        raise ConfigError(
            f"pipeline {pipeline.name}: its checkpoint {checkpoint.folder} is of topic"
            f" {', '.join(foreign)}, and the file says {wanted}",
            hint="give the pipeline another name, or start again with"
            f" skylark pipeline reset FILE {pipeline.name} --to earliest",
        )


def sink_folder(pipeline: Pipeline, document: PipelineFile) -> Path | None:
    """The local folder of a file sink, which has a log of its batches; None for other sinks."""
    sink = pipeline.sink
    if sink.format.lower() not in FILE_FORMATS or sink.path is None:
        return None
    return local_path(sink.path, document.path.absolute().parent)


def last_logged(folder: Path) -> int:
    """The last batch in the log of a file sink; -1 if there is none."""
    try:
        names = [file.name.removesuffix(".compact") for file in (folder / SINK_LOG).iterdir()]
    except OSError:
        return -1
    return max((int(name) for name in names if name.isdecimal()), default=-1)
