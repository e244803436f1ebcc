"""Ranges of queues that a job would read: the answer to "what would a run do now?", without Spark.

Dry runs, progress bars and the jobs that compare a topic with a lake need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from skylark.spark.cluster_client import shared_cluster
from skylark.spark.sink.sink_options import read_sink_options
from skylark.spark.source.offset_options import Named
from skylark.spark.source.queue_bounds import Surveyor, patiently
from skylark.spark.source.source_options import source_options
from skylark.spark.source.start_offsets import Resolver
from skylark.spark.source.stream_offset import StreamOffset
from skylark.wire.bodies.common_body import MessageQueue

if TYPE_CHECKING:
    from skylark.wire.bodies.route_body import TopicRouteData


class QueueSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a queue: the first offset, and the one behind the last."""

    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int
    rows: int  #: in it, if no message is missing


def queue_spans(options: Mapping[str, str], start: StreamOffset | None = None) -> list[QueueSpan]:
    """What a read with these options of the source would read now, without Spark.

    ``start`` is where a checkpoint goes on; then it does not matter where the first run began.
    Raises what keeps it from being read: NotFoundError for a topic, NoNameServerError,
    TransportError for a broker.
    """
    given = source_options(options, streaming=False)
    cluster = shared_cluster(given.connection)

    async def look() -> list[QueueSpan]:
        survey = await Surveyor(cluster.session, given).first_survey()
        resolver = Resolver(cluster.session, given, survey)
        if start is None:
            starts = await resolver.start()
        else:  # queues that are new to a stream enter it by the default
            earliest = given.start_default is Named.EARLIEST
            starts = {
                queue: start.queues.get(queue, bounds.low if earliest else bounds.high)
                for queue, bounds in survey.bounds.items()
            }
        ends = await resolver.end(starts)
        return [_span(queue, starts[queue], ends[queue]) for queue in sorted(starts)]

    return cluster.run(patiently(cluster.session, given, look))


def require_topics(options: Mapping[str, str]) -> None:
    """Raise NotFoundError if a topic of these options of the source is not there.

    For streams: one that has a checkpoint can do without some brokers, and without its first start.
    """
    for topic in source_options(options, streaming=True).topics:
        topic_route(options, topic)


def topic_route(options: Mapping[str, str], topic: str) -> TopicRouteData:
    """Where a topic is in the cluster of these options; raises NotFoundError."""
    connection = read_sink_options({"nameServer": options["nameServer"]}).connection
    session = (cluster := shared_cluster(connection)).session
    return cluster.run(session.route(session.wrap(topic)))


def _span(queue: MessageQueue, start: int, end: int) -> QueueSpan:
    return QueueSpan(
        topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        start=start,
        end=end,
        rows=end - start,
    )
