"""Rows cut into requests: what goes together, and to which queue.

Rows of one topic and one destination go together, up to ``batchBytes`` and ``batchRows``. The
destination is a queue where a sharding key or the columns ``brokerName`` and ``queueId`` name one;
the requests of such a queue are a *lane* and follow each other in the order of the rows. All other
rows go to any queue. Delayed and large rows travel alone, the large ones compressed.
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

#: What every broker may be told about a batch as a whole.
_BATCH_TEXT: Final = "WAIT\x01true\x02"
_ANY: Final = -1


class Target(msgspec.Struct, frozen=True):
    """Where rows go: a topic, and a queue of it where only that one will do."""

    topic: str  #: as the user knows it
    queue: MessageQueue | None = None  #: as brokers know it


class Row(msgspec.Struct, frozen=True):
    """One row as a message."""

    number: int  #: among the good rows of its batch
    position: int  #: among all rows of the task
    target: Target
    body: bytes
    sys_flag: int
    text: str
    flag: int

    def parcel(self, suffix: str = "", sys_flag: int = 0) -> Parcel:
        """The row as a request by itself; ``suffix`` are further properties."""
        return Parcel(
            messages=(Message(self.target.topic, b""),),
            properties=self.text + suffix,
            body=self.body,
            sys_flag=self.sys_flag | sys_flag,
            flag=self.flag,
        )


class Load(msgspec.Struct, frozen=True):
    """One request: some rows of one destination."""

    target: Target
    parcel: Parcel
    size: int
    rows: Rows
    numbers: Sequence[int]  #: of its rows among the good ones

    @property
    def count(self) -> int:
        return len(self.numbers)


class Cutter:
    """Cuts rows into requests."""

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

    def targets(
        self, rows: Rows, queues: Mapping[str, Sequence[MessageQueue]]
    ) -> Iterator[tuple[Target, np.ndarray[Any, Any]]]:
        """The numbers of the rows of each destination; ``queues`` are those of each topic."""
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
        """The queue of each row, -1 for any; None if all may go anywhere."""
        import numpy as np

        found: np.ndarray[Any, Any] | None = None
        if rows.shard_keys is not None:
            keys = some(rows.shard_keys, numbers).dictionary_encode()
            by_key = [
                _ANY if not key else self._rule(key, len(queues))
                for key in keys.dictionary.to_pylist()
            ]
            codes = keys.indices.fill_null(len(by_key)).to_numpy()
            found = np.array([*by_key, _ANY])[codes]
        if rows.brokers is not None and rows.queue_ids is not None:
            known = {(queue.broker_name, queue.queue_id): at for at, queue in enumerate(queues)}
            brokers = some(rows.brokers, numbers).to_pylist()
            ids = some(rows.queue_ids, numbers).to_pylist()
            named = np.array(
                [_named(known, pair) for pair in zip(brokers, ids, strict=True)], np.int64
            )
            found = named if found is None else np.where(named == _ANY, found, named)
        return None if found is None or (found == _ANY).all() else found

    # ---- requests --------------------------------------------------------------------------------

    def cut(self, rows: Rows, queues: Mapping[str, Sequence[MessageQueue]]) -> Iterator[Load]:
        """All requests; those of one queue in the order of its rows."""
        for target, numbers in self.targets(rows, queues):
            for is_alone, run in runs_of(rows, target, numbers):
                if is_alone:
                    for row in self.rows(rows, target, run):
                        size = len(row.body) + len(row.text)
                        yield Load(target, row.parcel(), size, rows, (row.number,))
                else:
                    yield from self._batches(rows, target, run)

    def _batches(self, rows: Rows, target: Target, numbers: np.ndarray[Any, Any]) -> Iterator[Load]:
        import numpy as np

        options = self._options
        data, ends = batch_parts(
            some(rows.bodies, numbers), some(rows.texts, numbers), rows.flags[numbers]
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
            yield Load(target, parcel, len(body), rows, part)
            first = last

    def rows(
        self, rows: Rows, target: Target, numbers: np.ndarray[Any, Any] | Sequence[int]
    ) -> Iterator[Row]:
        """Rows one by one."""
        import numpy as np

        chosen = np.asarray(numbers)
        bodies = some(rows.bodies, chosen).to_pylist()
        texts = some(rows.texts, chosen).to_pylist()
        for number, body, text in zip(chosen.tolist(), bodies, texts, strict=True):
            sys_flag = 0
            if len(body) >= self._options.compress_over:
                body, sys_flag = compress(body, self._compression)
            position = rows.first + int(rows.positions[number])
            yield Row(number, position, target, body, sys_flag, text, int(rows.flags[number]))


def runs_of(
    rows: Rows, target: Target, numbers: np.ndarray[Any, Any]
) -> list[tuple[bool, np.ndarray[Any, Any]]]:
    """The rows of a destination by whether each travels alone; in their order if that counts."""
    import numpy as np

    alone = rows.alone[numbers]
    if target.queue is None:  # no order: batches stay whole
        runs = [numbers[~alone], numbers[alone]]
    else:
        runs = np.split(numbers, np.flatnonzero(np.diff(alone)) + 1)
    return [(bool(rows.alone[run[0]]), run) for run in runs if len(run)]


def _named(known: Mapping[tuple[str, int], int], pair: tuple[str | None, int | None]) -> int:
    """The index of a queue that a row names; raises BadRowError if there is none."""
    broker, queue_id = pair
    if broker is None or queue_id is None:
        return _ANY
    if (broker, queue_id) not in known:
        raise BadRowError(
            f"a row is for queue {queue_id} of {broker}, which its topic does not have",
            hint="leave explicitQueue out, and any queue will do",
        )
    return known[broker, queue_id]


def some(column: pa.Array, numbers: np.ndarray[Any, Any]) -> pa.Array:
    """Some entries of a column; all of them cost nothing."""
    import pyarrow as pa

    return column if len(numbers) == len(column) else column.take(pa.array(numbers))
