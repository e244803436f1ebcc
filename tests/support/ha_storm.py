"""A master and its slave at work while they, and the link between them, fail: one seeded run.

Senders send numbered messages to a pair (:class:`~tests.support.ha_site.Pair`) with SYNC_MASTER and
``inSyncReplicas=2``; a group consumes them, and a reader pulls from the slave all the time. Trouble
comes, goes, and then there is calm for a while, before the next. The seed decides the trouble and
the flush setting; when exactly it strikes depends on the machine.

What must hold, whatever happens:

* Everything answered with SEND_OK is on both: while the master is dead, the slave alone serves all
  of it; in the end both serve the same, and what was acknowledged is where the senders were told.
* The logs are the same, byte for byte, and no slave has ever said that it diverged.
* No torn record is served: what the slave gives to the reader is whole, and what it has once given
  stays at its place.
* In a calm, from the first success after the trouble on, every send is answered with SEND_OK, and
  group and slave keep up. That begins within :data:`RECOVERY_WITHIN_S` after the trouble.
* Nothing unforeseen is in the logs of the brokers, and in the end they stop in order.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from skylark import aio
from skylark.client.consumer.pull_api import decode_messages
from skylark.client.core.broker_calls import BrokerCalls, PullStatus, open_caller
from skylark.client.core.client_message import Message, MessageExt, SendStatus
from skylark.client.core.client_options import ClientOptions
from skylark.core.errors import SkylarkError
from skylark.core.names import AUTO_CREATE_TOPIC
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.ha_body import HARuntimeInfo
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from skylark.wire.codes import Perm, PullSysFlag, RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import encode_ext
from skylark.wire.headers.admin import CreateTopicRequestHeader
from skylark.wire.headers.pull import PullMessageRequestHeader
from tests.support.client_site import until
from tests.support.crash_series import RunResult, listed
from tests.support.ha_site import TROUBLES, Pair, end_in_order

TOPIC: Final = "Storm"
GROUP: Final = "storm"
QUEUES: Final = 4
SENDERS: Final = 16
PAUSE_S: Final = 0.01  # of a sender, after each message
FAILED_PAUSE_S: Final = 0.05
CALM_COUNT: Final = 40  # messages that a calm lasts
RECOVERY_WITHIN_S: Final = 20.0
KEPT_UP_WITHIN_S: Final = 20.0
ALONE_SHARE: Final = 0.5  # of the runs: a dead master stays away until the slave has shown all

Place = tuple[int, int]  # queue id, queue offset


class StormResult(RunResult, kw_only=True):
    """What happened in a run that went well."""

    troubles: list[str]
    acknowledged: int
    log_size: int
    failed_sends: dict[str, int]
    recovered_s: float  #: the longest time after a trouble until a send succeeded

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {', '.join(self.troubles)}: {self.seconds:.1f} s;"
            f" {self.acknowledged} acknowledged, {self.log_size} bytes; hits: {listed(self.hits)};"
            f" failed sends: {listed(self.failed_sends)}; recovered in {self.recovered_s:.2f} s"
        )


def body_of(number: int) -> bytes:
    """About a kilobyte; one in a hundred is large enough to be compressed."""
    return b"%08d" % number + b"%d." % number * (900 if number % 100 == 7 else number * 31 % 300)


class Books:
    """What was acknowledged, what was seen, and what is wrong."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, Place] = {}
        self.failures: Counter[str] = Counter()
        self.problems: list[str] = []
        self.under_way = 0
        self.window = 0  #: odd: trouble, or not recovered from it yet
        self._next = 0

    def draw(self) -> int:
        self._next += 1
        return self._next - 1

    def number_of(self, message: MessageExt) -> int:
        """Which message this is; a problem if it is not whole."""
        number = int(message.body[:8])
        if message.body != body_of(number):
            self.problems.append(f"{message.queue} {message.queue_offset} is not whole: {number}")
        return number

    def missing(self, seen: dict[Place, int]) -> list[int]:
        """Acknowledged messages that are not where they should be."""
        return [n for n, place in self.acknowledged.items() if seen.get(place) != n]


class Storm:
    """One run."""

    def __init__(self, seed: int, trouble_count: int, folder: Path) -> None:
        self._seed = seed
        rng = random.Random(f"ha storm {seed}")
        self.troubles = rng.sample(TROUBLES, trouble_count)
        self._pair = Pair(folder, rng, sync_flush=seed % 4 != 0)
        self._books = books = Books()
        self._pair.is_busy = lambda: books.under_way > 0
        self._pair.failed_count = books.failures.total
        if rng.random() < ALONE_SHARE:
            self._pair.while_alone = self._slave_alone
        self._read: dict[Place, int] = {}  # by the reader, from the slave
        self._consumed: dict[Place, int] = {}
        self._is_over = False

    async def run(self) -> StormResult:
        clock, books = self._pair.clock, self._books
        began = clock.monotonic()
        longest_s = 0.0
        async with AsyncExitStack() as exits:
            exits.push_async_callback(self._pair.stop)
            await self._pair.start()
            self._caller = await exits.enter_async_context(open_caller())
            self._calls = BrokerCalls(self._caller)
            await self._create_topic()
            options = ClientOptions(
                namesrv=self._pair.namesrv,
                request_timeout=1.0,
                route_interval=0.1,
                heartbeat_interval=0.5,
                offset_interval=0.3,
                pull_error_delay=0.05,
            )
            work = await exits.enter_async_context(asyncio.TaskGroup())
            work.create_task(self._read_slave())
            producer, consumer = self._clients(options)
            exits.push_async_callback(producer.stop)
            await producer.start()
            exits.push_async_callback(consumer.stop)
            await consumer.start()
            senders = [work.create_task(self._send(producer)) for _ in range(SENDERS)]
            exits.callback(self._end_work)
            await self._calm()
            for kind in self.troubles:
                books.window += 1
                await self._pair.strike(kind)
                longest_s = max(longest_s, await self._recover())
                books.window += 1
                await self._calm()
            self._is_over = True
            await asyncio.wait(senders)
            log_end = await self._check_served()
            await end_in_order(self._pair.slave)
            await end_in_order(self._pair.master)
        self._check_logs(log_end)
        assert books.problems == []
        return StormResult(
            seed=self._seed,
            troubles=self.troubles,
            seconds=clock.monotonic() - began,
            acknowledged=len(books.acknowledged),
            log_size=log_end,
            hits={name: count for name, count in self._pair.hits.items() if count},
            failed_sends=dict(books.failures),
            recovered_s=longest_s,
        )

    def _clients(self, options: ClientOptions) -> tuple[aio.Producer, aio.PushConsumer]:
        producer = aio.Producer("storm-producer", options, send_timeout=3.0, batching=False)
        consumer = aio.PushConsumer(
            GROUP, options, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        )
        consumer.subscribe(TOPIC, self._consume, batch=16)
        return producer, consumer

    def _end_work(self) -> None:
        self._is_over = True

    async def _create_topic(self) -> None:
        header = CreateTopicRequestHeader(
            topic=TOPIC,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=QUEUES,
            write_queue_nums=QUEUES,
            perm=Perm.READ | Perm.WRITE,
            topic_filter_type="SINGLE_TAG",
        )
        request = Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=encode_ext(header))
        answer = await self._caller.call(self._pair.master.address, request)
        assert answer.code == ResponseCode.SUCCESS, answer

    # ---- at work ---------------------------------------------------------------------------------

    async def _send(self, producer: aio.Producer) -> None:
        books = self._books
        while not self._is_over:
            number, window = books.draw(), books.window
            books.under_way += 1
            failure: str | None = None
            try:
                result = await producer.send(Message(TOPIC, body_of(number)))
            except SkylarkError as error:
                failure = type(error).__name__
                detail = str(error)
            else:
                if result.status is SendStatus.SEND_OK:
                    books.acknowledged[number] = (result.queue.queue_id, result.queue_offset)
                else:
                    failure = detail = result.status.name
            finally:
                books.under_way -= 1
            if failure is not None:
                books.failures[failure] += 1
                if window == books.window and not window % 2:
                    books.problems.append(f"in calm {window}, {number}: {detail}")
            await self._pair.clock.sleep(PAUSE_S if failure is None else FAILED_PAUSE_S)

    async def _consume(self, messages: list[MessageExt]) -> None:
        for message in messages:
            place = (message.queue_id, message.queue_offset)
            self._consumed[place] = self._books.number_of(message)

    async def _read_slave(self) -> None:
        """Pull from the slave whatever it has, all the time; it may be away."""
        offsets = [0] * QUEUES
        while not self._is_over:
            for queue_id in range(QUEUES):
                try:
                    found = await self._pull(self._pair.slave.address, queue_id, offsets[queue_id])
                except SkylarkError:
                    break  # it is away, or does not know the topic yet
                for message in found:
                    self._note_read(message)
                    offsets[queue_id] = message.queue_offset + 1
            await self._pair.clock.sleep(0.02)

    def _note_read(self, message: MessageExt) -> None:
        place = (message.queue_id, message.queue_offset)
        number = self._books.number_of(message)
        if self._read.setdefault(place, number) != number:
            self._books.problems.append(f"{place} was {self._read[place]}, and is {number}")

    async def _pull(self, address: str, queue_id: int, offset: int) -> list[MessageExt]:
        header = PullMessageRequestHeader(
            consumer_group="reader",
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=1_000,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            bulk=True,
        )
        pulled = await self._calls.pull(address, header, "broker-a", 2.0)
        if pulled.status is not PullStatus.FOUND:
            return []
        queue = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=queue_id)
        messages, error = decode_messages(pulled, queue)
        if error is not None:
            self._books.problems.append(f"{address} served {queue} at {offset}: {error}")
        return messages

    # ---- trouble and calm ------------------------------------------------------------------------

    async def _recover(self) -> float:
        """How long it took until a send succeeded that was begun after the trouble."""
        clock, books = self._pair.clock, self._books
        began = clock.monotonic()
        # Numbers are drawn in order: those from here on are of later sends.
        first = books.draw()
        acknowledged = books.acknowledged
        recovered = await until(
            lambda: acknowledged and next(reversed(acknowledged)) >= first, RECOVERY_WITHIN_S
        )
        assert recovered, self._state("no send succeeds any more")
        return clock.monotonic() - began

    async def _calm(self) -> None:
        books = self._books
        wanted = len(books.acknowledged) + CALM_COUNT
        sent = await until(lambda: len(books.acknowledged) >= wanted, KEPT_UP_WITHIN_S)
        assert sent, self._state("senders are stuck")
        await self._kept_up(self._read, "slave")
        await self._kept_up(self._consumed, "group")
        assert books.problems == [], self._state("a calm is none")

    async def _kept_up(self, seen: dict[Place, int], who: str) -> None:
        """All that was acknowledged until now arrives there."""
        waiting = dict(self._books.acknowledged)

        def has_all() -> bool:
            for number, place in list(waiting.items()):
                if seen.get(place) == number:
                    del waiting[number]
            return not waiting

        kept_up = await until(has_all, KEPT_UP_WITHIN_S, 0.01)
        assert kept_up, self._state(f"the {who} lacks {len(waiting)}: {list(waiting.items())[:9]}")

    async def _slave_alone(self) -> None:
        """The master is dead: what it has acknowledged is at the slave, for readers and group."""
        await self._kept_up(self._read, "slave alone")
        await self._kept_up(self._consumed, "group alone with the slave")
        self._pair.hits["alone"] += 1

    def _state(self, what: str) -> str:
        pair, books = self._pair, self._books
        shown = [f"seed {self._seed}: {what}", f"troubles: {', '.join(self.troubles)}"]
        shown += [f"window {books.window}, failures: {listed(books.failures)}", *books.problems[:9]]
        shown += [str(broker.failure("")) for broker in (pair.master, pair.slave)]
        return "\n".join(shown)

    # ---- what must hold in the end ---------------------------------------------------------------

    async def _check_served(self) -> int:
        """Both serve the same; returns where their logs end."""
        pair = self._pair
        await self._kept_up(self._consumed, "group")
        log_end = await self._common_end()
        served = [await self._all(each.address) for each in (pair.master, pair.slave)]
        assert served[0] == served[1]
        assert self._books.missing(served[0]) == []
        assert self._read.items() <= served[0].items(), "the slave once served something else"
        return log_end

    async def _common_end(self) -> int:
        found: list[int] = []

        async def look() -> bool:
            request = Command(code=RequestCode.GET_BROKER_HA_STATUS)
            answer = await self._caller.call(self._pair.master.address, request)
            status = decode_body(HARuntimeInfo, answer.body or b"{}")
            found[:] = [status.master_commit_log_max_offset]
            return [each.diff for each in status.ha_connection_info] == [0]

        deadline = self._pair.clock.monotonic() + KEPT_UP_WITHIN_S
        while not await look():
            assert self._pair.clock.monotonic() < deadline, self._state("the slave lags")
            await self._pair.clock.sleep(0.01)
        return found[0]

    async def _all(self, address: str) -> dict[Place, int]:
        """All messages that a broker serves; the views of a slave follow its log."""
        places: dict[Place, int] = {}
        deadline = self._pair.clock.monotonic() + KEPT_UP_WITHIN_S
        for queue_id in range(QUEUES):
            queue = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=queue_id)
            end = await self._calls.max_offset(self._pair.master.address, queue)
            offset = 0
            while offset < end:
                assert self._pair.clock.monotonic() < deadline, f"{address}: {offset} of {end}"
                for message in await self._pull(address, queue_id, offset):
                    places[queue_id, message.queue_offset] = self._books.number_of(message)
                    offset = message.queue_offset + 1
        return places

    def _check_logs(self, log_end: int) -> None:
        """The brokers have ended."""
        pair = self._pair
        logs = [log_bytes(each.store, log_end) for each in (pair.master, pair.slave)]
        assert len(logs[0]) == log_end
        assert logs[0] == logs[1], f"the logs differ at {first_difference(*logs)} of {log_end}"
        for broker in (pair.master, pair.slave):
            for path in sorted(broker.folder.glob("*.err")):
                found = re.findall(r".*(?:diverged| CRITICAL |Traceback).*", path.read_text())
                assert not found, f"{path}: {found[:3]}"


def log_bytes(store: Path, log_end: int) -> bytes:
    """The first bytes of a log, from its files."""
    files = sorted((store / "commitlog").iterdir())
    assert int(files[0].name) == 0
    return b"".join(file.read_bytes() for file in files)[:log_end]


def first_difference(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def run_storm(seed: int, trouble_count: int, folder: Path) -> StormResult:
    """One run on a loop of its own."""

    async def run() -> StormResult:
        storm = Storm(seed, trouble_count, folder)
        try:
            return await storm.run()
        except BaseException as error:
            error.add_note(f"seed {seed}: troubles: {', '.join(storm.troubles)}; see {folder}")
            raise

    with asyncio.Runner() as runner:
        return runner.run(run())
