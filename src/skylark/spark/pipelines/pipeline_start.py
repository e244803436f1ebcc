"""Where a pipeline would begin, asked of its checkpoint and of the brokers, without Spark.

A pipeline with a checkpoint goes on behind its last complete batch; a batch that was planned and
not completed is run again with the same rows. A pipeline without one begins where its
``startingOffsets`` say. :func:`check_checkpoint` refuses what would not work, or would lose rows
without a word:

* a checkpoint of other topics than the options name;
* a file sink whose folder is not the one that the checkpoint belongs to. Such a sink keeps a log of
  its batches beside the data: Spark silently passes over a batch whose number is in the log, and
  cannot read the folder any more if a number is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from skylark.admin.admin_session import no_topic
from skylark.client.core.route_cache import MASTER_ID
from skylark.core.errors import ConfigError, SkylarkError
from skylark.spark.cluster_client import shared_cluster
from skylark.spark.pipelines.checkpoint_folders import Checkpoint, Checkpoints, local_path
from skylark.spark.pipelines.pipeline_file import FILE_FORMATS, Document, Pipeline
from skylark.spark.source.queue_bounds import Survey, Surveyor, patiently
from skylark.spark.source.source_options import SourceOptions
from skylark.spark.source.start_offsets import Resolver
from skylark.wire.bodies.common_body import MessageQueue

SINK_LOG: Final = "_spark_metadata"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pipeline begins."""

    location: str  #: of its checkpoint
    batch: int | None  #: the number of its next batch; None if only Spark can know it
    again: bool  #: that batch was begun before
    positions: Mapping[MessageQueue, int]
    ends: Mapping[MessageQueue, int]  #: of the queues whose brokers answer


@contextmanager
def naming(pipeline: Pipeline) -> Iterator[None]:
    """Let errors say which pipeline they are about."""
    try:
        yield
    except SkylarkError as error:
        prefix = f"pipeline {pipeline.name}: "
        if not error.message.startswith(prefix.removesuffix(": ")):
            error.message = prefix + error.message
        raise


def document_checkpoints(document: Document) -> Checkpoints:
    """Where the pipelines of a file keep what they have done."""
    return Checkpoints(document.checkpoints, document.path.absolute().parent)


def survey_source(options: SourceOptions) -> Survey:
    """The queues of a source: its topics must exist and their brokers answer."""
    cluster = shared_cluster(options.connection)
    surveyor = Surveyor(cluster.session, options)
    return cluster.run(patiently(cluster.session, options, surveyor.first_survey))


def survey_known(options: SourceOptions, known: Mapping[MessageQueue, int]) -> Survey:
    """The queues of a source that has run before; brokers may be away."""
    cluster = shared_cluster(options.connection)
    surveyor = Surveyor(cluster.session, options)
    return cluster.run(patiently(cluster.session, options, lambda: surveyor.survey(known)))


def resolve_start(options: SourceOptions, survey: Survey) -> dict[MessageQueue, int]:
    """What the options say about the start."""
    cluster = shared_cluster(options.connection)
    resolver = Resolver(cluster.session, options, survey)
    return cluster.run(patiently(cluster.session, options, resolver.start))


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
    """Where ``pipeline`` would begin now; raises ConfigError and whatever the cluster says.

    A query that has a checkpoint goes on while one of its brokers is away: unless ``strict``, that
    is no error here either.
    """
    options = pipeline.source.options
    newest = None if checkpoints.root is None else checkpoints.newest(pipeline.name)
    if strict or newest is None or newest.last is None:
        survey = survey_source(options)
    else:
        survey = survey_known(options, newest.positions)
    ends = {queue: bounds.high for queue, bounds in survey.bounds.items()}
    location = checkpoints.location(pipeline.name)
    if checkpoints.root is None:
        return Start(location=location, batch=None, again=False, positions={}, ends=ends)
    if newest is None or newest.last is None:
        positions = resolve_start(options, survey)
        return Start(location=location, batch=0, again=False, positions=positions, ends=ends)
    return Start(
        location=location,
        batch=newest.next_number,
        again=newest.unfinished is not None,
        positions=newest.positions,
        ends=ends,
    )


def check_checkpoint(pipeline: Pipeline, document: Document) -> None:
    """Raise ConfigError if the pipeline cannot go on with its checkpoint; see the module."""
    checkpoints = document_checkpoints(document)
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
        may_follow.add(next_number)  # its files are complete, and only the checkpoint is not
    if (logged := last_logged(folder)) not in may_follow:
        last = "nothing" if logged < 0 else f"batch {logged}"
        raise ConfigError(
            f"pipeline {pipeline.name}: its checkpoint goes on with batch {next_number}, and the"
            f" last in {folder} is {last}: they do not belong together",
            hint="use the path that was used before, or begin anew: another path, and"
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
            hint="give the pipeline another name, or begin anew with"
            f" skylark pipeline reset FILE {pipeline.name} --to earliest",
        )


def sink_folder(pipeline: Pipeline, document: Document) -> Path | None:
    """The folder of a sink that keeps a log of its batches, if it is one on this machine."""
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
