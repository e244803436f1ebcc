"""Batcher of the sink: groups rows into send requests and chooses their queues.

Rows of one topic and one destination share a request, up to ``batchBytes`` and ``batchRows``. The
destination is a queue if a sharding key, or the columns ``brokerName`` and ``queueId``, name one:
the requests of such a queue form a *lane* and are sent in the order of the rows. All other rows may
go to any queue. Delayed and large rows get a request each; large ones are compressed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from skylark.client.core.client_message import Message
from skylark.client.producer.send_request import COMPRESSION_KINDS, Parcel, compress
from skylark.spark.sink.row_encoder import BadRowError, Rows, batch_parts
from skylark.spark.sink.sharding_rules import SHARD_RULES
from skylark.spark.sink.sink_options import SinkOptions
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

#: Properties of a batch as a whole: wait until it is stored.
_BATCH_TEXT: Final = "WAIT\x01true\x02"
_ANY: Final = -1


class Target(msgspec.Struct, frozen=True):
    """Destination of rows: a topic, and a queue if the rows must go to that one."""

    topic: str  #: without namespace
    queue: MessageQueue | None = None  #: with namespace


class Row(msgspec.Struct, frozen=True):
    """One row, encoded as a message."""

    number: int  #: index among the good rows of its Arrow batch
    position: int  #: index among all rows of the task
    target: Target
    body: bytes
    sys_flag: int
    text: str
    flag: int

    def parcel(self, suffix: str = "", sys_flag: int = 0) -> Parcel:
        """A request for this row alone; ``suffix`` has further properties."""
        return Parcel(
            messages=(Message(self.target.topic, b""),),
            properties=self.text + suffix,
            body=self.body,
            sys_flag=self.sys_flag | sys_flag,
            flag=self.flag,
        )


class RowRequest(msgspec.Struct, frozen=True):
    """One send request: rows of one destination."""

    target: Target
    parcel: Parcel
    size: int
    rows: Rows
    numbers: Sequence[int]  #: indexes of its rows among the good ones

    @property
    def count(self) -> int:
        return len(self.numbers)


class RowBatcher:
    """Groups the rows of a task into requests."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._rule = SHARD_RULES[options.queue_selector]
        self._compression = COMPRESSION_KINDS[options.compress_type.upper()]

    def topics(self, rows: Rows) -> list[str]:
        """The topics of the rows."""
        import pyarrow.compute as pc

        if rows.topics is None:
            assert self._options.topic is not None
            return [self._options.topic]
        found: list[str] = pc.unique(rows.topics).to_pylist()
        return found

    def named_brokers(self, rows: Rows) -> set[str]:
        """The brokers whose queues rows name."""
        import pyarrow.compute as pc

        if rows.brokers is None or rows.queue_ids is None:
            return set()
        named = rows.brokers.filter(pc.is_valid(rows.queue_ids))
        return set(pc.unique(named).drop_null().to_pylist())

    def targets(
        self, rows: Rows, queues: Mapping[str, Sequence[MessageQueue]]
    ) -> Iterator[tuple[Target, np.ndarray[Any, Any]]]:
        """The indexes of the rows of each destination; ``queues`` has the queues of each topic."""
        import numpy as np
        import pyarrow.compute as pc

        everything = np.arange(len(rows.positions))
        for topic in self.topics(rows):
            numbers = everything
            if rows.topics is not None:
                same = pc.equal(rows.topics, topic).to_numpy(zero_copy_only=False)
                numbers = same.nonzero()[0]
            indexes = self._indexes(rows, numbers, queues[topic])
            if indexes is None:
                yield Target(topic), numbers
                continue
            for index in np.unique(indexes).tolist():
                queue = None if index == _ANY else queues[topic][index]
                yield Target(topic, queue), numbers[indexes == index]

    def _indexes(
        self, rows: Rows, numbers: np.ndarray[Any, Any], queues: Sequence[MessageQueue]
    ) -> np.ndarray[Any, Any] | None:
        """The index of the queue of each row, -1 for any; None if all rows may go anywhere."""
        import numpy as np

        found: np.ndarray[Any, Any] | None = None
        if rows.shard_keys is not None:
            keys = take_rows(rows.shard_keys, numbers).dictionary_encode()
            by_key = [
                _ANY if not key else self._rule(key, len(queues))
                for key in keys.dictionary.to_pylist()
            ]
            codes = keys.indices.fill_null(len(by_key)).to_numpy()
            found = np.array([*by_key, _ANY])[codes]
        if rows.brokers is not None and rows.queue_ids is not None:
            known = {(queue.broker_name, queue.queue_id): at for at, queue in enumerate(queues)}
            brokers = take_rows(rows.brokers, numbers).to_pylist()
            ids = take_rows(rows.queue_ids, numbers).to_pylist()
            named = np.array(
                [_named(known, pair) for pair in zip(brokers, ids, strict=True)], np.int64
            )
            found = named if found is None else np.where(named == _ANY, found, named)
        return None if found is None or (found == _ANY).all() else found

    # ---- requests --------------------------------------------------------------------------------

    def requests_of(
        self, rows: Rows, queues: Mapping[str, Sequence[MessageQueue]]
    ) -> Iterator[RowRequest]:
        """The requests for these rows; those of one queue in the order of its rows."""
        for target, numbers in self.targets(rows, queues):
            for is_alone, run in runs_of(rows, target, numbers):
                if is_alone:
                    for row in self.rows(rows, target, run):
                        size = len(row.body) + len(row.text)
                        yield RowRequest(target, row.parcel(), size, rows, (row.number,))
                else:
                    yield from self._batches(rows, target, run)

    def _batches(
        self, rows: Rows, target: Target, numbers: np.ndarray[Any, Any]
    ) -> Iterator[RowRequest]:
        import numpy as np

        options = self._options
        data, ends = batch_parts(
            take_rows(rows.bodies, numbers), take_rows(rows.texts, numbers), rows.flags[numbers]
        )
        first = 0
        while first < len(numbers):
            most = ends[first] + options.batch_size_max
            last = int(np.searchsorted(ends, most, side="right")) - 1
            last = max(first + 1, min(last, first + options.batch_count_max, len(numbers)))
            body = bytes(data[ends[first] : ends[last]])
            part = numbers[first:last].tolist()
            parcel = Parcel(
                messages=(Message(target.topic, b""),) * len(part),
                properties=_BATCH_TEXT,
                body=body,
                code=RequestCode.SEND_BATCH_MESSAGE,
            )
            yield RowRequest(target, parcel, len(body), rows, part)
            first = last

    def rows(
        self, rows: Rows, target: Target, numbers: np.ndarray[Any, Any] | Sequence[int]
    ) -> Iterator[Row]:
        """These rows as single messages."""
        import numpy as np

        chosen = np.asarray(numbers)
        bodies = take_rows(rows.bodies, chosen).to_pylist()
        texts = take_rows(rows.texts, chosen).to_pylist()
        for number, body, text in zip(chosen.tolist(), bodies, texts, strict=True):
            sys_flag = 0
            if len(body) >= self._options.compress_over:
                body, sys_flag = compress(body, self._compression)
            position = rows.first + int(rows.positions[number])
            yield Row(number, position, target, body, sys_flag, text, int(rows.flags[number]))


def runs_of(
    rows: Rows, target: Target, numbers: np.ndarray[Any, Any]
) -> list[tuple[bool, np.ndarray[Any, Any]]]:
    """Split the rows of a destination into those sent alone and those sent in batches.

    The rows of a queue keep their order.
    """
    import numpy as np

    alone = rows.alone[numbers]
    if target.queue is None:  # no order to keep: fewer and larger batches
        runs = [numbers[~alone], numbers[alone]]
    else:
        runs = np.split(numbers, np.flatnonzero(np.diff(alone)) + 1)
    return [(bool(rows.alone[run[0]]), run) for run in runs if len(run)]


def _named(known: Mapping[tuple[str, int], int], pair: tuple[str | None, int | None]) -> int:
    """The index of the queue that a row names; raises BadRowError if there is none."""
    broker, queue_id = pair
    if broker is None or queue_id is None:
        return _ANY
    if (broker, queue_id) not in known:
        raise BadRowError(
            f"a row is for queue {queue_id} of {broker}, which its topic does not have",
            hint="without explicitQueue rows go to any queue",
        )
    return known[broker, queue_id]


def take_rows(column: pa.Array, numbers: np.ndarray[Any, Any]) -> pa.Array:
    """Entries of a column; without a copy if all are taken."""
    import pyarrow as pa

    return column if len(numbers) == len(column) else column.take(pa.array(numbers))
