"""Input partitions of a read: each is a range of one queue, read by one task.

A :class:`QueueRange` is all that a task needs: it carries the addresses of the broker, so that
executors ask no name server unless a pull fails. Rows keep the order of the queue within a
partition; there is no order between partitions.

Ranges are cut twice. ``maxRecordsPerPartition`` limits the size of each; then, if there are still
fewer than ``minPartitions``, large ones are cut in proportion to their size, as Spark does for
Kafka. After that, small ones are put together (:mod:`skylark.spark.source.range_packing`).

:class:`StoreFinder` decides for which brokers tasks may read files instead of pulling. With
``storePath`` it is that folder; otherwise, with ``readMode=auto``, the driver asks brokers at an
address of this machine once for their settings. The task finds out whether it can really read the
folder. Compacted topics are always pulled: the log still has messages that the broker no longer
delivers.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from skylark.admin.admin_session import Session
from skylark.admin.server_settings import Settings
from skylark.admin.topic_operations import topic_config
from skylark.client.core.client_options import local_address
from skylark.core.errors import SkylarkError
from skylark.core.names import parse_address
from skylark.spark.source.offset_planning import split_limit
from skylark.spark.source.queue_bounds import choose_address
from skylark.spark.source.source_options import FILE_RECORDS_PER_PARTITION, SourceOptions
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

_POLICY: Final = "cleanup.policy"


class StoreFinder:
    """Asks brokers for their store folder and caches the answers."""

    def __init__(self, session: Session, options: SourceOptions) -> None:
        self._session = session
        self._options = options
        self._paths: dict[str, str | None] = {}
        self._compacted: dict[tuple[str, str], bool] = {}

    async def find(self, topic: str, addresses: Mapping[int, str]) -> str | None:
        """The store folder of the broker with these addresses; None to pull from it.

        ``topic`` has its namespace.
        """
        options = self._options
        if options.read_mode == "pull" or options.sql92 is not None:
            return None
        address = choose_address(addresses, options.read_from)
        path = options.store_path
        if path is None and address is not None and is_local(address):
            if address not in self._paths:
                self._paths[address] = await self._request_path(address)
            path = self._paths[address]
        if path is None or address is None:
            return path
        key = address, topic
        if key not in self._compacted:
            is_compacted = await self._is_compacted(address, topic)
            if is_compacted is None:
                return None
            self._compacted[key] = is_compacted
        return None if self._compacted[key] else path

    async def _is_compacted(self, address: str, topic: str) -> bool | None:
        """Whether the topic is compacted; None if the broker does not answer."""
        try:
            config = await topic_config(self._session, address, topic)
        except SkylarkError as error:
            logger.info(
                "cannot get the attributes of topic %s from broker %s: %s", topic, address, error
            )
            return None
        policies = {config.attributes.get(name) for name in (_POLICY, f"+{_POLICY}")}
        return "COMPACTION" in policies

    async def _request_path(self, address: str) -> str | None:
        try:
            report = await Settings(self._session).brokers(broker=address)
        except SkylarkError as error:
            logger.info("cannot get the store folder of broker %s: %s", address, error)
            return None
        settings = report.servers[0].settings
        path = settings.get("storePathRootDir", "")
        log_path = settings.get("storePathCommitLog", "")
        if log_path not in ("", f"{path}/commitlog"):
            return None  # the log is elsewhere
        return path or None


def is_local(address: str) -> bool:
    """Whether ``host:port`` is an address of this machine: loopback or its own address."""
    host = parse_address(address)[0]
    if host in ("localhost", local_address()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """The messages of one queue from offset ``start`` up to ``end``."""

    queue: MessageQueue  #: names as brokers know them
    start: int
    end: int
    addresses: Mapping[int, str] = field(default_factory=dict)  #: broker id -> address
    store_path: str | None = None  #: the folder of the broker's store, for tasks that can read it
    store_given: bool = False  #: ``storePath`` was given: warn if it cannot be used

    @property
    def count(self) -> int:
        return self.end - self.start


async def plan_partitions(
    session: Session,
    options: SourceOptions,
    finder: StoreFinder,
    addresses: Mapping[str, Mapping[int, str]],
    ranges: Mapping[MessageQueue, tuple[int, int]],
) -> list[QueueRange]:
    """Make partitions of the ranges of queues, cut by the options; none for empty ranges."""
    queues = [queue for queue in sorted(ranges) if ranges[queue][0] < ranges[queue][1]]
    stores: dict[tuple[str, str], str | None] = {}
    for topic, broker in dict.fromkeys((queue.topic, queue.broker_name) for queue in queues):
        at = addresses.get(broker, {})
        stores[topic, broker] = await finder.find(session.wrap(topic), at)
    wholes = [
        QueueRange(
            queue=session.namespace.wrap_queue(queue),
            start=ranges[queue][0],
            end=ranges[queue][1],
            addresses=dict(addresses.get(queue.broker_name, {})),
            store_path=stores[queue.topic, queue.broker_name],
            store_given=options.store_path is not None,
        )
        for queue in queues
    ]
    records_max = options.records_per_partition_max
    if records_max is None and any(each.store_path is not None for each in wholes):
        records_max = FILE_RECORDS_PER_PARTITION
    return cut_ranges(wholes, count_min=options.partitions_min, records_max=records_max)


def cut_ranges(
    ranges: Iterable[QueueRange], *, count_min: int | None, records_max: int | None
) -> list[QueueRange]:
    """Cut ranges by the two options; empty ranges are left out."""
    parts = [each for each in ranges if each.count > 0]
    if records_max is not None:
        parts = [part for each in parts for part in _cut(each, -(-each.count // records_max))]
    if count_min is not None and len(parts) < count_min:
        # One part for each range, and further parts for those with the most messages.
        more = split_limit(dict(enumerate(e.count - 1 for e in parts)), count_min - len(parts))
        parts = [part for index, each in enumerate(parts) for part in _cut(each, 1 + more[index])]
    return parts


def _cut(whole: QueueRange, count: int) -> list[QueueRange]:
    """Cut a range into ``count`` parts of almost equal size."""
    bounds = [whole.start + whole.count * index // count for index in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(bounds)]
