"""Reader of one input partition: what a task runs to get the messages of a range as Arrow batches.

The task reads the files of the broker if it can reach them
(:mod:`skylark.spark.source.store_file_reader`). Where that stops, for any reason, it pulls the
rest from the broker (:mod:`skylark.client.consumer.range_reader`), one pull ahead of Spark. The
first pull goes to the address in the partition; after a failure the task asks for the route again.

Files are trusted if their first message equals, byte by byte, the one that the broker sends. An
address of this machine may be that of a container, and a folder that the user names belongs to one
broker while the topic may be on several.

If messages are gone, the task fails; with ``failOnDataLoss=false`` it logs their number and
continues.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from skylark.admin.admin_session import Session
from skylark.client.arrow.arrow_reader import ArrowDecoder, read_range
from skylark.client.consumer.range_reader import Find, RangeTerms, fixed_address, pull_range
from skylark.client.core.route_cache import make_route
from skylark.client.errors import MissingError
from skylark.core.errors import SkylarkError, TransportError
from skylark.spark.arrow_batches import cut_batch, merge_batches
from skylark.spark.cluster_client import Cluster, shared_cluster
from skylark.spark.errors import log_missing, messages_expired
from skylark.spark.outages import OutageDisplay, is_outage
from skylark.spark.source.derived_columns import DerivedColumns
from skylark.spark.source.input_partitions import QueueRange
from skylark.spark.source.queue_bounds import choose_address
from skylark.spark.source.range_packing import QueueRanges
from skylark.spark.source.source_options import SourceOptions
from skylark.spark.source.store_file_reader import StoreReader, UnusableFilesError

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_warned_stores: Final[set[str | None]] = set()  # a warning was logged that these cannot be read


def read_partition(
    partition: InputPartition,
    options: SourceOptions,
    columns: Sequence[str],
    value_type: StructType | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of a partition; none if it is not of this source.

    Raises SkylarkError, DataLossError for messages that are gone, BadRecordError.
    """
    derived = DerivedColumns(options, columns, value_type)
    batches = _messages(partition, options, derived.base)
    return derived.make(batches) if derived.is_needed else batches


def _messages(
    partition: InputPartition, options: SourceOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, QueueRanges):
        readers = (_Reader(part, options, columns) for part in partition.ranges)
        yield from merge_batches(batch for reader in readers for batch in reader.batches())
    elif isinstance(partition, QueueRange):
        for batch in _Reader(partition, options, columns).batches():
            yield from cut_batch(batch)


class _Reader:
    def __init__(
        self, partition: QueueRange, options: SourceOptions, columns: Sequence[str]
    ) -> None:
        self._range = partition
        self._options = options
        self._columns = columns
        self._next = partition.start

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._range.store_path is not None:
            try:
                yield from self._from_files(Path(self._range.store_path))
            except UnusableFilesError as error:
                self._log_unusable(error)
        if self._next < self._range.end:
            yield from self._from_broker()

    def _log_unusable(self, error: UnusableFilesError) -> None:
        """Warn once per store: the newest messages of a queue are often not in its files yet."""
        is_warning = self._range.store_given and self._range.store_path not in _warned_stores
        _warned_stores.add(self._range.store_path)
        logger.log(
            logging.WARNING if is_warning else logging.INFO,
            "pulling %s from offset %d on instead of reading files: %s",
            self._range.queue,
            self._next,
            error,
        )

    # ---- files -----------------------------------------------------------------------------------

    def _from_files(self, root: Path) -> Iterator[pa.RecordBatch]:
        part = self._range
        decoder = ArrowDecoder(
            part.queue, self._columns, tags=self._options.tags, inflate=self._options.decompress
        )
        with StoreReader(root, part.queue, tag_list(self._options.tags)) as store:
            self._check_store(root)
            for chunk in store.read(part.start, part.end):
                if chunk.body:
                    yield from decoder.decode(chunk.body, part.start, part.end)
                self._next = chunk.next_offset

    def _check_store(self, root: Path) -> None:
        """Compare the first message with that of the broker; raises UnusableFilesError."""
        part = self._range
        with StoreReader(root, part.queue) as store:
            ours = next(store.read(part.start, part.start + 1)).body
        try:
            theirs = self._cluster.run(self._first_message(len(ours)))
        except SkylarkError as error:
            raise UnusableFilesError(f"cannot compare {root} with the broker: {error}") from None
        if ours != theirs:
            raise UnusableFilesError(f"{root} is not the store of {part.queue.broker_name}")

    async def _first_message(self, size: int) -> bytes:
        session, part = self._cluster.session, self._range
        address = choose_address(part.addresses, self._options.read_from)
        if address is None:
            raise TransportError(f"broker {part.queue.broker_name} has no address now")
        terms = RangeTerms(group=session.wrap(self._options.group), count_max=1, patience_s=3.0)
        find, start = fixed_address(address), part.start
        answers = pull_range(
            session.calls, find, part.queue, start, start + 1, session.clock, terms
        )
        async for pulled in answers:
            return pulled.body[:size]
        return b""

    # ---- broker ----------------------------------------------------------------------------------

    @property
    def _cluster(self) -> Cluster:
        return shared_cluster(self._options.connection)

    def _from_broker(self) -> Iterator[pa.RecordBatch]:
        options, session = self._options, self._cluster.session
        patience_s, outage_s = options.pull_timeout_ms / 1000, options.outage_timeout_ms / 1000
        display = OutageDisplay(session.clock, outage_s)
        terms = RangeTerms(
            expression=options.sql92 or "*",
            expression_type="TAG" if options.sql92 is None else "SQL92",
            group=session.wrap(options.group),
            count_max=options.pull_batch_size,
            size_max=options.pull_size_max,
            timeout_s=patience_s,
            patience_s=patience_s,
            outage_s=outage_s,
            on_outage=display.retrying,
        )
        batches = read_range(
            session.calls,
            _address_finder(session, self._range, options.read_from),
            self._range.queue,
            self._next,
            self._range.end,
            tags=options.tags,
            columns=self._columns,
            terms=terms,
            on_missing=None if options.fail_on_data_loss else log_missing,
            clock=session.clock,
            inflate=options.decompress,
        )
        try:
            with display:
                for batch in self._cluster.iterate(batches):
                    display.over()
                    yield batch
        except MissingError as error:
            raise messages_expired(error.missing) from None
        except (SkylarkError, TimeoutError) as error:
            clear = display.ended(error) if is_outage(error) else None
            if clear is None:
                raise
            raise clear from error


def tag_list(tags: str | None) -> list[str]:
    """The tags of ``TagA || TagB``; an empty list stands for all."""
    parts = [part.strip() for part in (tags or "").split("||")]
    return [] if parts == ["*"] else [part for part in parts if part]


def _address_finder(session: Session, part: QueueRange, read_from: str) -> Find:
    addresses: Mapping[int, str] = part.addresses

    async def find(attempt: int) -> str:
        nonlocal addresses
        if attempt or not addresses:
            data = await session.find_route(part.queue.topic)
            route = None if data is None else make_route(part.queue.topic, data)
            addresses = (route and route.brokers.get(part.queue.broker_name)) or {}
        address = choose_address(addresses, read_from, attempt)
        if address is None:
            raise TransportError(
                f"broker {part.queue.broker_name} has no address now", hint="is it running?"
            )
        return address

    return find
