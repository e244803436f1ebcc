"""One list of requests played against a fresh broker, and everything that it leaves behind.

:func:`play` starts a broker on the virtual clock, the memory network and a disk in memory, stores
the messages that requests refer to, holds a pull on some queues and writes the requests in one of
four ways (:class:`Way`). The :class:`Outcome` has the answers, the records of the log, the entries
of queues and index, topics, counters, metrics, and which pulls were woken by what.

**What is masked.** Nothing, as long as the order of the log is given: log offsets, queue offsets,
store times and generated unique ids are then the same numbers in every way, and are compared as
such. Requests that are sent back (36) are handled by tasks, and in a run come after the sends
behind them. With one of these in the list, a log offset is replaced by the name of the record that
is there (``a0, a1, ...`` in order of the log, ``b0, ...`` for copies of what was sent back), and a
queue offset by ``shared`` where the queue has such a copy. Always left out are the time series that
depend on loop turns and on the disk (:data:`UNSTEADY_METRICS`) and the ``maxOffset`` in the answer
to a pull, which tells how much has arrived since.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from skylark.broker import config as broker_config
from skylark.broker.api import SendRequest
from skylark.broker.pull import handlers as pull_handlers
from skylark.broker.send.handlers import SendCodec
from skylark.broker.send.message_policy import DELAY
from skylark.broker.send.send_step import SendStep
from skylark.broker.transaction.recent_halves import RecentHalves
from skylark.core.hashing import decode_offset_id
from skylark.core.names import HALF_TOPIC
from skylark.net import dispatch
from skylark.store import reput
from skylark.store.config_tables import TopicTable
from skylark.store.timer.timer_store import TimerOptions
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire import command_codec
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.command_codec import ShapedResponse
from skylark.wire.frame import FrameBuffer, encode_frame
from skylark.wire.header_layout import LayoutTable
from skylark.wire.message import MessageRecord, decode_record, iter_records
from tests.property.send_requests import (
    BODY_SIZE_MAX,
    GROUP,
    HALVES,
    MESSAGES,
    RETURNING_GROUP,
    TOPICS,
    Place,
    Places,
    Request,
    SendBack,
)
from tests.unit.broker.stats.test_metrics_exporter import ON, scrape
from tests.unit.broker.stored import OWN, SUSPEND, Stored, stored

#: Opaque of the first message that is stored before the requests, and of the first pull.
SEED_OPAQUE: Final = 1_000
PULL_OPAQUE: Final = 2_000
#: Long enough for op messages (3 s) and for the first delay level.
SETTLE_S: Final = 4
#: What all brokers are started with. Small files, seldom synced, make them quick.
GIVEN: Final = {
    **ON,
    "enableMixedMessageType": "true",
    "flushIntervalCommitLog": "60000",
    "flushIntervalConsumeQueue": "60000",
    "mappedFileSizeCommitLog": str(256 << 10),
    "mappedFileSizeConsumeQueue": "6000",
    "mappedFileSizeTimerLog": "65000",
    "maxHashSlotNum": "50",
    "maxIndexNum": "1000",
    "maxMessageSize": str(BODY_SIZE_MAX),
    "traceTopicEnable": "true",
}
SMALL_TIMER: Final = partial(TimerOptions, slot_count=7_200)
UNSTEADY_METRICS: Final = ("skylark_loop_turn_ms", "rocketmq_storage_flush_behind_bytes")
#: Queues on which a pull is held, and the tags that it wants.
PULLS: Final = (
    ("T", 0, "*"),
    ("T", 0, "A"),
    ("T", 1, "*"),
    ("Other", 0, "*"),
    ("Fifo", 0, "*"),
    ("Mixed", 0, "*"),
    (f"%RETRY%{GROUP}", 0, "*"),
    (f"%DLQ%{GROUP}", 0, "*"),
)
_CHECKSUM: Final = re.compile(rb"__CRC32#\x01[0-9]{10}\x02\Z")
_KEY_NAMES: Final = ("UNIQ_KEY", "KEYS")


class Way(enum.Enum):
    """How requests reach the broker."""

    #: One by one, with every accelerated form off (:func:`_plain_forms`): it defines the meaning.
    PLAIN = "plain"
    #: One by one, each answered before the next is written.
    ALONE = "alone"
    #: All in one write.
    RUN = "in a run"
    #: All of them, cut into pieces at any byte.
    SPLIT = "split"


@dataclass(frozen=True)
class Case:
    """What is played."""

    requests: Sequence[Request]
    settings: Mapping[str, str] = field(default_factory=dict)
    #: Whether each request is timed. If not, answers may leave as frames that were encoded before.
    is_timed: bool = True
    #: Where the bytes of all requests are cut, in shares of 10 000.
    cuts: tuple[int, ...] = ()

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the log is that of the requests in every way."""
        return not any(isinstance(request, SendBack) for request in self.requests)


@dataclass
class Outcome:
    """What was answered, and what is in the broker afterwards."""

    answers: dict[Any, Any]
    records: dict[Any, Any]
    queues: dict[Any, Any]
    index: dict[Any, Any]
    topics: dict[Any, Any]
    counters: dict[Any, Any]
    metrics: dict[Any, Any]
    pulls: dict[Any, Any]


def differences(expected: Outcome, found: Outcome) -> list[str]:
    """Where two outcomes differ, a line each: ``section/key: expected, found``."""
    lines = []
    for section in fields(Outcome):
        one, other = getattr(expected, section.name), getattr(found, section.name)
        lines += [
            f"{section.name}/{key}: {one.get(key)!r}, {other.get(key)!r}"
            for key in {**one, **other}
            if one.get(key) != other.get(key)
        ]
    return lines


# ---- playing -------------------------------------------------------------------------------------


async def play(
    case: Case, way: Way, frames: Sequence[bytes] | None = None
) -> tuple[Outcome, list[bytes]]:
    """The outcome, and the frames that were written.

    Without ``frames``, for a way that goes one by one, each is made when those before it have been
    answered: requests may refer to what these have stored.
    """
    command_codec._layouts = LayoutTable()
    async with _small_broker(case.settings) as world, AsyncExitStack() as stack:
        if way is Way.PLAIN:
            stack.enter_context(_plain_forms(world))
        add_topics(world)
        await world.clock.drain()
        if not case.is_timed:
            _stop_timing(world)
        peer = await Peer.connect(world)
        places = await _store_first(world, peer)
        pulls = await Peer.connect(world)
        await _hold_pulls(world, pulls)
        start = world.features.store.log.max_offset
        if way in (Way.RUN, Way.SPLIT):
            assert frames is not None, "they are made one by one"
            written = list(frames)
            for piece in pieces(b"".join(frames), case.cuts if way is Way.SPLIT else ()):
                await peer.write(piece)
        else:
            written = await _play_one_by_one(case, way, world, peer, places, frames)
        await world.clock.drain()
        if case.is_ordered:
            await world.clock.advance(SETTLE_S)
        return await _Reading(world, start, case.is_ordered).outcome(peer, pulls), written


@asynccontextmanager
async def _small_broker(given: Mapping[str, str]) -> AsyncIterator[Stored]:
    with patch.object(broker_config, "TimerOptions", SMALL_TIMER):
        async with stored(Path("/"), FaultyFileSystem(), **{**GIVEN, **given}) as world:
            yield world


@contextmanager
def _plain_forms(world: Stored) -> Iterator[None]:
    """Turn off whatever is quicker than the form that defines the meaning."""
    for server in world.features.endpoint.servers:
        server.dispatcher.runs.clear()
    sends = world.features.puts.pipeline._steps[SendRequest]
    assert isinstance(sends, SendStep)
    with ExitStack() as stack:
        for target, name, plain in (
            # Properties are taken apart and written anew, also where they ask for nothing.
            (sends, "_scan", lambda _text: (None, DELAY)),
            # Half messages are read from the log.
            (RecentHalves, "find", lambda _self, _header: None),
            # Queue and index entries are made one by one, each from its own record.
            (reput, "_ALIKE_MIN", sys.maxsize),
            (reput.Reput, "_add_entries", lambda *_: False),
            # Answers are written by the plain codec, from a map of their fields.
            (SendCodec, "_reply", SendCodec._command),
            (dispatch, "write", _write_plainly),
            (pull_handlers, "write", _write_plainly),
        ):
            stack.enter_context(patch.object(target, name, plain))
        yield


def _write_plainly(response: Command | ShapedResponse) -> bytes:
    return encode_frame(response.command() if isinstance(response, ShapedResponse) else response)


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """The bytes, cut at these shares of 10 000."""
    places = [0, *sorted({len(data) * cut // 10_000 for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places) if a < b]


async def _play_one_by_one(
    case: Case,
    way: Way,
    world: Stored,
    peer: Peer,
    places: Places,
    frames: Sequence[bytes] | None,
) -> list[bytes]:
    written = []
    for opaque, request in enumerate(case.requests):
        if way is Way.PLAIN:
            command_codec._layouts = LayoutTable()
        frame = request.frame(opaque, places) if frames is None else frames[opaque]
        await peer.write(frame)
        written.append(frame)
        if case.is_ordered:
            places.latest_half = _half_of(world, peer, opaque) or places.latest_half
    return written


def _half_of(world: Stored, peer: Peer, opaque: int) -> Place | None:
    """Where the half message is that a request has stored, if it has."""
    ext = peer.answers[opaque].ext or {} if opaque in peer.answers else {}
    if "msgId" not in ext or "," in ext["msgId"]:
        return None
    place = _place(ext)
    return place if _record_at(world, place.log_offset).topic == HALF_TOPIC else None


def _place(ext: Mapping[str, str]) -> Place:
    log_offset = decode_offset_id(ext["msgId"]).log_offset
    return Place(log_offset, int(ext["queueOffset"]), ext.get("transactionId", ""))


def _record_at(world: Stored, log_offset: int) -> MessageRecord:
    lease = world.features.store.reader.record(log_offset)
    assert lease is not None
    with lease:
        return decode_record(lease.view)


class Peer(asyncio.Protocol):
    """A connection that writes any bytes, and keeps the answers."""

    def __init__(self, clock_drain: Callable[[], Any]) -> None:
        self.answers: dict[int, Command] = {}
        self._drain = clock_drain
        self._frames = FrameBuffer()
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def connect(cls, world: Stored) -> Peer:
        host, _, port = world.address.rpartition(":")
        make = partial(cls, world.clock.drain)
        _, peer = await world.network.connect(make, host, int(port), timeout_s=1, clock=world.clock)
        await world.clock.drain()
        return peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for answer in self._frames.feed(data):
            assert answer.opaque not in self.answers, f"{answer.opaque} was answered twice"
            self.answers[answer.opaque] = answer

    async def write(self, data: bytes) -> None:
        """Write, and wait until the broker has done everything that this leads to."""
        assert self._transport is not None
        self._transport.write(data)
        await self._drain()


def add_topics(world: Stored) -> None:
    """Topics and groups that all brokers have."""
    for name, changes in TOPICS.items():
        given: dict[str, Any] = {"read_queue_nums": 4, "write_queue_nums": 4, **changes}
        topic = TopicConfig(topic_name=name, **given)
        if "cleanup.policy" in topic.attributes:
            world.features.topics.table.load(TopicTable(topic_config_table={name: topic}))
        else:
            world.features.topics.table.update(topic)
    for group in (GROUP, RETURNING_GROUP):
        config = SubscriptionGroupConfig(group_name=group, retry_max_times=2, retry_queue_nums=2)
        world.features.groups.table.update(config)
    none = SubscriptionGroupConfig(group_name="None", retry_queue_nums=0)
    world.features.groups.table.update(none)


def _stop_timing(world: Stored) -> None:
    times = world.features.stats.exporter.rpc_times
    for server in world.features.endpoint.servers:
        dispatcher = server.dispatcher
        dispatcher.interceptors = tuple(it for it in dispatcher.interceptors if it is not times)


async def _store_first(world: Stored, peer: Peer) -> Places:
    """Store the messages that requests refer to; none where half messages are refused."""
    places = Places([], [])
    opaque = SEED_OPAQUE
    for sends, found in ((MESSAGES, places.messages), (HALVES, places.halves)):
        for send in sends:
            await peer.write(send.frame(opaque, places))
            ext = peer.answers[opaque].ext or {}
            found.append(_place(ext) if "msgId" in ext else Place(0, 0, "none"))
            opaque += 1
    return places


async def _hold_pulls(world: Stored, peer: Peer) -> None:
    for index, (topic, queue_id, tags) in enumerate(PULLS):
        offset = world.features.store.reader.max_offset(topic, queue_id)
        ext = world.pull_request(
            offset,
            topic=topic,
            queueId=queue_id,
            consumerGroup=f"Pulls-{index}",
            maxMsgNums=1,
            sysFlag=OWN | SUSPEND,
            subscription=tags,
        )
        request = Command(code=RequestCode.PULL_MESSAGE, opaque=PULL_OPAQUE + index, ext=ext)
        await peer.write(encode_frame(request))
    assert not peer.answers, "these pulls wait for what is to come"


# ---- reading what is left ------------------------------------------------------------------------


class _Reading:
    """Reads a broker; offsets become names where the order of the log is not given."""

    def __init__(self, world: Stored, start: int, is_ordered: bool) -> None:
        self._world = world
        self._is_ordered = is_ordered
        self._records = list(self._records_from(start))
        self._names = self._named()
        returned = {MESSAGES[index].body(SEED_OPAQUE + index) for index in range(len(MESSAGES))}
        self._shared = {
            (record.topic, record.queue_id)
            for record in self._records
            if not is_ordered and record.body in returned
        }

    def _records_from(self, start: int) -> Iterable[MessageRecord]:
        end = self._world.features.store.log.max_offset
        while start < end:
            record = _record_at(self._world, start)
            yield record
            start += record.total_size

    def _named(self) -> dict[int, str]:
        names: dict[int, str] = {}
        if self._is_ordered:
            return names
        bodies = {MESSAGES[index].body(SEED_OPAQUE + index) for index in range(len(MESSAGES))}
        counts = {"a": 0, "b": 0}
        for record in self._records:
            kind = "b" if record.body in bodies else "a"
            names[record.log_offset] = f"{kind}{counts[kind]}"
            counts[kind] += 1
        return names

    def _name(self, log_offset: int) -> int | str:
        return self._names.get(log_offset, log_offset)

    def _offset(self, topic: str, queue_id: int, queue_offset: int) -> int | str:
        return "shared" if (topic, queue_id) in self._shared else queue_offset

    async def outcome(self, peer: Peer, pulls: Peer) -> Outcome:
        answers = {n: self._answer(each) for n, each in peer.answers.items() if n < SEED_OPAQUE}
        records = [self._record(record) for record in self._records]
        if not self._is_ordered:
            records.sort(key=lambda record: str(record["log_offset"]))
        return Outcome(
            answers=answers,
            records={record["log_offset"]: record for record in records},
            queues=self._queues(),
            index=self._index(),
            topics=self._topics(),
            counters=self._counters(),
            metrics=await self._metrics(),
            pulls={n: self._pull(answer) for n, answer in pulls.answers.items()},
        )

    def _record(self, record: MessageRecord) -> dict[str, Any]:
        found = {name: getattr(record, name) for name in record.__struct_fields__ if name[0] != "_"}
        place = record.topic, record.queue_id
        found["log_offset"] = self._name(record.log_offset)
        found["queue_offset"] = self._offset(*place, record.queue_offset)
        found["prepared_transaction_offset"] = self._name(record.prepared_transaction_offset)
        if self._names:  # the checksum of a record covers its offsets
            found["raw_properties"] = _CHECKSUM.sub(b"", record.raw_properties)
        if place in self._shared:
            queue = self._world.features.store.queues.by_topic[record.topic][record.queue_id]
            entry = queue.read_entry(record.queue_offset)
            assert entry is not None
            assert entry.log_offset == record.log_offset
        return found

    def _answer(self, answer: Command) -> dict[str, Any]:
        ext = dict(answer.ext or {})
        if self._names and "msgId" in ext:
            offsets = [decode_offset_id(each).log_offset for each in ext["msgId"].split(",")]
            ext["msgId"] = ",".join(str(self._name(offset)) for offset in offsets)
            record = _record_at(self._world, offsets[0])
            queue_offset = int(ext["queueOffset"])
            ext["queueOffset"] = str(self._offset(record.topic, record.queue_id, queue_offset))
        return _fields(answer) | {"ext": ext, "body": answer.body}

    def _pull(self, answer: Command) -> dict[str, Any]:
        topic, queue_id, _ = PULLS[answer.opaque - PULL_OPAQUE]
        if (topic, queue_id) in self._shared:
            return {"code": answer.code}
        ext = dict(answer.ext or {})
        del ext["maxOffset"]
        body = [self._record(record) for record in iter_records(answer.body or b"")]
        return _fields(answer) | {"ext": ext, "body": body}

    def _queues(self) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for topic, by_id in self._world.features.store.queues.by_topic.items():
            for queue_id, queue in by_id.items():
                entries = [
                    queue.read_entry(offset) for offset in range(queue.min_offset, queue.max_offset)
                ]
                named = [entry and (self._name(entry.log_offset), *entry[2:]) for entry in entries]
                if (topic, queue_id) in self._shared:
                    named.sort(key=str)
                found[topic, queue_id] = (queue.next_offset, named)
        return found

    def _index(self) -> dict[Any, Any]:
        found = {}
        for record in self._records:
            texts = [record.properties.get(name, "") for name in _KEY_NAMES]
            for key in {key for text in texts for key in text.split(" ") if key}:
                found[record.topic, key] = self._indexed(record.topic, key)
        return found

    def _indexed(self, topic: str, key: str) -> list[str]:
        result = self._world.features.store.reader.query(topic, key, 64)
        records = [record for view in result.views for record in iter_records(view)]
        result.release()
        names = [str(self._name(record.log_offset)) for record in records]
        return names if self._is_ordered else sorted(names)

    def _topics(self) -> dict[Any, Any]:
        features = self._world.features
        found: dict[Any, Any] = {topic.topic_name: topic for topic in features.topics.table}
        found["groups"] = sorted(features.groups.table.snapshot().subscription_group_table)
        return found

    def _counters(self) -> dict[Any, Any]:
        stats, store = (
            self._world.features.stats.broker_stats,
            self._world.features.stats.store_stats,
        )
        found: dict[Any, Any] = {
            (table.name, key): (meter.count, meter.size, meter.times)
            for table in (stats.topic_puts, stats.send_backs, stats.group_gets)
            for key, meter in table.items()
        }
        found["puts of users, of the system"] = (stats.user_put_count, stats.system_put_count)
        found["puts of the store"] = (store.put_count, store.put_size, store.put_failed_count)
        found["times of puts"] = {ms: n for ms, n in enumerate(store._put_times) if n}
        return found

    async def _metrics(self) -> dict[Any, Any]:
        samples = await scrape(self._world)
        return {
            name: value for name, value in samples.items() if not name.startswith(UNSTEADY_METRICS)
        }


def _fields(answer: Command) -> dict[str, Any]:
    names = ("code", "flag", "language", "opaque", "remark", "serialize_type", "version")
    return {name: getattr(answer, name) for name in names}
