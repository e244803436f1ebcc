"""The pop consumer: takes messages from any queue, and acknowledges each of them.

::

    async with PopConsumer("workers", options, invisible=60).subscribe("Jobs") as consumer:
        async for message in consumer:          # or: await consumer.receive(32, wait=10)
            try:
                await work(message)
            except Exception:
                await message.nack(delay=30)    # again in 30 s
            else:
                await message.ack()

No queue belongs to a consumer: any number of them share a topic of a single queue, and a slow one
delays no other. A received message is hidden from the others for the *invisible time*. If it is
not acknowledged by then, it is delivered again, to any of them, as the next attempt; so is a
message that :meth:`~PopConsumer.nack` gives back, after its delay. :meth:`~PopConsumer.extend`
gives a message more time. A message that failed more often than ``max_reconsume_times`` becomes a
dead letter. There is no order.

``async for`` and ``receive`` never acknowledge by themselves. An acknowledgement after the
invisible time raises :class:`~skylark.client.errors.ReceiptExpiredError`: another consumer may be
at work on the message. Delivery is at least once.

Acknowledge lists where you can, or from many tasks: acks that meet on the way share a request. For
the best rate run several receives at a time. A cancelled receive loses nothing, see
:mod:`~skylark.client.consumer.pop.pop_fetcher`.

Counterpart of the simple consumer of Java's 5.x clients, over the remoting protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Final, Self, Unpack, cast

from skylark.client.consumer.consumer_send_back import SendBackClient
from skylark.client.consumer.consumer_start import ConsumerStart
from skylark.client.consumer.pop.pop_failures import PopFailures
from skylark.client.consumer.pop.pop_fetcher import PopFetcher
from skylark.client.consumer.pop.pop_member import PopMember
from skylark.client.consumer.pop.pop_options import (
    INVISIBLE_MIN_S,
    POLL_S,
    PopKeywords,
    PopSettings,
    duration_ms,
    init_mode,
    retry_delay_ms,
)
from skylark.client.consumer.pop.pop_receipts import PopReceipts, unacknowledged, wait_for_change
from skylark.client.consumer.pop.pop_source import PopContext
from skylark.client.consumer.pop.popped_message import PoppedMessage, PoppedRecord, PopReceipt
from skylark.client.consumer.pull_api import check_sql
from skylark.client.consumer.rebalance_executor import announce
from skylark.client.consumer.subscription import (
    Subscription,
    make_subscription,
    require_same_filter,
)
from skylark.client.core.argument_checks import checks_call, refused
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_options import ClientOptions, Duration, given_options
from skylark.client.core.client_options import seconds as in_seconds
from skylark.client.core.client_runtime import ClientRuntime, runtime_of
from skylark.client.core.hooks import ConsumeContext, ConsumeHooks, hook_methods
from skylark.client.core.instance_registry import acquire_instance
from skylark.client.core.serializers import deserializing_hooks
from skylark.client.core.service_state import (
    ServiceState,
    Startable,
    require_new,
    require_not_stopped,
    require_running,
)
from skylark.client.core.validation import check_group, check_hooks, check_topic
from skylark.client.errors import ReceiptExpiredError
from skylark.client.metrics import ConsumeMeter
from skylark.client.trace.trace_hooks import consumer_tracing
from skylark.core.errors import ClientError, ClientStateError, SkylarkError
from skylark.core.lifecycle import Tasks, join
from skylark.wire.message import MessageRecord

logger = logging.getLogger(__name__)

#: How many messages a single receive may ask for.
RECEIVE_MAX: Final = 1024
_MESSAGES: Final = "a received message, or a list of them"


class PopConsumer(Startable):
    """See the module docstring; keywords are those of PopSettings."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        runtime: ClientRuntime | None = None,
        **settings: Unpack[PopKeywords],
    ) -> None:
        """Nothing is sent before :meth:`start`.

        ``hooks``: see ConsumeHook and FilterHook in :mod:`skylark.client.core.hooks`. Consume hooks
        and traces count messages as consumed when they are handed out.
        """
        check_group(group)
        self.group = group
        self.options = given_options(options)
        self.settings = PopSettings(**settings)
        self.state = ServiceState.CREATE_JUST
        deserializing = deserializing_hooks(self.settings.value_deserializer)
        self._hooks = (*deserializing, *check_hooks(hooks))
        self._runtime = runtime_of(self.options, runtime)
        self._wanted: dict[str, tuple[str | None, str | None]] = {}  # topic -> tags, sql
        self._running: _Running | None = None
        self._stopping: asyncio.Task[None] | None = None
        #: What messages are and whom they call; the blocking interface has others.
        self._message_type: type[PoppedRecord] = PoppedMessage
        self._message_owner: object = self

    def __repr__(self) -> str:
        return f"<PopConsumer {self.group} {self.state.value}>"

    # ---- subscriptions ---------------------------------------------------------------------------

    @checks_call
    def subscribe(self, topic: str, tags: str | None = None, *, sql: str | None = None) -> Self:
        """Receive the messages of a topic: all, those with tags (``A || B``), or by SQL.

        A topic has one filter. Raises ClientError.
        """
        check_topic(topic)
        subscription = make_subscription(topic, tags, sql=sql, now_ms=0)  # raises here, not later
        known = self._wanted.get(topic)
        if known is not None:
            before = make_subscription(topic, known[0], sql=known[1], now_ms=0)
            require_same_filter(before, subscription)
        if self.state in (ServiceState.START_FAILED, ServiceState.SHUTDOWN_ALREADY):
            require_running(self.state, f"consumer {self.group}")
        self._wanted[topic] = (tags, sql)
        self._announce(topic)
        return self

    @checks_call
    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of a topic; what was received can still be acknowledged."""
        if self._wanted.pop(topic, None) is not None:
            self._announce(topic)

    def _announce(self, topic: str) -> None:
        running = self._running
        if running is None or self.state is not ServiceState.RUNNING:
            return
        name = running.instance.namespace.wrap(topic)
        known = {t: each for t, each in running.member.subscriptions.items() if t != name}
        if topic in self._wanted:
            known[name] = self._on_wire(running.instance, topic)
        running.member.subscriptions = known
        added = name if topic in self._wanted else None
        running.tasks.spawn(announce(running.instance, added), name="announce")

    def _on_wire(self, instance: ClientInstance, topic: str) -> Subscription:
        tags, sql = self._wanted[topic]
        name = instance.namespace.wrap(topic)
        return make_subscription(name, tags, sql=sql, now_ms=instance.runtime.clock.now_ms())

    # ---- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group; raises ClientError, also for SQL that a broker refuses.

        Waits for a name server, up to ``start_timeout`` of the options. A start that failed or was
        cancelled may be repeated.
        """
        require_new(self.state, f"consumer {self.group}")
        if not self._wanted:
            raise ClientError(
                f"{self.group} subscribes nothing", hint="call subscribe() before start()"
            )
        self.state = ServiceState.START_FAILED
        running = _Running(self, self._hooks)
        try:
            await running.start()
            require_not_stopped(self.state, f"consumer {self.group}")
            self._running = running
            self.state = ServiceState.RUNNING
        except BaseException:
            await join(asyncio.ensure_future(running.stop()))
            if self.state is not ServiceState.SHUTDOWN_ALREADY:
                self.state = ServiceState.CREATE_JUST
            raise
        logger.info("consumer %s started as %s", self.group, running.instance.client_id)

    async def stop(self) -> None:
        """Finish acks, give back what was not handed out, and leave the group.

        Messages that were handed out and not acknowledged come again when their invisible time is
        over. A second call waits too. A cancellation ends the wait, not the stop.
        """
        if self._stopping is None:
            if self._running is not None:
                self._running.check_loop(self.group)
            self.state = ServiceState.SHUTDOWN_ALREADY
            if self._running is None:
                return
            work = self._running.stop()
            self._stopping = asyncio.get_running_loop().create_task(work, name=f"stop {self.group}")
        await join(self._stopping)

    def _require_running(self) -> _Running:
        if self.state is not ServiceState.RUNNING or self._running is None:
            require_running(self.state, f"consumer {self.group}")
        running = self._running
        assert running is not None
        running.check_loop(self.group)
        return running

    # ---- messages --------------------------------------------------------------------------------

    async def receive(
        self, n: int | None = None, *, wait: Duration = POLL_S
    ) -> list[PoppedMessage]:
        """The next messages, at most ``n`` (``batch`` unless given); at least one if one comes.

        Waits up to ``wait`` for the first, and returns an empty list without one. Raises
        NoRouteError for a topic that does not exist, ClientError without any subscription,
        BrokerError and TransportError.
        """
        running = self._require_running()
        count = self.settings.batch if n is None else n
        if type(count) is not int or not 1 <= count <= RECEIVE_MAX:
            raise refused("n", n, f"a whole number from 1 to {RECEIVE_MAX}")
        wait_s = in_seconds(wait, "wait")
        if wait_s < 0:
            raise refused("wait", wait, "not negative")
        found = await running.fetcher.receive(count, wait_s)
        if found:
            running.received(found)
        return cast(list[PoppedMessage], found)

    def __aiter__(self) -> AsyncIterator[PoppedMessage]:
        """The messages one by one, without end; see :meth:`messages`."""
        return self.messages()

    async def messages(self) -> AsyncGenerator[PoppedMessage, None]:
        """What ``async for`` over the consumer gives: messages, which are yours to acknowledge.

        While brokers or routes are away it logs that, tries again, and goes on when they are back.
        Each message has at least two thirds of its invisible time left. What was received and not
        handed out when the iteration ends is for the next receive.
        """
        running = self._require_running()
        pause_s = in_seconds(self.options.pull_error_delay)
        failures = PopFailures(f"receiving messages for {self.group}", pause_s)
        while self.state is ServiceState.RUNNING:
            try:
                # One at a time: what is not handed out stays where a stop can give it back.
                found = await running.fetcher.receive_one(POLL_S)
            except ClientStateError:
                raise
            except SkylarkError as error:
                if not running.member.subscriptions:
                    raise
                await running.clock.sleep(failures.pause_after(error))
                continue
            failures.ended()
            if found:
                running.received(found)
                yield cast(PoppedMessage, found[0])

    def _put_back(self, messages: Sequence[PoppedRecord]) -> None:
        """Keep messages for the next receive, or give them back: their caller was interrupted."""
        if self._running is not None:
            self._running.fetcher.keep(messages)

    # ---- receipts --------------------------------------------------------------------------------

    async def ack(self, messages: PoppedRecord | Iterable[PoppedRecord]) -> None:
        """The messages (one, or several) are done; returns when the brokers know it.

        Raises BrokerError and TransportError: then messages may come again. If there are several,
        the error names those that failed; the others are done, and the same call repeats only
        those that failed. After the others were acknowledged: ClientError for what this consumer
        has not received, ClientStateError for a message that was given back by :meth:`nack`, else
        ReceiptExpiredError for those whose invisible time is over.
        """
        running = self._require_running()
        wanted = [messages] if isinstance(messages, PoppedRecord) else messages
        if not isinstance(wanted, Iterable):
            raise refused("messages", messages, _MESSAGES)
        wanted = list(wanted)
        await _wait_for_changes(wanted)
        now_ms = running.clock.steady_ms()
        expired: list[PoppedRecord] = []
        valid: list[PoppedRecord] = []
        wrong: ClientError | None = None
        for message in wanted:
            try:
                self._check_message("messages", message, _MESSAGES)
            except ClientError as error:
                wrong = wrong or error
                continue
            if not message.is_settled:
                is_late = now_ms >= message.receipt.visible_at_ms
                (expired if is_late else valid).append(message)
        if valid:
            failure = await self._ack_valid(running, valid)
            if done := [each for each in valid if each.is_settled]:
                running.accepted(done, now_ms)
            if failure is not None:
                raise failure
        if wrong is not None:
            raise wrong
        if expired:
            raise ReceiptExpiredError(expired)

    async def _ack_valid(
        self, running: _Running, messages: Sequence[PoppedRecord]
    ) -> Exception | None:
        """Acknowledge messages; those that fail may be acknowledged again."""
        for message in messages:
            message.is_settled = True
        acks = running.receipts.ack(messages)
        failure: Exception | None = None
        try:
            for future, _ in acks:
                try:
                    await future
                except Exception as error:  # noqa: BLE001 - that of a hook, too
                    failure = failure or error
            if failure is None:
                return None
        finally:  # also after a cancellation
            failed = [each for future, some in acks if not _succeeded(future) for each in some]
            for message in failed:
                message.is_settled = False
        return unacknowledged(failure, failed, len(messages))

    async def nack(self, message: PoppedRecord, delay: Duration | None = None) -> None:
        """The message failed: deliver it again after ``delay``, as its next attempt.

        Without a delay that is 10 s after the first failure, then 30 s, 1, 2, 3 ... 10 min, 20
        min, 30 min, 1 h, 2 h. A message that failed more often than ``max_reconsume_times`` becomes
        a dead letter, unless it comes from a dead-letter topic. Raises as :meth:`ack`.
        """
        running, popped = await self._open(message)
        if running.context.is_dead(popped):
            await self._make_dead_letter(running, popped)
            return
        if delay is None:
            delay_ms = retry_delay_ms(popped.record.reconsume_times)
        else:
            hint = "without it the delay grows with the number of failures"
            delay_ms = max(1, duration_ms("delay", delay, 0.0, hint))
        await running.receipts.change(popped, delay_ms)
        popped.is_settled = popped.is_given_back = True
        running.failed(popped)

    async def _make_dead_letter(self, running: _Running, message: PoppedRecord) -> None:
        if running.receipts.is_expired(message):
            raise ReceiptExpiredError([message])
        if not await running.context.make_dead_letter(message):
            message.is_settled = False
            raise ClientError(f"no broker has stored the dead letter {message}")
        message.is_given_back = True
        running.failed(message)

    async def extend(self, message: PoppedRecord, seconds: Duration) -> None:
        """Hide the message for ``seconds`` from now on; it keeps its attempt. Raises as ack."""
        running, popped = await self._open(message)
        hint = "nack(delay=0) lets others have the message at once"
        await running.receipts.change(
            popped, duration_ms("seconds", seconds, INVISIBLE_MIN_S, hint)
        )

    async def _open(self, message: PoppedRecord) -> tuple[_Running, PoppedRecord]:
        """The message, which is not settled; after a change that is under way."""
        self._require_running()
        await _wait_for_changes([message])
        running = self._require_running()
        self._check_message("message", message, "a received message")
        if message.is_settled:
            raise ClientStateError(f"{message} was acknowledged already")
        return running, message

    def _check_message(self, name: str, message: object, wanted: str) -> None:
        """Raise ClientError for what is not a message of this consumer, or was given back."""
        if not isinstance(message, PoppedRecord):
            raise refused(name, message, wanted)
        if message._owner is not self._message_owner:
            raise ClientError(
                f"{message} was not received by this consumer of group {self.group}",
                hint="its own methods ack(), nack() and extend() know the consumer",
            )
        if message.is_given_back:
            raise ClientStateError(
                f"{message} was given back: it will be delivered again, as another message"
            )


async def _wait_for_changes(messages: Sequence[object]) -> None:
    """Return when no message is being changed; so their state may be checked, and acted upon."""
    while True:
        for message in messages:
            if isinstance(message, PoppedRecord) and message._changing is not None:
                await wait_for_change(message)
                break
        else:
            return


def _succeeded(future: asyncio.Future[None]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


class _Running:
    """The parts of a started pop consumer, on its loop; the exit stack ends them in reverse."""

    def __init__(self, consumer: PopConsumer, hooks: Sequence[object]) -> None:
        self._consumer = consumer
        self._settings = consumer.settings
        self._hooks = hooks
        self.tasks = Tasks(f"consumer {consumer.group}", limit=None)  # acks are batched
        self._exit = AsyncExitStack()
        self._consume_hooks = ConsumeHooks(hooks)
        self._meters: dict[str, ConsumeMeter] = {}
        options = consumer.options
        self.instance = acquire_instance(options, options.client_id(), consumer._runtime)
        self._exit.push_async_callback(self.instance.release)
        self.clock = self.instance.runtime.clock

    async def start(self) -> None:
        consumer, instance = self._consumer, self.instance
        await instance.start()
        group = instance.namespace.wrap(consumer.group)
        self.member = PopMember(instance, group, self._settings.consume_from_where)
        wanted = {
            each.topic: each
            for each in (consumer._on_wire(instance, topic) for topic in consumer._wanted)
        }
        starting = ConsumerStart(
            instance=instance,
            group=group,
            timeout_s=in_seconds(consumer.options.start_timeout),
        )
        await starting.fetch_routes(wanted)
        await starting.require_free_id(wanted)
        self.link = instance.open_link()
        self._exit.push_async_callback(self.link.release)
        if consumer.options.trace:
            dispatcher, hook = consumer_tracing(instance, consumer.options, consumer.group)
            self._exit.push_async_callback(dispatcher.stop)
            self._consume_hooks = ConsumeHooks((*self._hooks, hook))
        self._exit.push_async_callback(self.tasks.cancel_and_wait)
        self._make_parts(group)
        for subscription in wanted.values():
            await check_sql(instance, self.link, group, subscription)
        self.member.subscriptions = wanted
        await instance.register_consumer(self.member)
        self._exit.push_async_callback(instance.unregister_consumer, self.member)
        self._exit.push_async_callback(self._settle_all)
        await instance.heartbeat_all(whole=True)

    def _make_parts(self, group: str) -> None:
        settings, link = self._settings, self.link
        self.receipts = PopReceipts(link, group, self.tasks)
        self.context = PopContext(
            link=link,
            namespace=self.instance.namespace,
            group=group,
            client_id=self.instance.client_id,
            receipts=self.receipts,
            sends_back=SendBackClient(
                link,
                group,
                reconsume_times_max=settings.reconsume_times_max,
                unit_mode=self.instance.options.unit_mode,
            ),
            tasks=self.tasks,
            invisible_ms=settings.invisible_ms,
            init_mode=init_mode(settings.consume_from_where),
            reconsume_times_max=settings.reconsume_times_max,
            filters=hook_methods(self._hooks, "filter_messages"),
        )
        message_type, owner = self._consumer._message_type, self._consumer._message_owner

        def make(
            record: MessageRecord, broker_name: str, topic: str | None, receipt: PopReceipt
        ) -> PoppedRecord:
            return message_type(record, broker_name, topic, receipt, owner)

        self.fetcher = PopFetcher(
            self.context, lambda: self.member.subscriptions, make, self.meter, settings.batch
        )

    async def stop(self) -> None:
        await self._exit.aclose()

    async def _settle_all(self) -> None:
        await self.fetcher.close()
        await self.receipts.flush()

    def check_loop(self, group: str) -> None:
        """Raise ClientStateError on another loop, or in another process, than that of the start."""
        self.link.check_loop(f"consumer {group}")

    # ---- observation -----------------------------------------------------------------------------

    def meter(self, topic: str) -> ConsumeMeter:
        """The meter of a topic, as brokers know it."""
        meter = self._meters.get(topic)
        if meter is None:
            meter = self._meters[topic] = self.instance.consume_meter(self.member.group, topic)
        return meter

    def received(self, messages: list[PoppedRecord]) -> None:
        """Messages are handed out."""
        if self._consume_hooks.any:
            context = ConsumeContext(
                group=self._consumer.group,
                messages=messages,
                queue=messages[0].queue,
                client_id=self.instance.client_id,
                namespace=self.instance.namespace.name,
            )
            self._consume_hooks.before(context)
            context.success, context.status = True, "CONSUME_SUCCESS"
            context.return_type = "SUCCESS"
            self._consume_hooks.after(context)

    def accepted(self, messages: Sequence[PoppedRecord], now_ms: int) -> None:
        """Messages were acknowledged."""
        receipt = messages[0].receipt
        took_ms = max(0, now_ms - receipt.visible_at_ms + receipt.invisible_ms)
        self.meter(receipt.topic).consumed(len(messages), 0, took_ms)

    def failed(self, message: PoppedRecord) -> None:
        """A message was given back."""
        self.meter(message.receipt.topic).consumed(0, 1, 0)
