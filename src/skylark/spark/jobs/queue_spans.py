"""Queue spans: the offset ranges that a job would read now, found without Spark.

Used by dry runs, by progress bars, and by jobs that compare a topic with a lake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from skylark.admin.admin_session import Session, masters_of
from skylark.admin.errors import NotFoundError
from skylark.spark.cluster_client import shared_cluster
from skylark.spark.outages import ride_out
from skylark.spark.sink.sink_client import route_missing
from skylark.spark.sink.sink_options import read_sink_options
from skylark.spark.source.offset_options import Named
from skylark.spark.source.queue_bounds import ClusterInspector, ask_cluster
from skylark.spark.source.source_options import source_options
from skylark.spark.source.start_offsets import OffsetResolver
from skylark.spark.source.stream_offset import StreamOffset
from skylark.wire.bodies.common_body import MessageQueue

if TYPE_CHECKING:
    from skylark.wire.bodies.route_body import TopicRouteData


class QueueSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A range of one queue: its first offset, and the one after the last."""

    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int
    rows: int  #: number of offsets in it

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(topic=self.topic, broker_name=self.broker_name, queue_id=self.queue_id)


def queue_spans(options: Mapping[str, str], start: StreamOffset | None = None) -> list[QueueSpan]:
    """The ranges that a read with these source options would read now.

    ``start`` is the offset in a checkpoint, and replaces the starting offsets of the options.
    Raises NotFoundError for a topic, NoNameServerError, TransportError for a broker.
    """
    given = source_options(options, streaming=False)

    async def find(session: Session) -> list[QueueSpan]:
        snapshot = await ClusterInspector(session, given).first_snapshot()
        resolver = OffsetResolver(session, given, snapshot)
        if start is None:
            starts = await resolver.start()
        else:  # queues that the checkpoint does not have start by the default
            earliest = given.start_default is Named.EARLIEST
            starts = {
                queue: start.queues.get(queue, bounds.low if earliest else bounds.high)
                for queue, bounds in snapshot.bounds.items()
            }
        ends = await resolver.end(starts)
        return [
            QueueSpan(
                **msgspec.structs.asdict(queue),
                start=starts[queue],
                end=ends[queue],
                rows=ends[queue] - starts[queue],
            )
            for queue in sorted(starts)
        ]

    return ask_cluster(given, find, given.fetch_patience_s)


def require_topics(options: Mapping[str, str]) -> None:
    """Raise NotFoundError if a topic of these source options does not exist.

    For streams, which may continue from a checkpoint while some brokers are down.
    """
    for topic in source_options(options, streaming=True).topics:
        topic_route(options, topic)


def topic_route(options: Mapping[str, str], topic: str, *, existed: bool = False) -> TopicRouteData:
    """The route of a topic in the cluster of these options; raises NotFoundError.

    If it ``existed`` before, it is waited for, up to ``outageTimeout``: name servers forget the
    topics of brokers that are down. Raises OutageError then.
    """
    given = read_sink_options({"nameServer": options["nameServer"]})
    session = (cluster := shared_cluster(given.connection)).session

    async def find() -> TopicRouteData:
        try:
            route = await session.route(session.wrap(topic))
        except NotFoundError as error:
            if not existed:
                raise
            raise route_missing(topic) from error
        if existed and not masters_of(route):
            raise route_missing(topic)
        return route

    if not existed:
        return cluster.run(find())
    return cluster.run(ride_out(session.clock, given.outage_timeout_s, find))
