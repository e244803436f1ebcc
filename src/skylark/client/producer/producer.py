"""The producer: sends messages, alone, in batches and in transactions.

::

    async with Producer("orders", ClientOptions(namesrv="127.0.0.1:9876")) as producer:
        result = await producer.send(Message("T", b"hello", tag="A", keys=["k"]))
        await producer.send(message, shard="order-1")           # equal keys: the same queue
        await producer.send(message, delay=timedelta(minutes=3))
        futures = [await producer.submit(m) for m in messages]  # without waiting for responses

Ways to send, and what they do about failures (:mod:`skylark.client.producer.send_retry`):

=============  ==================================  ==========================================
``send``       waits for the result                tries other brokers
``submit``     a future has the result             others if a broker is busy or silent
``send_batch`` many messages, one request          as ``send``
``send_oneway``  no result                         raises only errors on this side
=============  ==================================  ==========================================

Many sends may be in flight at once. Small messages that are sent at the same time share a request
(:mod:`skylark.client.producer.send_accumulator`), unless ``batching=False``. The messages in flight
are limited by number and bytes; at the limit ``send`` and ``submit`` wait, and the wait counts
against their timeout.

A producer belongs to the event loop on which it was started. ``stop`` waits for the outcome of
submitted messages. Cancelling a send does not undo it. Counterpart of Java's
``DefaultMQProducer`` and ``TransactionMQProducer``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any, Never, TypeVar, Unpack

from skylark.client.core.argument_checks import check_function, checks_call
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_message import Message, MessageExt, SendResult
from skylark.client.core.client_options import (
    ClientOptions,
    Duration,
    given_options,
    in_seconds,
    seconds,
)
from skylark.client.core.client_runtime import ClientRuntime
from skylark.client.core.instance_registry import acquire_instance
from skylark.client.core.permits import Permits
from skylark.client.core.serializers import serialized
from skylark.client.core.service_state import (
    ServiceState,
    Startable,
    require_new,
    require_not_stopped,
    require_running,
)
from skylark.client.core.validation import (
    check_group,
    check_hooks,
    check_topic,
    checked_messages,
    too_many_arguments,
)
from skylark.client.producer.accumulator_runner import STOPPED
from skylark.client.producer.producer_components import ProducerParts
from skylark.client.producer.producer_settings import ProducerKeywords, ProducerSettings
from skylark.client.producer.queue_selector import apply_selector, shard_index
from skylark.client.producer.send_options import (
    SendKeywords,
    broker_of_handle,
    check_keywords,
    delay_properties,
    with_shard,
)
from skylark.client.producer.send_request import batch_part, property_text, split_result
from skylark.client.producer.send_retry import SendMode
from skylark.client.producer.sender import Sender, TopicState
from skylark.client.producer.transaction_producer import (
    Checker,
    Transaction,
    TransactionListener,
    TransactionResult,
    checked_listener,
)
from skylark.client.telemetry import Telemetry, find_telemetry
from skylark.client.trace.trace_dispatcher import TraceDispatcher
from skylark.client.trace.trace_hooks import ProducerTraceHook
from skylark.core.errors import ClientError, ClientStateError, InvalidMessageError
from skylark.core.lifecycle import join
from skylark.core.names import is_dlq_topic, is_retry_topic
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.headers.send import RecallMessageRequestHeader

CheckerT = TypeVar("CheckerT", bound=Checker)


class Producer(Startable):
    """See the module docstring."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        transaction_listener: TransactionListener | None = None,
        runtime: ClientRuntime | None = None,
        **settings: Unpack[ProducerKeywords],
    ) -> None:
        """``hooks``: see :mod:`skylark.client.core.hooks`; ``settings``: see ProducerSettings."""
        check_group(group)
        self.group = group
        self.options = given_options(options)
        self.settings = ProducerSettings(**in_seconds(settings))
        self.state = ServiceState.CREATE_JUST
        self._serialize = self.settings.value_serializer
        self._hooks = check_hooks(hooks)
        self._listener = transaction_listener
        self._checker: Checker | None = None
        if transaction_listener is not None:
            self._checker = checked_listener(transaction_listener).check
        self._runtime = runtime
        self._parts: ProducerParts | None = None
        self._spans: Telemetry | None = None
        self._tracer: TraceDispatcher | None = None
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Producer {self.group} {self.state.value}>"

    # ---- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and start; raises ClientStateError if it was started before."""
        require_new(self.state, f"producer {self.group}")
        self.state = ServiceState.START_FAILED
        instance = acquire_instance(self.options, self.options.client_id(), self._runtime)
        parts: ProducerParts | None = None
        try:
            await instance.start()
            parts = self._make_parts(instance)
            await parts.start(self.settings.topics)
            require_not_stopped(self.state, f"producer {self.group}")
            if self._tracer is not None:
                self._tracer.start()
        except BaseException:
            if parts is not None:
                await parts.stop(0.0)
            await instance.release()
            raise
        self._parts = parts
        self.state = ServiceState.RUNNING

    def _make_parts(self, instance: ClientInstance) -> ProducerParts:
        options, hooks = self.options, self._hooks
        self._spans = find_telemetry(
            options.telemetry, client_id=instance.client_id, namespace=instance.namespace.name
        )
        if options.trace:
            self._tracer = TraceDispatcher(instance.runtime, options, self.group, "PRODUCE")
            hooks = (*hooks, ProducerTraceHook(self._tracer, instance.runtime.clock))
        parts = ProducerParts(instance, self.group, self.settings, hooks)
        parts.transactions.checker = self._checker
        parts.transactions.spans = self._spans
        return parts

    async def stop(self) -> None:
        """Stop after submitted messages have their outcome, within ``send_timeout``.

        New sends fail. Does nothing if the producer does not run.
        """
        if self._stopping is None:
            parts = self._parts
            if parts is not None:
                self._check_loop(parts)
            self._parts = None
            self.state = ServiceState.SHUTDOWN_ALREADY
            if parts is None:
                return
            self._stopping = asyncio.get_running_loop().create_task(self._stop(parts))
        await join(self._stopping)

    async def _stop(self, parts: ProducerParts) -> None:
        try:
            await parts.stop(self.settings.send_timeout)
        finally:
            try:
                if self._tracer is not None:
                    await self._tracer.stop()
            finally:
                await parts.instance.release()

    def _use(self) -> ProducerParts:
        parts = self._parts
        if parts is None:
            require_running(self.state, f"producer {self.group}")
            raise AssertionError("a running producer has its parts")
        self._check_loop(parts)
        return parts

    def _check_loop(self, parts: ProducerParts) -> None:
        parts.link.check_loop(f"producer {self.group}")

    # ---- sending ---------------------------------------------------------------------------------

    async def send(self, message: Message, *more: Never, **how: Unpack[SendKeywords]) -> SendResult:
        """Send and wait until it is stored.

        Raises InvalidMessageError, NoRouteError, BrokerError, SendFailedError, SendTimeoutError or
        another SkylarkError; after a TimeoutError or a SendFailedError the
        message may be stored anyway.
        """
        if more:
            raise too_many_arguments(message)
        parts = self._use()
        if self._serialize is not None:
            message = self._serialized(message)
        if self._spans is None:
            return await self._send(parts, message, how)
        with self._spans.sending(message) as sending:
            result = await self._send(parts, sending.message, how)
            sending.done(result)
            return result

    async def _send(self, parts: ProducerParts, message: Message, how: SendKeywords) -> SendResult:
        state = parts.sender.checked(message)
        queue, shard, delay, timeout_s = None, None, None, self.settings.send_timeout
        began = parts.clock.monotonic()
        if how:
            queue, shard, delay, timeout_s = await self._resolve(parts, state, message, how)
        collector = parts.collector
        batching = self.settings.batching and delay is None and collector.suits(state, message)
        if batching and not collector.begin_alone():
            size = len(message.body)
            if not parts.permits.try_take(size):
                await parts.permits.take(size, timeout_s - (parts.clock.monotonic() - began))
                timeout_s = _time_left(timeout_s, parts.clock.monotonic() - began)
            try:
                collected = collector.collect(
                    state, message, queue, shard, SendMode.SYNC, timeout_s, size
                )
            except BaseException:
                parts.permits.give(size)
                raise
            return await collected
        extra, sender = with_shard(delay, shard), parts.sender
        try:
            parcel = sender.small_parcel(message, extra) or await sender.parcel(message, extra)
            return await sender.send(state, parcel, SendMode.SYNC, timeout_s, began, queue)
        finally:
            if batching:
                collector.end_alone()

    async def submit(
        self, message: Message, **how: Unpack[SendKeywords]
    ) -> asyncio.Future[SendResult]:
        """Send without waiting for the response: the future has the result or the error.

        Waits only while too many messages are in flight (``pending_max``,
        ``pending_bytes_max``); raises TooManyRequestsError if that lasts longer than the timeout.
        """
        return await self._submit_in_span(self._use(), self._serialized(message), how)

    async def _submit_in_span(
        self,
        parts: ProducerParts,
        message: Message,
        how: SendKeywords,
        began: float | None = None,
        held_size: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """See :meth:`_submit`, with a span where there is telemetry."""
        if self._spans is None:
            return await self._submit(parts, message, how, began, held_size)
        sending = self._spans.begin(message)
        try:
            future = await self._submit(parts, sending.message, how, began, held_size)
        except BaseException as error:
            sending.failed(error)
            sending.end()
            raise
        future.add_done_callback(sending.settle)
        return future

    async def _submit(
        self,
        parts: ProducerParts,
        message: Message,
        how: SendKeywords,
        began: float | None,
        held_size: int | None,
    ) -> asyncio.Future[SendResult]:
        """Submit a message; its timeout runs since ``began``, or from now on.

        ``held_size``: size of the permit that a thread has already taken for it. The permit is
        given back with the outcome, or when this raises.
        """
        clock, permits = parts.clock, parts.permits
        has_waited = began is not None
        began = clock.monotonic() if began is None else began
        try:
            state = parts.sender.checked(message)
            queue, shard, delay, timeout_s = None, None, None, self.settings.send_timeout
            if how:
                queue, shard, delay, timeout_s = await self._resolve(parts, state, message, how)
            if held_size is None:
                size = len(message.body)
                if not permits.try_take(size):
                    await permits.take(size, timeout_s - (clock.monotonic() - began))
                    has_waited = True
                held_size = size
            if self.settings.batching and delay is None and parts.collector.suits(state, message):
                if has_waited:
                    timeout_s = _time_left(timeout_s, clock.monotonic() - began)
                return parts.collector.collect(
                    state, message, queue, shard, SendMode.ASYNC, timeout_s, held_size
                )
            _check_open(parts)  # the producer may have stopped during the wait for a permit
            future: asyncio.Future[SendResult] = parts.link.loop.create_future()
            extra = with_shard(delay, shard)
            work = _send_alone(parts.sender, state, message, extra, timeout_s, began, queue)
            parts.sends.spawn(_settle(future, work, permits, held_size), name="send")
        except BaseException:
            if held_size is not None:
                permits.give(held_size)
            raise
        return future

    async def send_batch(
        self, messages: Sequence[Message], **how: Unpack[SendKeywords]
    ) -> list[SendResult]:
        """Send messages of one topic in one request to one queue; returns their results in order.

        All or none are stored. Raises InvalidMessageError unless they have one topic and one
        ``wait_store_ok``, no delay, no retry topic, and fit into ``max_message_size``.
        """
        parts = self._use()
        messages = tuple(map(self._serialized, checked_messages(messages)))
        if not messages:
            raise InvalidMessageError("a batch without messages")
        if self._spans is None:
            return await self._send_batch(parts, messages, how)
        with self._spans.sending(*messages) as sending:
            return await self._send_batch(parts, sending.messages, how)

    async def _send_batch(
        self, parts: ProducerParts, messages: Sequence[Message], how: SendKeywords
    ) -> list[SendResult]:
        sender = parts.sender
        began = parts.clock.monotonic()
        states = {sender.checked(message) for message in messages}
        state = states.pop()
        if states:
            raise InvalidMessageError("the messages of a batch must have one topic")
        if len({message.wait_store_ok for message in messages}) > 1:
            raise InvalidMessageError("the messages of a batch differ in wait_store_ok")
        if state.is_retry:
            raise InvalidMessageError("a retry topic takes no batches")
        queue, shard, delay, timeout_s = await self._resolve(parts, state, messages[0], how)
        if delay:
            raise InvalidMessageError("the messages of a batch cannot be delayed")
        extra = with_shard(sender.common, shard)
        ids = [sender.next_id() for _ in messages]
        batch = [
            batch_part(message, property_text(message, unique_id, extra))
            for message, unique_id in zip(messages, ids, strict=True)
        ]
        parcel = sender.batch_parcel(messages, batch, ids)
        result = await sender.send(state, parcel, SendMode.SYNC, timeout_s, began, queue)
        return list(split_result(result, ids))

    async def send_oneway(self, message: Message, **how: Unpack[SendKeywords]) -> None:
        """Send a message without a response; returns when a connection has accepted it."""
        parts, message = self._use(), self._serialized(message)
        if self._spans is None:
            await self._send_oneway(parts, message, how)
            return
        with self._spans.sending(message) as sending:
            await self._send_oneway(parts, sending.message, how)

    async def _send_oneway(self, parts: ProducerParts, message: Message, how: SendKeywords) -> None:
        state = parts.sender.checked(message)
        queue, shard, delay, timeout_s = await self._resolve(parts, state, message, how)
        parcel = await parts.sender.parcel(message, with_shard(delay, shard))
        await parts.sender.send_oneway(state, parcel, timeout_s, queue)

    def _serialized(self, message: Message) -> Message:
        """The message with its value as the body, where there is a ``value_serializer``."""
        return message if self._serialize is None else serialized(message, self._serialize)

    async def flush(self) -> None:
        """Send waiting batches; wait until no batch and no submitted message is in flight.

        Waits for messages that are submitted meanwhile, too; not for other calls of ``send``.
        """
        parts = self._use()
        parts.collector.flush()
        await parts.sends.wait()

    @checks_call
    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic to which messages can be sent."""
        parts = self._use()
        check_topic(topic)
        found = await parts.sender.queues(parts.sender.state_of(topic))
        return [parts.sender.namespace.unwrap_queue(queue) for queue in found]

    def _timeout_s(self, timeout: Duration | None) -> float:
        return self.settings.send_timeout if timeout is None else seconds(timeout, "timeout")

    # ---- options of a send --------------------------------------------------------------

    async def _resolve(
        self, parts: ProducerParts, state: TopicState, message: Message, how: SendKeywords
    ) -> tuple[MessageQueue | None, str | None, dict[str, str] | None, float]:
        """The queue as brokers know it, the sharding key, delay properties, and the timeout."""
        check_keywords(how)
        timeout_s = self._timeout_s(how.get("timeout"))
        queue, selector, shard = how.get("queue"), how.get("selector"), how.get("shard")
        if (queue is not None) + (selector is not None) + (shard is not None) > 1:
            raise ClientError("give one of queue, selector and shard")
        sender = parts.sender
        if queue is not None:
            if queue.topic != message.topic:
                raise ClientError(
                    f"the message is for topic {message.topic}, the queue is of {queue.topic}"
                )
            queue = sender.namespace.wrap_queue(queue)
        elif selector is not None:
            found = await sender.queues(state)
            shown = [sender.namespace.unwrap_queue(each) for each in found]
            chosen = apply_selector(selector, shown, message, how.get("selector_arg"))
            queue = sender.namespace.wrap_queue(chosen)
        elif shard is not None:
            found = await sender.queues(state)
            queue = found[shard_index(shard, len(found))]
        key = None if shard is None else str(shard)
        return queue, key, delay_properties(how), timeout_s

    # ---- recall ----------------------------------------------------------------------------------

    @checks_call
    async def recall(
        self,
        topic: str,
        handle: str,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109 - part of the interface
    ) -> str:
        """Recall a timed message that is not delivered yet; returns its unique id.

        ``handle`` is the ``recall_handle`` of its result. Raises ClientError for an invalid handle,
        BrokerError if it is too late.
        """
        parts = self._use()
        check_topic(topic)
        if is_retry_topic(topic) or is_dlq_topic(topic):
            raise ClientError("topic is not supported")
        broker_name = broker_of_handle(handle)
        state = parts.sender.state_of(topic)
        await parts.sender.queues(state)
        address = parts.instance.routes.master(broker_name)
        if address is None:
            address = await parts.link.lookup.broker_of_topic(state.topic)
        header = RecallMessageRequestHeader(
            producer_group=parts.sender.group, topic=state.topic, recall_handle=handle
        )
        timeout_s = self._timeout_s(timeout)
        return await parts.link.calls.recall(address, header, broker_name, timeout_s)

    # ---- transactions ----------------------------------------------------------------------------

    def transaction_checker(self, checker: CheckerT) -> CheckerT:
        """Decorator: registers the function that returns how a transaction ended.

        A coroutine runs on the producer's loop, a plain function in a thread.
        """
        check_function("checker", checker)
        self._checker = checker
        if self._parts is not None:
            self._parts.transactions.checker = checker
        return checker

    @checks_call
    def transaction(
        self,
        message: Message,
        *,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> Transaction:
        """``async with``: commits the message if the block does not raise; see Transaction."""
        parts = self._use()
        times = delay_properties({"delay": delay, "deliver_at": deliver_at})
        timeout_s = self._timeout_s(timeout)
        return Transaction(parts.transactions, self._serialized(message), timeout_s, times)

    @checks_call
    async def send_in_transaction(
        self,
        message: Message,
        arg: object = None,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109 - part of the interface
    ) -> TransactionResult:
        """Send in a transaction; the ``transaction_listener`` gets the message and ``arg``."""
        parts = self._use()
        if self._listener is None:
            raise ClientError(
                "the producer has no transaction_listener",
                hint="Producer(group, options, transaction_listener=...)",
            )
        timeout_s = self._timeout_s(timeout)
        message = self._serialized(message)
        return await parts.transactions.run(message, arg, self._listener.execute, timeout_s)

    # ---- request and reply -----------------------------------------------------------------------

    @checks_call
    async def request(
        self,
        message: Message,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109 - part of the interface
    ) -> MessageExt:
        """Send a request and wait for its reply.

        Raises RequestReplyTimeoutError if no reply came, ClientError if it could not be sent.
        """
        timeout_s, requests = self._timeout_s(timeout), self._use().requests
        message = self._serialized(message)
        if self._spans is None:
            return await requests.request(message, timeout_s)
        with self._spans.sending(message) as sending:
            return await requests.request(sending.message, timeout_s)

    @checks_call
    async def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109 - part of the interface
    ) -> SendResult:
        """Send the reply to a request that a consumer received; raises CannotReplyError."""
        timeout_s = self._timeout_s(timeout)
        return await self._use().requests.reply(request, body, timeout_s)


async def _send_alone(
    sender: Sender,
    state: TopicState,
    message: Message,
    extra: dict[str, str] | None,
    timeout_s: float,
    began: float,
    queue: MessageQueue | None,
) -> SendResult:
    """Send a message alone; the caller does not wait for its result."""
    parcel = sender.small_parcel(message, extra) or await sender.parcel(message, extra)
    return await sender.send(state, parcel, SendMode.ASYNC, timeout_s, began, queue)


def _check_open(parts: ProducerParts) -> None:
    if parts.sends.closed:
        raise ClientStateError(STOPPED)


def _time_left(timeout_s: float, waited_s: float) -> float:
    """The rest of a timeout, rounded up to quarters of it: equal values can share a batch."""
    if timeout_s <= 0:
        return timeout_s
    step_s = timeout_s / 4
    return max(1, math.ceil((timeout_s - waited_s) / step_s)) * step_s


async def _settle(
    future: asyncio.Future[SendResult],
    work: Coroutine[Any, Any, SendResult],
    permits: Permits,
    size: int,
) -> None:
    """Run the send and set the result of the future."""
    try:
        result = await work
        if not future.done():
            future.set_result(result)
    except asyncio.CancelledError:
        if not future.done():
            future.set_exception(ClientStateError(STOPPED))
        raise
    except Exception as error:  # noqa: BLE001 - any error belongs into the future
        if not future.done():
            future.set_exception(error)
    finally:
        permits.give(size)
