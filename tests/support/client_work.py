"""Producers and consumers that are to survive trouble, and what they have sent and got so far.

:class:`Shape` says which: every kind of sending meets every kind of consuming in thirty seeds.
:class:`Sending` sends numbered messages, each again until it is acknowledged; :class:`Group` is the
group that consumes them. Both keep books and judge nothing but the order
(:mod:`tests.support.client_storm` says what must hold).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from skylark import aio, sync
from skylark.client.core.client_message import (
    Message,
    MessageExt,
    RetryLater,
    SendResult,
    SendStatus,
)
from skylark.client.core.client_options import ClientOptions
from skylark.core.errors import SkylarkError
from skylark.wire.bodies.heartbeat import ConsumeFromWhere

TOPIC: Final = "Storm"
GROUP: Final = "storm"
RESEND_AFTER_S: Final = 0.03
SHARDS: Final = 16
SENDERS: Final = {
    "one by one": 8,
    "from threads": 8,
    "64 in flight": 64,
    "accumulator": 256,
    "batches": 4,
    "shards": SHARDS,
}
BATCH: Final = 25
CONSUMES: Final = ("push", "orderly", "lite", "push to threads", "sync push")
MEMBER_CONCURRENCY: Final = 8
PROCESS_WITHIN_S: Final = 30.0
#: The program of a member that is killed, and the line that it prints when it has queues.
MEMBER: Final = ("-m", "tests.support.storm_member")
JOINED: Final = b"joined\n"
FAIL_EVERY: Final = 400  # messages of which a handler refuses one, once
BREAKING: Final = ("cut", "cut", "close", "halve", "halve", "stall", "stall", "slow")

Place: TypeAlias = tuple[int, int]  # queue id, queue offset
Consumer: TypeAlias = aio.PushConsumer | sync.PushConsumer | aio.LitePullConsumer


class Shape(msgspec.Struct, frozen=True):
    """What a seed stands for."""

    sends: str
    consumes: str
    members: int
    batch: int
    queues: int
    sync_flush: bool
    troubles: tuple[str, ...]

    @staticmethod
    def of(seed: int, rng: random.Random, trouble_count: int) -> Shape:
        troubles = ["kill", "vanish", *rng.choices(BREAKING, k=trouble_count - 3)]
        troubles.append(rng.choice(("kill", "member")))
        consumes = CONSUMES[seed % len(CONSUMES)]
        if "push" in consumes:  # others would wait a minute for the locks of an orderly consumer
            troubles.append("kill member")
        if rng.random() < 0.3:
            troubles.append("forget")
        rng.shuffle(troubles)
        return Shape(
            sends=list(SENDERS)[seed % len(SENDERS)],
            consumes=consumes,
            members=rng.randint(1, 3),
            batch=rng.choice((1, 1, 16)),
            queues=rng.randint(4, 8),  # one for each member, and for the process that is killed
            sync_flush=rng.random() < 0.3,
            troubles=tuple(troubles),
        )

    def __str__(self) -> str:
        flush = "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH"
        return (
            f"{self.sends}; {self.members} x {self.consumes}, batch {self.batch}, "
            f"{self.queues} queues, {flush}"
        )


def body_of(number: int) -> bytes:
    """A message in a hundred is large enough to be compressed."""
    return b"%08d" % number + b"." * (5_000 if number % 100 == 7 else number * 31 % 100)


def number_of(message: MessageExt) -> int:
    return int(message.body[:8])


# ---- sending -------------------------------------------------------------------------------------


class Sending:
    """One producer, and workers that send numbers until each is acknowledged."""

    def __init__(self, options: ClientOptions, shape: Shape, count: int, threads: Executor) -> None:
        self.acknowledged: dict[int, Place] = {}  # by number
        self.failures: Counter[str] = Counter()
        self.under_way = 0
        self._sends = shape.sends
        self._count = count
        self._numbers = iter(range(count))
        self._allowed = 0
        self._more_allowed = asyncio.Event()
        self._threads = threads
        kind = sync.Producer if self._sends == "from threads" else aio.Producer
        self._producer = kind(
            "storm-producer",
            options,
            send_timeout=1.0,
            attempt_timeout=0.3,
            batching=self._sends in ("accumulator", "shards", "from threads"),
        )

    async def start(self) -> None:
        await called(self._threads, self._producer.start)

    async def stop(self) -> None:
        await called(self._threads, self._producer.stop)

    def allow(self, count: int) -> None:
        """Send so many; :meth:`run` waits for more after them."""
        self._allowed = count
        self._more_allowed.set()

    async def run(self) -> None:
        """Send all."""
        async with asyncio.TaskGroup() as group:
            for n in range(SENDERS[self._sends]):
                if self._sends == "shards":
                    numbers: Iterable[int] = range(n, self._count, SHARDS)
                    group.create_task(self._work(numbers, f"shard-{n}"))
                elif self._sends == "batches":
                    group.create_task(self._work_in_batches())
                else:
                    group.create_task(self._work(self._numbers))

    async def send_in_vain(self) -> None:
        """Send a message that is not one of them, and may fail."""
        with suppress(SkylarkError):
            await self._send(0, None)

    async def _work(self, numbers: Iterable[int], shard: str | None = None) -> None:
        for number in numbers:
            await self._until_done([number], partial(self._send, number, shard))

    async def _work_in_batches(self) -> None:
        assert isinstance(self._producer, aio.Producer)
        while numbers := list(itertools.islice(self._numbers, BATCH)):
            messages = [Message(TOPIC, body_of(number)) for number in numbers]
            await self._until_done(numbers, partial(self._producer.send_batch, messages))

    async def _send(self, number: int, shard: str | None) -> list[SendResult]:
        producer, message = self._producer, Message(TOPIC, body_of(number))
        if isinstance(producer, sync.Producer):
            return [await called(self._threads, producer.send, message)]
        if shard is not None:
            return [await producer.send(message, shard=shard)]
        if self._sends == "one by one":
            return [await producer.send(message)]
        return [await (await producer.submit(message))]

    async def _until_done(
        self, numbers: list[int], send: Callable[[], Awaitable[list[SendResult]]]
    ) -> None:
        while numbers[0] >= self._allowed:
            self._more_allowed.clear()
            await self._more_allowed.wait()
        while True:
            self.under_way += 1
            try:
                results = await send()
            except SkylarkError as error:
                self.failures[type(error).__name__] += 1
            else:
                if all(result.status is SendStatus.SEND_OK for result in results):
                    break
                self.failures[results[0].status.name] += 1
            finally:
                self.under_way -= 1
            await asyncio.sleep(RESEND_AFTER_S)
        for number, result in zip(numbers, results, strict=True):
            self.acknowledged[number] = (result.queue.queue_id, result.queue_offset)

    def check(self) -> None:
        """Each has a place of its own, and places of a shard are in order."""
        assert len(self.acknowledged) == self._count
        assert len(set(self.acknowledged.values())) == self._count, "two messages at one place"
        if self._sends == "shards":
            for shard in range(SHARDS):
                found = [self.acknowledged[n] for n in range(shard, self._count, SHARDS)]
                assert len({queue_id for queue_id, _ in found}) == 1
                assert found == sorted(found), f"shard {shard} is out of order"


async def called(threads: Executor, function: Callable[..., Any], *args: Any) -> Any:
    """Await what a coroutine function returns; call others in a thread, they may block."""
    if asyncio.iscoroutinefunction(function):
        return await function(*args)
    return await asyncio.get_running_loop().run_in_executor(threads, function, *args)


# ---- consuming -----------------------------------------------------------------------------------


class Track:
    """What one consumer got of one queue, where the order counts."""

    def __init__(self) -> None:
        self.last = -1
        self.stretches = 0
        self.busy = False


class Group:
    """The members of the group, and what they got; handlers may run in any thread."""

    def __init__(self, options: ClientOptions, shape: Shape, count: int, threads: Executor) -> None:
        self.deliveries = [0] * count  # by number
        self.distinct = 0
        self.places: dict[Place, int] = {}
        self.reached: dict[int, int] = {}  #: queue id: after the last offset that somebody got
        self.problems: list[str] = []
        self.uncommitted_max = 0  #: messages that a lite pull consumer got and had not committed
        self.excuses = 1  #: stretches that a consumer may have of a queue
        self._options = options
        self._shape = shape
        self._threads = threads
        self._lock = threading.Lock()
        self._front: defaultdict[int, int] = defaultdict(int)  # queue id: first offset nobody has
        self._refused: set[int] = set()
        self._members: list[tuple[Consumer, asyncio.Task[None] | None]] = []
        self._printed: list[bytes] = []  # by the process that is to be killed

    async def join(self) -> None:
        """One more member."""
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        if self._shape.consumes == "lite":
            lite = aio.LitePullConsumer(
                GROUP,
                self._options,
                consume_from_where=first,
                pull_batch_size=32,
                auto_commit_interval=1.0,
            )
            await lite.subscribe(TOPIC).start()
            polling = asyncio.get_running_loop().create_task(self._poll(lite))
            self._members.append((lite, polling))
            return
        kind = sync.PushConsumer if self._shape.consumes == "sync push" else aio.PushConsumer
        consumer = kind(
            GROUP,
            self._options,
            consume_from_where=first,
            concurrency=MEMBER_CONCURRENCY,
            suspend_current_queue_time=0.05,
        )
        is_orderly = self._shape.consumes == "orderly"
        consumer.subscribe(TOPIC, self._handler(), orderly=is_orderly, batch=self._shape.batch)
        await called(self._threads, consumer.start)
        self._members.append((consumer, None))

    async def leave(self) -> None:
        """The oldest member stops."""
        consumer, polling = self._members.pop(0)
        if polling is not None:
            polling.cancel()
            await asyncio.wait([polling])
        if isinstance(consumer, aio.LitePullConsumer):
            with suppress(SkylarkError):  # not stored: messages come again
                await consumer.commit()
        await called(self._threads, consumer.stop)

    async def start_process(self, program: Sequence[str] = MEMBER) -> asyncio.subprocess.Process:
        """A process joins the group; returns when it has queues."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *program, str(self._options.namesrv)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        self._printed = []
        async with asyncio.timeout(PROCESS_WITHIN_S):
            while (line := await process.stdout.readline()) != JOINED:
                assert line, "the process has ended"
                self._printed.append(line)  # a handler may be quicker than the assignment
        return process

    async def kill_process(self, process: asyncio.subprocess.Process) -> bool:
        """Kill a process of :meth:`start_process` that gets messages; whether it got any."""
        assert process.stdout is not None
        lines = self._printed
        try:
            async with asyncio.timeout(PROCESS_WITHIN_S):
                if not lines:
                    lines.append(await process.stdout.readline())
        except TimeoutError:
            pass  # the other members have got everything
        finally:
            process.kill()
        rest = await process.stdout.read()
        await process.wait()
        lines += rest.splitlines(keepends=True)
        for line in lines:
            if line.endswith(b"\n"):  # else the kill cut it short
                queue_id, offset, reconsume_times, number = map(int, line.split())
                with self._lock:
                    if not reconsume_times:
                        self._note_number(queue_id, offset, number)
                    self._count(number)
        return bool(lines and lines[0])

    @property
    def repeated(self) -> int:
        """Deliveries beyond the first of each message."""
        return sum(self.deliveries) - self.distinct

    async def leave_all(self) -> None:
        while self._members:
            await self.leave()

    async def _poll(self, lite: aio.LitePullConsumer) -> None:
        committed_at, since = lite._commit_at, 0
        while True:
            messages = await lite.poll(0.5)
            if lite._commit_at != committed_at:  # the poll has committed what the earlier ones gave
                committed_at, since = lite._commit_at, 0
            since += len(messages)
            self.uncommitted_max = max(self.uncommitted_max, since)
            for message in messages:
                self._note_place(message)
                self._note(message)

    # ---- handlers --------------------------------------------------------------------------------

    def _handler(self) -> Callable[..., Any]:
        tracks: defaultdict[int, Track] = defaultdict(Track)

        async def handle(got: MessageExt | list[MessageExt]) -> None:
            self._take(got)

        async def handle_in_order(got: MessageExt | list[MessageExt]) -> None:
            messages = got if isinstance(got, list) else [got]
            track = tracks[messages[0].queue_id]
            if track.busy:
                self.problems.append(f"two handlers on {messages[0].queue}")
            track.busy = True
            await asyncio.sleep(0)
            track.busy = False
            self._take(messages)
            self._note_order(track, messages)

        return {"push": handle, "orderly": handle_in_order}.get(self._shape.consumes, self._take)

    def _take(self, got: MessageExt | list[MessageExt]) -> None:
        messages = got if isinstance(got, list) else [got]
        with self._lock:
            for message in messages:
                self._note_place(message)
            for number in map(number_of, messages):
                if number % FAIL_EVERY == 3 and number not in self._refused:
                    self._refused.add(number)
                    raise RetryLater
            for message in messages:
                self._note(message)

    def _note_order(self, track: Track, messages: list[MessageExt]) -> None:
        for message in messages:
            queue_id, offset = message.queue_id, message.queue_offset
            if offset != track.last + 1 or not track.stretches:
                track.stretches += 1
                if offset > self._front[queue_id]:
                    self.problems.append(f"{message.queue}: {self._front[queue_id]} passed over")
                if track.stretches > self.excuses:
                    self.problems.append(f"{message.queue}: {track.last}, then {offset}")
            track.last = offset
            self._front[queue_id] = max(self._front[queue_id], offset + 1)

    def _note_place(self, message: MessageExt) -> None:
        # Those that come again are among the retries, with another place, unless order is kept.
        if not message.reconsume_times or self._shape.consumes == "orderly":
            self._note_number(message.queue_id, message.queue_offset, number_of(message))

    def _note_number(self, queue_id: int, offset: int, number: int) -> None:
        self.places[queue_id, offset] = number
        self.reached[queue_id] = max(offset + 1, self.reached.get(queue_id, 0))

    def _note(self, message: MessageExt) -> None:
        number = number_of(message)
        if message.body != body_of(number):
            self.problems.append(f"{number} has another body")
        self._count(number)

    def _count(self, number: int) -> None:
        self.distinct += not self.deliveries[number]
        self.deliveries[number] += 1

    # ---- what must hold --------------------------------------------------------------------------

    def has_all(self, ends: Iterable[int]) -> bool:
        """Whether each number was accepted, each place before these ends seen, and nothing waits.

        A message that was refused waits until it is back at the broker.
        """
        return (
            self.distinct == len(self.deliveries)
            and len(self.places) == sum(ends)
            and self.in_flight == 0
        )

    def has_reached(self, ends: Mapping[int, int]) -> bool:
        """Whether somebody got the last messages before these ends, and nothing waits."""
        return ends.items() <= self.reached.items() and self.in_flight == 0

    @property
    def in_flight(self) -> int:
        """Messages that members of the group have pulled and not settled."""
        return sum(
            0 if isinstance(consumer, aio.LitePullConsumer) else consumer.in_flight
            for consumer, _ in self._members
        )

    def check(self, acknowledged: dict[int, Place]) -> None:
        """Nothing is lost or out of order, and everything is where it should be."""
        assert self.problems == []
        lost = [number for number in acknowledged if not self.deliveries[number]]
        assert lost == []
        for number, place in acknowledged.items():
            assert self.places.get(place) == number, f"{number} is not at {place}"
