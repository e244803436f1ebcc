"""A broker that is killed while consumers pop: what they may get twice, and that nothing is lost.

A real broker process is killed (SIGKILL) and started again on the same store, many times. Meanwhile
a producer sends, and consumers pop; they acknowledge most messages, one by one or in batches, give
some another invisible time and acknowledge them later, and drop the rest, which must come back.

**What must hold.** Every message whose send was answered is in the end acknowledged in time, and no
message comes again that must not (:mod:`tests.support.pop_deliveries`): without merging
(``enablePopBufferMerge=false``) none whose ack was answered in time; with merging, only where the
broker was killed within ``popCkStayBufferTime`` (10 s) after the ack.

An ack counts if it was answered before the message became visible again. A message is not
acknowledged with the old handle if a change of its invisible time was not answered, since either of
the two handles may be the valid one.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from skylark.core.clock import LoopClock
from skylark.core.errors import BrokerError, TransportError
from skylark.net.client import RemotingClient
from skylark.net.transport import TcpNetwork
from skylark.wire.bodies.pop_body import BatchAck, BatchAckMessageRequestBody, encode_bit_set
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from skylark.wire.properties import encode_properties
from tests.interop.ours import SkylarkBroker
from tests.interop.process import draw_port
from tests.support.client_site import start, until
from tests.support.crash_series import RunResult
from tests.support.pop_deliveries import STAY_MS, Deliveries, Place
from tests.unit.broker.pop.pop_client import PopClient, Popped

TOPIC: Final = "PopStorm"
GROUP: Final = "storm"
QUEUE_COUNT: Final = 4
CONSUMER_COUNT: Final = 3
CALL_TIMEOUT_S: Final = 5.0
SEND_PAUSE_S: Final = 0.004
#: An ack that is answered so shortly before the end of the invisible time does not count.
IN_TIME_MARGIN_MS: Final = 300
SETTLED_WITHIN_S: Final = 120.0

SETTINGS: Final = {
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 4_000 * 20,
    "maxHashSlotNum": 4_000,
    "maxIndexNum": 16_000,
    "reviveInterval": 200,
    "popCkStayBufferTime": STAY_MS,
}


class PopStormResult(RunResult, kw_only=True):
    """A run that went well."""

    merging: bool
    kills: int
    messages: int
    #: Acks that were answered in time.
    acked: int
    #: Deliveries of messages that were delivered before and not acknowledged in time.
    redelivered: int
    #: Messages that came again although their ack was answered in time.
    repeats: int
    #: The longest time between such an ack and the kill that followed it.
    repeat_age_ms: int

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: merging {'on' if self.merging else 'off'}, {self.kills} kills,"
            f" {self.messages} messages, {self.acked} acks, {self.redelivered} redelivered,"
            f" {self.repeats} repeated after their ack (up to {self.repeat_age_ms} ms before a"
            f" kill) in {self.seconds:.0f} s; {self.hits}"
        )


class StormWorld:
    """What a :class:`PopClient` needs: a broker somewhere, and the time."""

    def __init__(self, address: Callable[[], str]) -> None:
        self.clock = LoopClock()
        self.client = RemotingClient(TcpNetwork(), self.clock)
        #: Requests under way, by kind.
        self.under_way: Counter[str] = Counter()
        self._address = address

    async def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes | None = None
    ) -> Command:
        request = Command(code=code, ext=ext, body=body)
        with self._counted(RequestCode(code).name.lower()):
            return await self.client.call(self._address(), request, CALL_TIMEOUT_S)

    @contextmanager
    def _counted(self, kind: str) -> Any:
        self.under_way[kind] += 1
        try:
            yield
        finally:
            self.under_way[kind] -= 1


class PopStorm:
    """One run: the broker, the producer, the consumers, and what they have seen."""

    def __init__(self, seed: int, folder: Path, *, merging: bool) -> None:
        self.rng = random.Random(seed)
        self.hits: Counter[str] = Counter()
        self.merging = merging
        port = draw_port((0, -2, 1))
        settings = {**SETTINGS, "enablePopBufferMerge": "true" if merging else "false"}
        self.broker = SkylarkBroker("127.0.0.1:1", settings, folder=folder, port=port)
        self.world = StormWorld(lambda: f"127.0.0.1:{port}")
        self.clock = self.world.clock
        self.sent: set[bytes] = set()
        self.deliveries = Deliveries(merging=merging)
        self.history: dict[bytes, list[str]] = {}  # what happened to each message
        self.acked_count = 0
        self.is_sending = True
        self.is_ending = False

    # ---- traffic ---------------------------------------------------------------------------------

    async def produce(self) -> None:
        number = 0
        while self.is_sending:
            number += 1
            body = f"m{number}".encode()
            properties = encode_properties({"UNIQ_KEY": f"{number:032X}"})
            fields = {
                "a": "pg", "b": TOPIC, "c": "TBW102", "d": str(QUEUE_COUNT),
                "e": str(number % QUEUE_COUNT), "f": "0", "g": str(self.clock.now_ms()),
                "h": "0", "i": properties,
            }  # fmt: skip
            try:
                answer = await self.world.call(RequestCode.SEND_MESSAGE_V2, fields, body)
            except (TransportError, TimeoutError):
                await self.clock.sleep(0.1)
                continue
            if answer.code == 0:
                self.sent.add(body)
            await self.clock.sleep(SEND_PAUSE_S)

    async def consume(self) -> None:
        client = PopClient(self.world, TOPIC, GROUP)  # type: ignore[arg-type]
        while True:
            try:
                await self._consume_some(client)
            except (TransportError, TimeoutError, BrokerError):
                await self.clock.sleep(0.1)

    async def _consume_some(self, client: PopClient) -> None:
        invisible_ms = self.rng.choice((3_000, 5_000, 8_000, 30_000))
        if self.is_ending:
            invisible_ms = 5_000
        answer = await client.answer(
            maxMsgNums=self.rng.choice((1, 8, 32)), pollTime=500, invisibleTime=invisible_ms
        )
        if answer.code != 0:
            await self.clock.sleep(0.02)
            return
        popped = client.popped(answer)
        for message in popped:
            self._note(message, f"popped, attempt {message.record.reconsume_times}")
            self._judge(message)
        if self.is_ending:
            for message in popped:
                await self._ack(client, message)
            return
        how = self.rng.random()
        if how < 0.15:
            await self._batch_ack(client, [m for m in popped if self.rng.random() < 0.9])
            return
        for message in popped:
            draw = self.rng.random()
            if draw < 0.85:
                await self._ack(client, message)
            elif draw < 0.93:
                self._note(message, "change sent")
                changed = await client.change(message, self.rng.choice((1_000, 2_500, 6_000)))
                if changed.code == 0 and self.rng.random() < 0.7:
                    await self._ack(client, client.changed(message, changed))

    def _note(self, message: Popped, event: str) -> None:
        line = f"{self.clock.now_ms()} {event} {message.handle}"
        self.history.setdefault(message.body, []).append(line)

    async def _ack(self, client: PopClient, message: Popped) -> None:
        self._note(message, "ack sent")
        self.deliveries.ack_sent(message.body, _place(message), self.clock.now_ms())
        if (await client.ack(message)).code == 0:
            self._count_ack(message)

    def _count_ack(self, message: Popped) -> None:
        handle, now_ms = message.handle, self.clock.now_ms()
        self._note(message, "ack answered")
        if now_ms < handle.pop_time_ms + handle.invisible_ms - IN_TIME_MARGIN_MS:
            self.deliveries.acked(message.body, _place(message), now_ms)
            self.acked_count += 1

    async def _batch_ack(self, client: PopClient, messages: list[Popped]) -> None:
        by_pop: dict[tuple[int, int, str], list[Popped]] = {}
        for message in messages:
            self.deliveries.ack_sent(message.body, _place(message), self.clock.now_ms())
            handle = message.handle
            by_pop.setdefault((handle.queue_id, handle.start_offset, handle.kind), []).append(
                message
            )
        acks = []
        for group in by_pop.values():
            handle = group[0].handle
            bits = [m.handle.queue_offset - handle.start_offset for m in group]
            acks.append(
                BatchAck(
                    consumer_group=GROUP,
                    topic=TOPIC,
                    retry=handle.kind,
                    start_offset=handle.start_offset,
                    queue_id=handle.queue_id,
                    revive_queue_id=handle.revive_queue_id,
                    pop_time=handle.pop_time_ms,
                    invisible_time=handle.invisible_ms,
                    bit_set=encode_bit_set(bits),
                )
            )
        if not acks:
            return
        body = encode_body(BatchAckMessageRequestBody(broker_name="broker-a", acks=acks))
        answer = await self.world.call(RequestCode.BATCH_ACK_MESSAGE, None, body)
        if answer.code == 0:
            for message in messages:
                self._count_ack(message)

    def _judge(self, message: Popped) -> None:
        try:
            self.deliveries.popped(
                message.body,
                _place(message),
                message.record.reconsume_times,
                message.handle.pop_time_ms,
            )
        except AssertionError as error:
            error.add_note(f"{message.body!r}, kills at {self.deliveries.kills_ms}:")
            error.add_note("\n".join(self.history[message.body]))
            raise

    # ---- trouble ---------------------------------------------------------------------------------

    async def kill(self) -> None:
        """Kill the broker under traffic, and start it again."""
        await self.clock.sleep(self.rng.choice((0.3, 1.0, 2.0, 4.0, 12.0)) * self.rng.random())
        under_way = [kind for kind, count in self.world.under_way.items() if count]
        self.broker.kill()
        # Not before: on a busy machine the broker may pop until then.
        self.deliveries.kills_ms.append(self.clock.now_ms())
        self.hits.update(f"kill during {kind}" for kind in under_way)
        await start(self.broker)

    async def run(self, kill_count: int) -> None:
        await start(self.broker)
        tasks = [asyncio.create_task(self.consume()) for _ in range(CONSUMER_COUNT)]
        producer = asyncio.create_task(self.produce())
        killing = asyncio.create_task(self._kill_all(kill_count))
        try:
            await self._unless_failed(killing, [*tasks, producer])
            self.is_sending = False
            await producer
            self.is_ending = True
            settling = asyncio.create_task(
                until(lambda: not self._unsettled(), SETTLED_WITHIN_S, 0.2)
            )
            await self._unless_failed(settling, tasks)
            lost = self._unsettled()
            histories = ["\n".join(self.history.get(body, ())) for body in lost[:3]]
            assert not lost, (
                f"{len(lost)} messages are lost, kills at {self.deliveries.kills_ms}:\n"
                + "\n\n".join(histories)
            )
        finally:
            for task in (*tasks, producer, killing):
                task.cancel()
            await asyncio.gather(*tasks, producer, killing, return_exceptions=True)
            await self.world.client.close()
            self.broker.kill()

    def _unsettled(self) -> list[bytes]:
        return [body for body in self.sent if self.deliveries.must_come(body)]

    async def _kill_all(self, kill_count: int) -> None:
        for _ in range(kill_count):
            await self.kill()

    @staticmethod
    async def _unless_failed(wanted: asyncio.Task[Any], others: list[asyncio.Task[Any]]) -> None:
        """Wait for a task; raises what another one has found."""
        await asyncio.wait([wanted, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            if task.done() and task.exception() is not None:
                task.result()
        await wanted


def _place(message: Popped) -> Place:
    handle = message.handle
    return handle.kind, handle.queue_id, handle.queue_offset


def run_pop_storm(seed: int, kill_count: int, folder: Path, *, merging: bool) -> PopStormResult:
    """One run; prints nothing, raises AssertionError if something does not hold."""
    print(f"seed {seed}, merging {'on' if merging else 'off'}", flush=True)
    clock = LoopClock()
    started = clock.monotonic()

    async def run() -> PopStorm:
        storm = PopStorm(seed, folder, merging=merging)
        await storm.run(kill_count)
        return storm

    storm = asyncio.run(run())
    return PopStormResult(
        seed=seed,
        seconds=clock.monotonic() - started,
        hits=dict(storm.hits),
        merging=merging,
        kills=len(storm.deliveries.kills_ms),
        messages=len(storm.sent),
        acked=storm.acked_count,
        redelivered=storm.deliveries.redelivered_count,
        repeats=storm.deliveries.repeat_count,
        repeat_age_ms=storm.deliveries.repeat_age_ms,
    )
