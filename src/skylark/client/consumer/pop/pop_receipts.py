"""Acknowledges popped messages and changes their invisible times, for one consumer.

**Acks** are batched: those of one turn of the loop, and those that come while as many requests as
``IN_FLIGHT_MAX`` are on their way to a broker, go out together (BATCH_ACK_MESSAGE). So a thousand
tasks that each acknowledge one message cost a few requests. To a broker that does not know the
batch request acks go one by one. A request without a response is repeated, because an ack may
arrive twice without harm.

**The newest receipt.** A change of the invisible time makes a new receipt, and the broker then
ignores acks with the old one. So changes of one message happen one after the other, and an ack
waits for the one under way. If a change gets no response, either receipt may be the valid one: the
ack uses the old one, and the worst that can happen is another delivery.

**Late.** A broker accepts acks with an expired receipt, without effect. So the time is checked
here, before the request: :class:`~skylark.client.errors.ReceiptExpiredError`.

Runs on the loop that consumes. Counterpart of ``ackAsync`` and ``changePopInvisibleTimeAsync`` of
Java's ``DefaultMQPushConsumerImpl``, which sends one request for each message.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from skylark.client.consumer.pop.popped_message import (
    BrokerTime,
    PoppedRecord,
    PopReceipt,
    renewed,
)
from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.pop_calls import PopCalls
from skylark.client.errors import ReceiptExpiredError
from skylark.core.clock import Clock
from skylark.core.errors import (
    BrokerError,
    ClientStateError,
    SkylarkError,
    TransportError,
)
from skylark.core.lifecycle import Tasks
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.pop_body import BITS_MAX, BatchAck, encode_bit_set
from skylark.wire.codes import ResponseCode
from skylark.wire.headers.pop import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader

logger = logging.getLogger(__name__)

#: Requests with acks on their way to one broker; more acks wait and share the next request.
IN_FLIGHT_MAX: Final = 4
#: Messages of one request.
ACKS_MAX: Final = 1024
#: Acks on their way where a broker has no batch request.
SINGLE_ACKS_MAX: Final = 32
ATTEMPTS: Final = 3
RETRY_PAUSE_S: Final = 0.2
#: Messages that an error names.
NAMES_MAX: Final = 8
#: A message that is given back may be delivered again after this.
GIVE_BACK_MS: Final = 1_000


class _Outbox:
    """The acks for one broker."""

    __slots__ = ("in_flight", "is_scheduled", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[Sequence[PoppedRecord], asyncio.Future[None]]] = []
        self.in_flight = 0
        self.is_scheduled = False


class PopReceipts:
    """The receipts of one consumer; see the module docstring."""

    def __init__(self, link: BrokerConnections, group: str, tasks: Tasks) -> None:
        """``group`` as brokers know it; ``tasks`` own the requests with acks."""
        self._link = link
        self._calls = PopCalls(link)
        self._group = group
        self._tasks = tasks
        self._clock: Clock = link.clock
        self._loop = link.loop
        self._outboxes: dict[str, _Outbox] = {}
        self._times: dict[str, BrokerTime] = {}
        self._without_batches: set[str] = set()  # addresses of brokers before 5.1
        self._change_count = 0  # changes of invisible times that are under way
        self._drained: asyncio.Future[None] | None = None  # the next request has ended

    def time_of(self, broker_name: str) -> BrokerTime:
        """The clock of a broker."""
        time = self._times.get(broker_name)
        if time is None:
            time = self._times[broker_name] = BrokerTime()
        return time

    def is_expired(self, message: PoppedRecord) -> bool:
        """Whether others may have the message by now."""
        return self._clock.steady_ms() >= message.receipt.visible_at_ms

    # ---- acks ------------------------------------------------------------------------------------

    def ack(
        self, messages: Sequence[PoppedRecord]
    ) -> list[tuple[asyncio.Future[None], Sequence[PoppedRecord]]]:
        """Acknowledge messages of any brokers, none of which is being changed.

        Returns one future for each broker, with its messages; it raises BrokerError or
        TransportError.
        """
        name = messages[0].receipt.broker_name
        for message in messages:
            if message.receipt.broker_name != name:
                return [(self._ack(*each), each[1]) for each in _by_broker(messages).items()]
        return [(self._ack(name, messages), messages)]

    def _ack(self, broker_name: str, messages: Sequence[PoppedRecord]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        outbox = self._outboxes.get(broker_name)
        if outbox is None:
            outbox = self._outboxes[broker_name] = _Outbox()
        outbox.waiting.append((messages, future))
        if not outbox.is_scheduled and outbox.in_flight < IN_FLIGHT_MAX:
            outbox.is_scheduled = True
            self._loop.call_soon(self._flush, broker_name, outbox)
        return future

    def _flush(self, broker_name: str, outbox: _Outbox) -> None:
        outbox.is_scheduled = False
        while outbox.waiting and outbox.in_flight < IN_FLIGHT_MAX:
            messages: list[PoppedRecord] = []
            futures: list[asyncio.Future[None]] = []
            for taken, future in outbox.waiting:
                if futures and len(messages) + len(taken) > ACKS_MAX:
                    break
                messages += taken
                futures.append(future)
            del outbox.waiting[: len(futures)]
            if self._tasks.closed:
                _fail(futures, ClientStateError("the consumer was stopped before the ack"))
                continue
            outbox.in_flight += 1
            work = self._send(broker_name, outbox, messages, futures)
            self._tasks.spawn(work, name="ack")

    async def _send(
        self,
        broker_name: str,
        outbox: _Outbox,
        messages: Sequence[PoppedRecord],
        futures: Sequence[asyncio.Future[None]],
    ) -> None:
        try:
            await self._send_repeatedly(broker_name, messages)
        except Exception as error:  # noqa: BLE001 - also what a hook raises goes to the callers
            _fail(futures, error)
        except BaseException:
            _fail(futures, ClientStateError("the consumer was stopped during the ack"))
            raise
        else:
            for future in futures:
                if not future.done():
                    future.set_result(None)
        finally:
            outbox.in_flight -= 1
            self._flush(broker_name, outbox)
            self._request_ended()

    async def _send_repeatedly(self, broker_name: str, messages: Sequence[PoppedRecord]) -> None:
        """Send acks; repeats them while there is no response and the first is not expired."""
        for attempt in range(ATTEMPTS):
            try:
                await self._send_once(broker_name, messages)
            except TransportError:
                if attempt + 1 == ATTEMPTS or self.is_expired(messages[0]):
                    raise
                await self._clock.sleep(RETRY_PAUSE_S)
            else:
                return

    async def _send_once(self, broker_name: str, messages: Sequence[PoppedRecord]) -> None:
        address = await self._address(messages[0].receipt)
        if len(messages) == 1:
            await self._ack_one(address, messages[0])
            return
        if address not in self._without_batches:
            acks, alone = batch_acks(self._group, messages)
            try:
                await self._calls.ack_many(address, broker_name, acks)
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                self._without_batches.add(address)
            else:
                messages = alone
        for start in range(0, len(messages), SINGLE_ACKS_MAX):
            some = messages[start : start + SINGLE_ACKS_MAX]
            await asyncio.gather(*(self._ack_one(address, each) for each in some))

    async def _ack_one(self, address: str, message: PoppedRecord) -> None:
        receipt, offset = message.receipt, message.record.queue_offset
        header = AckMessageRequestHeader(
            consumer_group=self._group,
            topic=receipt.real_topic,
            queue_id=receipt.queue_id,
            extra_info=receipt.handle(offset),
            offset=offset,
        )
        await self._calls.ack(address, header, receipt.broker_name)

    async def _address(self, receipt: PopReceipt) -> str:
        address = self._link.lookup.routes.master(receipt.broker_name)
        if address is not None:
            return address
        queue = MessageQueue(
            topic=receipt.topic, broker_name=receipt.broker_name, queue_id=receipt.queue_id
        )
        return await self._link.lookup.master_of(queue)

    def _request_ended(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def flush(self) -> None:
        """Wait until all acks and changes have been sent and answered, or have failed."""
        while self._change_count or any(
            outbox.in_flight or outbox.waiting for outbox in self._outboxes.values()
        ):
            self._drained = self._loop.create_future()
            await self._drained

    # ---- the invisible time ----------------------------------------------------------------------

    async def change(
        self, message: PoppedRecord, invisible_ms: int, *, suspend: bool = False
    ) -> None:
        """Hide a message for this long from now on; it has a new receipt then.

        ``suspend``: if it is delivered again, that does not count as an attempt. Raises
        ReceiptExpiredError, BrokerError or TransportError.
        """
        await wait_for_change(message)
        if self.is_expired(message):
            raise ReceiptExpiredError([message])
        done: asyncio.Future[None] = self._loop.create_future()
        message._changing = done
        self._change_count += 1
        try:
            await self._change(message, invisible_ms, suspend=suspend)
        finally:
            message._changing = None
            done.set_result(None)
            self._change_count -= 1
            self._request_ended()

    async def _change(self, message: PoppedRecord, invisible_ms: int, *, suspend: bool) -> None:
        receipt, offset = message.receipt, message.record.queue_offset
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self._group,
            topic=receipt.real_topic,
            queue_id=receipt.queue_id,
            extra_info=receipt.handle(offset),
            offset=offset,
            invisible_time=invisible_ms,
            suspend=suspend,
        )
        address = await self._address(receipt)
        sent_ms = self._clock.steady_ms()
        answer = await self._calls.change_invisible_time(address, header, receipt.broker_name)
        time = self.time_of(receipt.broker_name)
        changed_ms = time.local_ms(answer.pop_time, sent_ms, self._clock.steady_ms())
        message.receipt = renewed(
            message,
            pop_time_ms=answer.pop_time,
            invisible_ms=answer.invisible_time,
            revive_queue_id=answer.revive_qid,
            visible_at_ms=changed_ms + answer.invisible_time,
        )

    async def give_back(self, messages: Iterable[PoppedRecord]) -> None:
        """Let others have messages that no handler has got, without counting an attempt.

        Failures are logged: the invisible time then runs out.
        """
        unhandled = [each for each in messages if not each.is_settled]
        for message in unhandled:
            message.is_settled = True
        await self.give_back_settled(unhandled)

    async def give_back_settled(self, messages: Sequence[PoppedRecord]) -> None:
        """As :meth:`give_back`, for messages that the caller has marked as settled."""
        for start in range(0, len(messages), SINGLE_ACKS_MAX):
            some = messages[start : start + SINGLE_ACKS_MAX]
            await asyncio.gather(*map(self._give_back_one, some))

    async def _give_back_one(self, message: PoppedRecord) -> None:
        try:
            await self.change(message, GIVE_BACK_MS, suspend=True)
        except ReceiptExpiredError:
            return
        except SkylarkError as error:
            logger.info("%s is not given back, its invisible time runs out: %s", message, error)
        except Exception:  # such as an error of a hook
            logger.exception("%s is not given back", message)


def unacknowledged(error: Exception, failed: Sequence[PoppedRecord], count: int) -> Exception:
    """The error of an ack of ``count`` messages; of several it names those that failed.

    The error itself may also be that of another ack, which shared the request.
    """
    if count == 1 or not isinstance(error, SkylarkError):
        return error
    names = ", ".join(map(str, failed[:NAMES_MAX]))
    more = f" and {len(failed) - NAMES_MAX} more" if len(failed) > NAMES_MAX else ""
    named = copy.copy(error)
    named.hint = f"{len(failed)} of {count} messages are not acknowledged: {names}{more}"
    named.__cause__ = error
    return named


async def wait_for_change(message: PoppedRecord) -> None:
    """Wait for a change of the invisible time that is under way."""
    while (changing := message._changing) is not None:
        await changing


def batch_acks(
    group: str, messages: Sequence[PoppedRecord]
) -> tuple[list[BatchAck], list[PoppedRecord]]:
    """One entry for each receipt; and messages too far from its start to be in a bit set."""
    bits: dict[PopReceipt, list[int]] = {}
    alone: list[PoppedRecord] = []
    for message in messages:
        receipt = message.receipt
        bit = message.record.queue_offset - receipt.start_offset
        if 0 <= bit < BITS_MAX:
            of_receipt = bits.get(receipt)
            if of_receipt is None:
                bits[receipt] = [bit]
            else:
                of_receipt.append(bit)
        else:
            alone.append(message)
    acks = [
        BatchAck(
            consumer_group=group,
            topic=receipt.topic,
            retry=receipt.kind,
            start_offset=receipt.start_offset,
            queue_id=receipt.queue_id,
            revive_queue_id=receipt.revive_queue_id,
            pop_time=receipt.pop_time_ms,
            invisible_time=receipt.invisible_ms,
            bit_set=encode_bit_set(of_receipt),
        )
        for receipt, of_receipt in bits.items()
    ]
    return acks, alone


def _by_broker(messages: Sequence[PoppedRecord]) -> dict[str, list[PoppedRecord]]:
    found: dict[str, list[PoppedRecord]] = {}
    for message in messages:
        found.setdefault(message.receipt.broker_name, []).append(message)
    return found


def _fail(futures: Iterable[asyncio.Future[None]], error: BaseException) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
            future.exception()  # retrieved: a caller that was cancelled does not await it
