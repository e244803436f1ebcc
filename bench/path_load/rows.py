"""The rows of :mod:`bench.path`: which frames are replayed, how many in a write.

A row becomes a :class:`Work` for one topic. Its bytes are built before anything is timed, except
for commits, which name the offset that the broker gave to their half message. Every reply is
checked while it is counted, and :meth:`Work.check` asks the broker how many messages it has.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, TypeVar

from bench.harness import BenchError
from bench.path_load.connection import MAX_OFFSET, Connection, max_offset, request_frame
from bench.path_load.frames import CURRENT, OLDER, load, unique_key

T = TypeVar("T")

QUEUES: Final = 4
BATCH: Final = 32
IN_A_READ: Final = 16
PULL_POSITIONS: Final = 100
WARM_UPS: Final = 2
DISPATCH_DEADLINE_S: Final = 10.0
#: The broker holds a pull within this time.
HELD_S: Final = 0.000_5
#: ``msgId`` ends with the offset in the log, 8 bytes in hex.
HALF_REPLY: Final = (
    re.compile(rb'"msgId":"[0-9A-F]*([0-9A-F]{16})"'),
    re.compile(rb'"queueOffset":"(\d+)"'),
)
#: Kinds of rows of which each frame brings or fetches :data:`BATCH` messages.
MANY: Final = ("batch", "pull", "pop", "pop written")


@dataclass(frozen=True)
class Row:
    """One row: ``writes`` writes make a turn (about 12 ms), each of ``in_a_read`` frames."""

    name: str
    kind: str  #: "send", "batch", "pull", "pop", "pop written", "wake" or "half"
    writes: int
    in_a_read: int = 1
    body_size: int = 100
    version: str = CURRENT  #: of the client that was recorded

    @property
    def units(self) -> int:
        """Messages in a turn; transactions for ``half``."""
        return self.writes * self.in_a_read * (BATCH if self.kind in MANY else 1)

    @property
    def unit(self) -> str:
        return "transaction" if self.kind == "half" else "message"


ROWS: Final = (
    Row("send 100 B, one at a time", "send", 150),
    Row("send 100 B, 16 in a read", "send", 40, IN_A_READ),
    Row("send 1 KB, one at a time", "send", 150, 1, 1024),
    Row("send 1 KB, 16 in a read", "send", 30, IN_A_READ, 1024),
    Row("batch of 32", "batch", 50),
    Row("pull of 32", "pull", 200),
    Row("pop 32 + acks", "pop", 20),
    Row("pop 32 + acks, not merging", "pop written", 10),
    Row("send, wake and hold a pull", "wake", 60, 1, 1024),
    Row("half and commit, one at a time", "half", 75),
    Row("half and commit, 16 in a read", "half", 16, IN_A_READ),
    *(
        Row(f"send 100 B, {how}, {version}", "send", writes, count, version=version)
        for version in OLDER
        for how, writes, count in (("one at a time", 150, 1), ("16 in a read", 25, IN_A_READ))
    ),
)


def select(patterns_text: str) -> list[Row]:
    """The rows that match one of the patterns; all without one.

    Names of rows have commas, so a pattern that is a whole name counts as one.
    """
    if patterns_text in (row.name for row in ROWS):
        return [row for row in ROWS if row.name == patterns_text]
    patterns = [pattern.strip() for pattern in patterns_text.split(",") if pattern.strip()]
    for pattern in patterns:
        if not any(fnmatchcase(row.name, pattern) for row in ROWS):
            names = "; ".join(row.name for row in ROWS)
            raise BenchError(f"no row matches {pattern}; there are: {names}")
    return [row for row in ROWS if any(fnmatchcase(row.name, p) for p in patterns or ["*"])]


def chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """The items in order, ``size`` at a time."""
    return [items[start : start + size] for start in range(0, len(items), size)]


class Work:
    """Sends the frames of one row, to any number of brokers."""

    def __init__(self, row: Row, topic: str) -> None:
        self.row = row
        self.topic = topic
        self.writes = list(map(b"".join, chunks(self._frames(), row.in_a_read)))

    def _frames(self) -> list[bytes]:
        row = self.row
        frames = load(row.version, self.topic)
        numbers = range(row.writes * row.in_a_read)
        if row.kind == "batch":
            return [frames["batch"].batch(n, BATCH, e=n % QUEUES) for n in numbers]
        send = frames[f"send {row.body_size}"]
        return [send.frame(n, e=n % QUEUES) for n in numbers]

    def prepare(self, broker: Connection) -> None:
        """Warm up: the topic comes into being, and the interpreter has specialized the code."""
        for _ in range(WARM_UPS):
            self.run(broker)

    def run(self, broker: Connection) -> None:
        """Send everything once."""
        count = self.row.in_a_read
        for write in self.writes:
            broker.exchange(write, count)

    def check(self, broker: Connection, runs: int) -> None:
        """Raise BenchError unless the broker has the messages of so many runs and the warm-up."""
        expected = (WARM_UPS + runs) * self.row.units
        deadline = time.monotonic() + DISPATCH_DEADLINE_S
        while (found := self.stored(broker)) != expected:
            if time.monotonic() > deadline:
                raise BenchError(f"{self.row.name}: sent {expected} messages, {found} are there")
            time.sleep(0.01)

    def stored(self, broker: Connection) -> int:
        return sum(max_offset(broker, self.topic, queue_id) for queue_id in range(QUEUES))


class PullWork(Work):
    """Pulls through one queue, 32 messages at a time, as a push consumer does."""

    def pull(self, number: int, offset: int) -> bytes:
        frames = load(self.row.version, self.topic)
        # The client changed its subscription between the recorded heartbeat and the recorded pull.
        (group,) = json.loads(frames["heartbeat"].body)["consumerDataSet"]
        topics = {each["topic"]: each["subVersion"] for each in group["subscriptionDataSet"]}
        version = topics[self.topic]
        return frames["pull"].frame(number, queueOffset=offset, subVersion=version)

    def _frames(self) -> list[bytes]:
        offsets = itertools.cycle(range(0, PULL_POSITIONS * BATCH, BATCH))
        count = self.row.writes * self.row.in_a_read
        return [self.pull(number, next(offsets)) for number in range(count)]

    def prepare(self, broker: Connection) -> None:
        """Fill the queue, and join the group: a pull without a subscription needs a member."""
        frames = load(self.row.version, self.topic)
        for number in range(PULL_POSITIONS):
            broker.exchange(frames["batch"].batch(number, BATCH, e=0), 1)
        broker.exchange(frames["heartbeat"].frame(0), 1)
        super().prepare(broker)

    def check(self, broker: Connection, runs: int) -> None:
        """Pulling changes nothing: what was filled in is there."""
        full = PULL_POSITIONS * BATCH
        if (found := self.stored(broker)) != full:
            raise BenchError(f"{self.row.name}: {found} messages to pull instead of {full}")


class WakeWork(PullWork):
    """Messages for a consumer that waits: each wakes its pull, which then comes again.

    The broker reads the pull by itself, as it does at everyday rates: this process sleeps before it
    sends the message.
    """

    def _frames(self) -> list[bytes]:
        return Work._frames(self)

    def prepare(self, broker: Connection) -> None:
        """Make the topic by sends alone, join the group, and warm up."""
        Work.run(self, broker)
        broker.exchange(load(self.row.version, self.topic)["heartbeat"].frame(0), 1)
        for _ in range(WARM_UPS - 1):
            self.run(broker)

    def run(self, broker: Connection) -> None:
        offsets = [max_offset(broker, self.topic, queue_id) for queue_id in range(QUEUES)]
        for number, write in enumerate(self.writes):
            queue_id = number % QUEUES
            broker.exchange(self._pull_of(queue_id, number, offsets[queue_id]), 0)
            time.sleep(HELD_S)
            broker.exchange(write, 2)
            offsets[queue_id] += 1

    def _pull_of(self, queue_id: int, number: int, offset: int) -> bytes:
        return self.pull(number, offset).replace(b'"queueId":"0"', b'"queueId":"%d"' % queue_id)

    def check(self, broker: Connection, runs: int) -> None:
        Work.check(self, broker, runs)


class TransactionWork(Work):
    """Half messages, and commits that name the offsets of the replies.

    Commits are one-way. Those of one write leave together with the half messages of the next, so
    that the broker reads them together every time; the request for an offset at the end is
    answered when the last of them is done.
    """

    def __init__(self, row: Row, topic: str) -> None:
        frames = load(row.version, topic)
        self._half, self._commit = frames["half"], frames["commit"]
        self._end = request_frame(MAX_OFFSET, {"topic": topic, "queueId": "0"})
        super().__init__(row, topic)

    def _frames(self) -> list[bytes]:
        numbers = range(self.row.writes * self.row.in_a_read)
        frames = [self._half.frame(number, e=number % QUEUES) for number in numbers]
        self._keys = chunks([unique_key(frame) for frame in frames], self.row.in_a_read)
        return frames

    def run(self, broker: Connection) -> None:
        commits = b""
        for write, keys in zip(self.writes, self._keys, strict=True):
            replies = broker.exchange(commits + write, self.row.in_a_read)
            commits = b"".join(map(self._commit_frame, replies, keys))
        broker.exchange(commits + self._end, 1)

    def _commit_frame(self, reply: bytes, key: str) -> bytes:
        log_offset, queue_offset = (pattern.search(reply) for pattern in HALF_REPLY)
        if log_offset is None or queue_offset is None:
            raise BenchError(f"a half message was answered by {reply!r}")
        return self._commit.frame(
            1,
            commitLogOffset=int(log_offset[1], 16),
            tranStateTableOffset=int(queue_offset[1]),
            msgId=key,
            transactionId=key,
        )


def make_work(row: Row, topic: str) -> Work:
    """What replays the row."""
    from bench.path_load.pop_work import PopWork  # which is a Work

    kinds = {
        "pull": PullWork,
        "pop": PopWork,
        "pop written": PopWork,
        "wake": WakeWork,
        "half": TransactionWork,
    }
    return kinds.get(row.kind, Work)(row, topic)
