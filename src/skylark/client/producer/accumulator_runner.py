"""Runs the send accumulator: collects small messages, sends batches, gives each message its result.

:mod:`skylark.client.producer.send_accumulator` decides when a batch is sent; this module has the
loop, the timer and the tasks. A batch of one message is sent as a single message. If a batch fails,
each of its sends raises a separate copy of the error. Cancelling a send does not remove its message
from the batch.

A caller that awaits each send gains nothing from batching. So if the last batch had one message and
nothing is in flight, the next message is sent alone and at once (:meth:`Collector.begin_alone`),
until a second message comes while it is in flight.

Messages of one batch keep their order, and so do batches of one key. A large message may overtake
small ones that still wait for their batch: await each send if you need an order.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Final, TypeAlias

import msgspec

from skylark.client.core.client_message import Message, SendResult
from skylark.client.core.permits import Permits
from skylark.client.producer.producer_settings import ProducerSettings
from skylark.client.producer.send_accumulator import Accumulator, AccumulatorLimits, Batch
from skylark.client.producer.send_request import (
    Parcel,
    batch_part,
    checked_flag,
    property_text,
    split_result,
)
from skylark.client.producer.send_retry import SendMode
from skylark.client.producer.sender import Sender, TopicState
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import ClientStateError
from skylark.core.lifecycle import LifecycleError, Tasks
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.layout import BATCH_HEAD_SIZE, BATCH_MESSAGE_SIZE_MIN
from skylark.wire.properties import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_PRIORITY,
    PROPERTY_SHARDING_KEY,
)

#: Estimated bytes that the client adds to a message in a batch: lengths, unique id, WAIT.
OVERHEAD_SIZE: Final = BATCH_MESSAGE_SIZE_MIN + 80
#: Brokers support these in single messages only.
_GO_ALONE: Final = frozenset({PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_PRIORITY})
STOPPED: Final = "the producer was stopped meanwhile"


class _Entry(msgspec.Struct):
    """A message that waits for its batch, with the future of its result.

    Tracked by the garbage collector: the traceback of a failed batch refers to the entries, and
    their futures refer to the error.
    """

    message: Message
    unique_id: str
    properties: str
    part: bytes
    held_size: int
    future: asyncio.Future[SendResult]


#: What the messages of a batch have in common: topic, queue, WAIT, tag, whether SYNC, and time.
_Key: TypeAlias = tuple[TopicState, MessageQueue | None, bool, str | None, bool, float]


class Collector:
    """Collects and sends the batches of one producer, on its loop."""

    def __init__(
        self,
        sender: Sender,
        settings: ProducerSettings,
        clock: Clock,
        tasks: Tasks,
        permits: Permits,
    ) -> None:
        """Gives back one of ``permits`` for each collected message."""
        self._sender = sender
        self._clock = clock
        self._tasks = tasks
        self._permits = permits
        self._loop = asyncio.get_running_loop()
        size_max = min(settings.batch_size_max, settings.max_message_size)
        self._accumulator: Accumulator[_Key, _Entry] = Accumulator(
            AccumulatorLimits(
                size_max=size_max,
                linger_s=settings.linger,
            )
        )
        # Larger ones are compressed, which batches are not.
        self._body_size_max = min(settings.compress_over - 1, size_max - OVERHEAD_SIZE)
        self._may_forbid = sender.may_forbid
        self._lingers = bool(settings.linger)
        self._expects_company = True
        self._turn_scheduled = False
        self._now = 0.0
        self._timer: TimerHandle | None = None
        self._closed = False

    @property
    def size(self) -> int:
        """Bytes of messages that wait or are in flight."""
        return self._accumulator.size

    def suits(self, state: TopicState, message: Message) -> bool:
        """Whether this message may be part of a batch."""
        size = len(message.body)
        properties = message.properties
        return (
            size <= self._body_size_max
            and not state.is_retry
            and not self._may_forbid
            and not (properties and not _GO_ALONE.isdisjoint(properties))
        )

    def begin_alone(self) -> bool:
        """Whether to send the next message alone; :meth:`end_alone` must follow."""
        if self._expects_company or self._lingers or self._accumulator.size:
            return False
        self._expects_company = True  # for messages that come during this send
        return True

    def end_alone(self) -> None:
        """A message that was sent alone has its outcome."""
        if not self._accumulator.size:
            self._expects_company = False

    def collect(
        self,
        state: TopicState,
        message: Message,
        queue: MessageQueue | None,
        shard: str | None,
        mode: SendMode,
        timeout_s: float,
        held_size: int,
    ) -> asyncio.Future[SendResult]:
        """Add a message for which :meth:`suits` is true; returns the future of its result.

        The caller has taken a permit of ``held_size``; it is given back with the outcome.
        Raises ClientStateError after :meth:`close`, InvalidMessageError.
        """
        if self._closed:  # the producer may have stopped during the wait for a permit
            raise ClientStateError(STOPPED)
        sender = self._sender
        unique_id = sender.next_id()
        extra = sender.common
        if shard is not None:
            extra = {**(extra or {}), PROPERTY_SHARDING_KEY: shard}
        properties = property_text(message, unique_id, extra)
        part = batch_part(message, properties)
        future: asyncio.Future[SendResult] = self._loop.create_future()
        is_sync = mode is SendMode.SYNC
        key = (state, queue, message.wait_store_ok, message.tag, is_sync, timeout_s)
        entry = _Entry(message, unique_id, properties, part, held_size, future)
        if not self._turn_scheduled:
            self._now = self._clock.monotonic()  # all that comes in this turn comes now
        full = self._accumulator.add(key, entry, len(part), self._now)
        if full is not None:
            self._start(full)
        if not self._turn_scheduled:
            self._schedule()
        return future

    # ---- when ------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Schedule the end of the turn, or the timer, for batches that wait."""
        accumulator = self._accumulator
        if accumulator.wants_turn:
            if not self._turn_scheduled:
                self._turn_scheduled = True
                self._now = self._clock.monotonic()  # also where an answer began the turn
                self._loop.call_soon(self._turn_ended)
        elif self._timer is None and (when := accumulator.next_due()) is not None:
            self._timer = self._clock.call_at(when, self._release_due, when)

    def _turn_ended(self) -> None:
        self._turn_scheduled = False
        for batch in self._accumulator.turn_ended():
            self._start(batch)
        self._schedule()

    def _release_due(self, when: float) -> None:
        self._timer = None
        # A timer may fire a little early: what was due counts as due.
        for batch in self._accumulator.release_due(max(when, self._clock.monotonic())):
            self._start(batch)
        self._schedule()

    def flush(self) -> None:
        """Send all batches that wait."""
        for batch in self._accumulator.drain():
            self._start(batch)

    def close(self) -> None:
        """Send all batches that wait, and refuse further messages."""
        self.flush()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- batches in flight --------------------------------------------------------------------

    def _start(self, batch: Batch[_Key, _Entry]) -> None:
        """Start to send a batch; never raises, because the caller may have another one."""
        try:
            self._tasks.spawn(self._send(batch), name="batch")
        except LifecycleError as error:
            self._fail(batch.entries, error)
            self._ended(batch)

    async def _send(self, batch: Batch[_Key, _Entry]) -> None:
        state, queue, _, _, is_sync, timeout_s = batch.key
        mode = SendMode.SYNC if is_sync else SendMode.ASYNC
        entries = batch.entries
        try:
            parcel = self._parcel(entries)
            result = await self._sender.send(state, parcel, mode, timeout_s, batch.since, queue)
        except asyncio.CancelledError:
            self._fail(entries, ClientStateError(STOPPED))
            raise
        except Exception as error:  # noqa: BLE001 - any error is the outcome of all entries
            self._fail(entries, error)
        else:
            results = split_result(result, parcel.part_ids) if parcel.part_ids else (result,)
            for entry, own_result in zip(entries, results, strict=True):
                future = entry.future
                if not future.done():
                    future.set_result(own_result)
        finally:
            self._ended(batch)

    def _ended(self, batch: Batch[_Key, _Entry]) -> None:
        """A batch has its outcome: give back its permits, and let the next batch be sent."""
        entries = batch.entries
        self._permits.give(sum([entry.held_size for entry in entries]), len(entries))
        self._accumulator.ended(batch)
        self._schedule()

    def _parcel(self, entries: list[_Entry]) -> Parcel:
        if len(entries) > 1:
            self._expects_company = True
            return self._sender.batch_parcel(
                [entry.message for entry in entries],
                [entry.part for entry in entries],
                [entry.unique_id for entry in entries],
            )
        self._expects_company = False
        entry = entries[0]
        body = entry.message.body
        if type(body) is not bytes:  # the application may have changed it since
            body = entry.part[BATCH_HEAD_SIZE : BATCH_HEAD_SIZE + len(body)]
        return Parcel(
            messages=(entry.message,),
            properties=entry.properties,
            body=body,
            flag=checked_flag(entry.message),
            msg_id=entry.unique_id,
        )

    def _fail(self, entries: list[_Entry], error: Exception) -> None:
        for entry in entries:
            if not entry.future.done():
                entry.future.set_exception(own_copy(error))


def own_copy(error: Exception) -> Exception:
    """A copy of an error, because each raise adds a traceback to it."""
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001 - an error class that cannot be copied
        return error
    copied.__cause__ = error.__cause__
    copied.__traceback__ = error.__traceback__
    return copied
