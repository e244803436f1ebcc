"""Clients at work while their servers and connections fail: one seeded run.

A run sends numbered messages (:class:`~tests.support.client_work.Sending`) to servers that are
reached through a proxy (:class:`~tests.support.client_site.Site`), and consumes them with one group
(:class:`~tests.support.client_work.Group`). They come in portions: trouble strikes within each,
while its messages are on their way, and the next one begins when it is over; the last portion has
none. The seed decides what is sent and consumed how, and the trouble; when exactly it strikes
depends on the machine.

What must hold, whatever happens:

* Nothing acknowledged is lost: the group gets every message, and what it gets at the place that an
  acknowledgement named is that message. Others may come, too: of sends that failed, or twice.
* Repeats are bounded. A trouble repeats at most the messages of its portion. A broker that is
  killed loses the offsets of the last seconds (``flushConsumerOffsetInterval``, as in Java), so a
  member that takes over a queue then may repeat what came before, too. A member that joins and one
  that leaves while nothing fails repeat nothing of an idle group; of a busy one no more
  than handlers had at that time, or, of lite pull consumers, than was polled since the last commit.
* Order, where it was asked for. For each consumer and queue, the offsets that handlers get make
  *stretches*, each going up by one. No two handlers of a consumer work on a queue at once. A
  stretch begins at or before the first message that nobody in the group has got yet, so nothing is
  ever passed over; and there are no more of them than one, and two for each trouble so far: a group
  that gathers again may give a queue away and back. Messages of one shard are stored in the order
  in which they were acknowledged.
* The clients recover by themselves: after the last trouble a send succeeds, and the group has
  everything, within a time.
* When the group has stopped, the ends of the queues are committed: at once, or after a later member
  got once more what was delivered twice.
* Clients stop within a time also when all servers are gone, and nothing is left of them: no task on
  any loop, no socket, no thread but the two that a process keeps, no instance.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from skylark.client.blocking import event_loop_thread as portal
from skylark.client.core.broker_calls import BrokerCalls, open_caller
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.control_loop import shared_control
from skylark.client.core.instance_registry import instance_count
from skylark.core.names import AUTO_CREATE_TOPIC
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import Perm, RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fields import encode_ext
from skylark.wire.headers.admin import CreateTopicRequestHeader
from tests.support.client_site import Site, until
from tests.support.client_work import GROUP, MEMBER_CONCURRENCY, TOPIC, Group, Sending, Shape
from tests.support.crash_series import RunResult, listed

SENT_WITHIN_S: Final = 120.0
RECOVERY_WITHIN_S: Final = 10.0
CONSUMED_WITHIN_S: Final = 60.0
STOPPED_WITHIN_S: Final = 20.0
GONE_WITHIN_S: Final = 5.0
COMMIT_ROUNDS: Final = 4
CALM_S: Final = 2.0
JOINED_S: Final = 2.0  # for a member to join or leave
EXCUSES: Final = 2  # new stretches of a consumer's queue for one trouble
THREADS: Final = 12  # for blocking calls


class StormResult(RunResult, kw_only=True):
    """What happened in a run that went well."""

    shape: str
    messages: int
    failed_sends: dict[str, int]
    repeated: int  #: deliveries beyond the first of each message
    repeated_at_joins: int = 0  #: of them, when members joined and left without trouble
    recovered_s: float

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.shape}: {self.seconds:.1f} s; hits: {listed(self.hits)}; "
            f"failed sends: {listed(self.failed_sends)}; {self.repeated} repeated deliveries, "
            f"{self.repeated_at_joins} at graceful joins, "
            f"recovered in {self.recovered_s:.2f} s"
        )


class Storm:
    """One run."""

    def __init__(self, seed: int, count: int, trouble_count: int, folder: Path) -> None:
        self._seed = seed
        self._count = count
        self._rng = rng = random.Random(f"client storm {seed}")
        self.shape = Shape.of(seed, rng, trouble_count)
        self._site = Site(folder, rng, sync_flush=self.shape.sync_flush)
        options = ClientOptions(
            namesrv=self._site.namesrv,
            request_timeout=0.5,
            route_interval=0.1,
            heartbeat_interval=0.5,
            offset_interval=0.3,
            pull_error_delay=0.05,
        )
        self._threads = ThreadPoolExecutor(THREADS)
        self._sending = Sending(options, self.shape, count, self._threads)
        self._group = Group(options, self.shape, count, self._threads)
        self._repeated_at_joins = 0
        self._repeats_max = 0  # by the troubles so far
        self._site.is_busy = lambda: self._sending.under_way > 0

    async def run(self) -> StormResult:
        loop = asyncio.get_running_loop()
        shared_control()  # these threads stay, with the sockets that wake their loops
        portal.shared_loop_thread()
        sockets, threads = open_sockets(), set(threading.enumerate())
        began = loop.time()
        async with AsyncExitStack() as exits:
            exits.callback(self._threads.shutdown)
            exits.push_async_callback(self._site.stop)
            await self._site.start()
            await self._create_topic()
            recovered_s = await self._rage(exits)
        await check_nothing_left(sockets, threads)
        self._sending.check()
        self._group.check(self._sending.acknowledged)
        return StormResult(
            seed=self._seed,
            shape=str(self.shape),
            messages=self._count,
            seconds=loop.time() - began,
            hits={name: count for name, count in self._site.hits.items() if count},
            failed_sends=dict(self._sending.failures),
            repeated=self._group.repeated,
            repeated_at_joins=self._repeated_at_joins,
            recovered_s=recovered_s,
        )

    async def _create_topic(self) -> None:
        async with open_caller() as caller:
            header = CreateTopicRequestHeader(
                topic=TOPIC,
                default_topic=AUTO_CREATE_TOPIC,
                read_queue_nums=self.shape.queues,
                write_queue_nums=self.shape.queues,
                perm=Perm.READ | Perm.WRITE,
                topic_filter_type="SINGLE_TAG",
            )
            request = Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=encode_ext(header))
            answer = await caller.call(self._site.broker, request)
            assert answer.code == ResponseCode.SUCCESS, answer

    async def _rage(self, exits: AsyncExitStack) -> float:
        sending, group = self._sending, self._group
        exits.push_async_callback(group.leave_all)
        for _ in range(self.shape.members):
            await group.join()
        exits.push_async_callback(sending.stop)
        await sending.start()
        work = asyncio.get_running_loop().create_task(sending.run())
        exits.callback(work.cancel)
        await self._make_trouble()
        recovered_s = await self._recovery_s()
        await self._join_while_busy()
        await asyncio.wait([work], timeout=SENT_WITHIN_S)
        assert work.done(), f"{len(sending.acknowledged)} of {self._count} are sent"
        await work
        ends = await self._ask_offsets(
            lambda calls, queue: calls.max_offset(self._site.broker, queue)
        )
        consumed = await until(lambda: group.has_all(ends), CONSUMED_WITHIN_S, 0.02)
        assert consumed, f"{group.distinct} of {self._count} are consumed"
        repeated, repeats_max = group.repeated, self._repeats_max
        assert repeated <= repeats_max, f"{repeated} deliveries are repeated, not {repeats_max}"
        await self._join_while_idle()
        await self._commit_all(ends)
        await self._stop_alone()
        return recovered_s

    async def _join_while_busy(self) -> None:
        """A member joins, and the oldest leaves, while the last messages are sent and consumed."""
        sending, group = self._sending, self._group
        clock = self._site.clock
        settled = await until(
            lambda: group.distinct >= len(sending.acknowledged), CONSUMED_WITHIN_S, 0.02
        )
        assert settled, f"{group.distinct} of {len(sending.acknowledged)} are consumed"
        await clock.sleep(CALM_S)  # what the last trouble repeats, comes before
        before = group.repeated
        group.uncommitted_max = 0
        sending.allow(self._count)
        await group.join()
        await clock.sleep(JOINED_S)
        await group.leave()
        await clock.sleep(JOINED_S)
        self._repeated_at_joins = group.repeated - before
        under_way = MEMBER_CONCURRENCY * self.shape.batch * (self.shape.members + 1)
        if self.shape.consumes == "lite":
            # Queues of all members may move, when one joins and when one leaves, which commits.
            under_way = 2 * self.shape.members * group.uncommitted_max
        text = f"{self._repeated_at_joins} are repeated, not {under_way}"
        assert self._repeated_at_joins <= under_way, text

    async def _join_while_idle(self) -> None:
        """A member joins and the oldest leaves when everything is consumed: nothing comes again."""
        clock, before = self._site.clock, self._group.repeated
        await clock.sleep(CALM_S)
        assert self._group.repeated == before
        await self._group.join()
        await clock.sleep(JOINED_S)
        await self._group.leave()
        await clock.sleep(JOINED_S)
        repeated = self._group.repeated - before
        assert not repeated, f"{repeated} messages of an idle group are repeated"

    async def _commit_all(self, ends: list[int]) -> None:
        """The group leaves, and has committed all.

        Who took up a queue a moment ago, and got some messages of it a second time, has set its
        offset back; then the next member gets the rest of them again.
        """
        group = self._group
        for _ in range(COMMIT_ROUNDS):
            await group.leave_all()
            committed = await self._ask_offsets(
                lambda calls, queue: calls.query_offset(self._site.broker, GROUP, queue)
            )
            assert all(mine <= end for mine, end in zip(committed, ends, strict=True)), committed
            behind = {n: ends[n] for n in range(len(ends)) if committed[n] < ends[n]}
            if not behind:
                return
            group.reached.clear()
            await group.join()
            caught_up = await until(partial(group.has_reached, behind), CONSUMED_WITHIN_S)
            assert caught_up, f"{behind} is not delivered again, but {group.reached}"
        raise AssertionError(f"{committed} of {ends} is committed")

    async def _stop_alone(self) -> None:
        """The clients stop although nobody is there any more, and sends are under way."""
        await self._group.join()
        async with asyncio.TaskGroup() as sends:
            for _ in range(20):
                sends.create_task(self._sending.send_in_vain())
            await asyncio.sleep(0)
            await self._site.stop()
            async with self._site.clock.timeout(STOPPED_WITHIN_S):
                await self._group.leave_all()
                await self._sending.stop()

    async def _make_trouble(self) -> None:
        troubles, portion = self.shape.troubles, self._portion
        forgot = False
        for number, kind in enumerate(troubles):
            begun = number * portion
            process = await self._group.start_process() if kind == "kill member" else None
            self._sending.allow(begun + portion)
            await self._acknowledged(begun + self._rng.randrange(portion // 2), SENT_WITHIN_S)
            self._group.excuses += EXCUSES
            self._repeats_max += portion if kind != "kill" else begun + portion
            if process is not None:
                self._site.hits[kind] += await self._group.kill_process(process)
            elif kind != "member":
                await self._site.strike(kind)
            elif not forgot:  # a newcomer would wait until the broker has registered again
                await self._group.join()
                await self._group.leave()
                self._site.hits["member"] += 1
            forgot |= kind == "forget"

    @property
    def _portion(self) -> int:
        return self._count // (len(self.shape.troubles) + 1)

    async def _recovery_s(self) -> float:
        """How long after the last trouble the first send succeeded."""
        clock = self._site.clock
        began = clock.monotonic()
        self._sending.allow(self._count - self._portion // 2)
        await self._acknowledged(len(self._sending.acknowledged) + 1, RECOVERY_WITHIN_S)
        return clock.monotonic() - began

    async def _acknowledged(self, count: int, within_s: float) -> None:
        acknowledged = self._sending.acknowledged
        reached = await until(lambda: len(acknowledged) >= count, within_s, 0.001)
        assert reached, f"stuck: {len(acknowledged)} of {self._count} are sent"

    async def _ask_offsets(
        self, ask: Callable[[BrokerCalls, MessageQueue], Awaitable[int | None]]
    ) -> list[int]:
        """An offset of each queue."""
        async with open_caller() as caller:
            calls = BrokerCalls(caller)
            queues = [
                MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=queue_id)
                for queue_id in range(self.shape.queues)
            ]
            return [await ask(calls, queue) or 0 for queue in queues]


def open_sockets() -> set[str]:
    """The sockets of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # that of the directory itself
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


async def check_nothing_left(sockets: set[str], threads: set[threading.Thread]) -> None:
    """Raise unless all tasks, threads and sockets but these have gone, or go soon."""
    this, loops = asyncio.current_task(), (shared_control().loop, portal.shared_loop_thread().loop)

    def left() -> list[object]:
        tasks = asyncio.all_tasks().union(*map(asyncio.all_tasks, loops)) - {this}
        return [*tasks, *(set(threading.enumerate()) - threads), *(open_sockets() - sockets)]

    await until(lambda: not left(), GONE_WITHIN_S)
    assert left() == []
    assert instance_count() == 0


class Errors(logging.Handler):
    """Keeps what no trouble may cause: errors in the log of clients, exceptions nobody took."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(logging.Formatter().format(record))

    @contextmanager
    def listening(self) -> Iterator[None]:
        loggers = [logging.getLogger(name) for name in ("skylark", "asyncio")]
        levels = [each.level for each in loggers]
        for each in loggers:
            each.addHandler(self)
            each.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.removeHandler(self)
                each.setLevel(level)


def run_storm(seed: int, count: int, trouble_count: int, folder: Path) -> StormResult:
    """One run on a loop of its own, asyncio's and uvloop in turn."""
    factory = uvloop.new_event_loop if seed % 2 else asyncio.SelectorEventLoop
    errors = Errors()
    storm: Storm | None = None

    async def run() -> StormResult:
        nonlocal storm
        storm = Storm(seed, count, trouble_count, folder)
        return await storm.run()

    try:
        with errors.listening(), asyncio.Runner(loop_factory=factory) as runner:
            result = runner.run(run())
        assert errors.texts == []
    except BaseException as error:
        if storm is not None:
            troubles = ", ".join(storm.shape.troubles)
            error.add_note(f"seed {seed}: {storm.shape}; troubles: {troubles}")
        for text in errors.texts:
            error.add_note(text)
        raise
    return result
