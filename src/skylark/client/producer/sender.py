"""Sends one message or batch to a broker, with retries.

All sends use it: single messages, batches, half messages, requests and replies. A send becomes a
:class:`~skylark.client.producer.send_request.Parcel` once. Then each attempt chooses a queue
(:mod:`skylark.client.producer.queue_selector`), finds the master of its broker, and sends the
request; :mod:`skylark.client.producer.send_retry` decides about the next attempt. A broker that
could not be reached a moment ago is skipped while there is another one: that attempt counts as
failed. Belongs to one event loop. Counterpart of Java's ``DefaultMQProducerImpl`` (sendDefaultImpl,
sendKernelImpl).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_message import Message, SendResult
from skylark.client.core.hooks import SendContext, call_hooks, hook_methods
from skylark.client.core.validation import check_message
from skylark.client.metrics import NO_SEND_METER, SendMeter
from skylark.client.producer.latency_fault_tolerance import FaultTable
from skylark.client.producer.producer_settings import ProducerSettings
from skylark.client.producer.queue_selector import RoundRobin, choose_in_turn
from skylark.client.producer.send_request import (
    COMPRESSION_KINDS,
    Parcel,
    SendTemplate,
    batch_property_text,
    batch_wait_text,
    checked_flag,
    compress,
    property_text,
    read_result,
    split_result,
    unique_id_generator,
)
from skylark.client.producer.send_retry import SendMode, SendPlan
from skylark.core.errors import (
    BrokerError,
    ConnectError,
    InvalidMessageError,
    SkylarkError,
    TooManyRequestsError,
    TransportError,
)
from skylark.core.names import is_retry_topic
from skylark.wire import properties as names
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import V5_0_0, RequestCode
from skylark.wire.command import Command
from skylark.wire.layout import FLAG_TRANSACTION_PREPARED

#: Bodies up to this are compressed at once (under a millisecond); larger ones in a thread.
COMPRESS_INLINE_MAX: Final = 32 * 1024
REPLY_TYPE: Final = "reply"
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_REPLY: Final = int(RequestCode.SEND_REPLY_MESSAGE_V2)
_DELAY_NAMES: Final = (
    names.PROPERTY_DELAY,
    names.PROPERTY_TIMER_DELAY_SEC,
    names.PROPERTY_TIMER_DELAY_MS,
    names.PROPERTY_TIMER_DELIVER_MS,
)


class TopicState:
    """The state of one topic in a producer."""

    __slots__ = ("is_retry", "meter", "name", "template", "topic", "turn")

    def __init__(
        self, name: str, topic: str, template: SendTemplate, turn: RoundRobin, meter: SendMeter
    ) -> None:
        self.name = name  #: as the application knows it
        self.topic = topic  #: as brokers know it
        self.template = template
        self.turn = turn
        self.meter = meter
        self.is_retry = is_retry_topic(topic)


class Sender:
    """Sends the messages of one producer; see the module docstring."""

    def __init__(
        self,
        instance: ClientInstance,
        link: BrokerConnections,
        group: str,
        settings: ProducerSettings,
        *,
        hooks: Sequence[object] = (),
        faults: FaultTable | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """``group`` as the application knows it; ``faults`` where latency fault tolerance is on."""
        self.link = link
        self.namespace = namespace = instance.namespace
        self.group = namespace.wrap(group)  #: as brokers know it
        self._clock = instance.runtime.clock
        self.next_id = unique_id_generator(instance.options, self._clock).next_id
        self._instance = instance
        self._version_of = instance.broker_version
        self._settings = settings
        self._lookup = link.lookup
        self._routes = link.lookup.routes
        self._faults = faults
        self._rng = rng or random.Random()
        self._states: dict[str, TopicState] = {}
        self._compression = COMPRESSION_KINDS[settings.compress_type]
        self._forbidden = hook_methods(hooks, "check_forbidden")
        self._before = hook_methods(hooks, "before_send")
        self._after = hook_methods(hooks, "after_send")
        self._has_hooks = bool(self._forbidden or self._before or self._after)
        self._introduced: set[str] = set()  # addresses that got a heartbeat, or should have
        #: Properties that the client adds to every message.
        self.common = {names.PROPERTY_INSTANCE_ID: namespace.name} if namespace.name else None

    # ---- messages --------------------------------------------------------------------------------

    @property
    def may_forbid(self) -> bool:
        """Whether a hook may forbid single messages."""
        return bool(self._forbidden)

    def topics(self) -> list[str]:
        """The topics of earlier sends, as brokers know them; for any thread."""
        return [state.topic for state in tuple(self._states.values())]

    def checked(self, message: Message) -> TopicState:
        """Validate a message, and return the state of its topic.

        Raises ClientError or InvalidMessageError.
        """
        try:
            state, body = self._states.get(message.topic), message.body
        except (AttributeError, TypeError):  # it has no topic, or one that cannot be a key
            check_message(message)
            raise
        if (
            state is None
            or message.properties
            or type(body) is not bytes
            or not 0 < len(body) <= self._settings.max_message_size
        ):
            check_message(message, self._settings.max_message_size)
        return state or self.state_of(message.topic)

    def state_of(self, name: str) -> TopicState:
        """The state of the topic with this name, which is valid."""
        state = self._states.get(name)
        if state is None:
            topic = self.namespace.wrap(name)
            template = SendTemplate(
                self.group,
                topic,
                model=self._settings.topic_model,
                queue_count=self._settings.topic_queue_count,
                unit_mode=self._instance.options.unit_mode,
            )
            meter = NO_SEND_METER
            if self._instance.metrics is not None:
                meter = self._instance.metrics.send_meter(self.namespace.unwrap(self.group), name)
            state = self._states[name] = TopicState(
                name, topic, template, RoundRobin(self._rng), meter
            )
        return state

    async def queues(self, state: TopicState) -> Sequence[MessageQueue]:
        """The queues to send to, as brokers know them; raises NoRouteError or NoNameServerError."""
        route = self._routes.get(state.topic)
        if route is None or not route.publish:
            route = await self._lookup.publish_route(
                state.topic,
                queue_count=self._settings.topic_queue_count,
                model=self._settings.topic_model,
            )
        return route.publish

    async def introduce(self, state: TopicState) -> None:
        """Send a heartbeat to the brokers of a topic, so that they can send requests to us.

        Each gets one attempt; the instance sends the following heartbeats.
        """
        found = {self._routes.master(queue.broker_name) for queue in await self.queues(state)}
        new = {address for address in found if address is not None} - self._introduced
        if new:
            self._introduced |= new
            if not new <= self._instance.versions.keys():
                await self._instance.heartbeat_all()

    async def parcel(self, message: Message, extra: Mapping[str, str] | None = None) -> Parcel:
        """The parcel of a message; ``extra`` are properties that the client adds."""
        return self.small_parcel(message, extra) or self._parcel(
            message, extra, *await self._compressed(bytes(message.body))
        )

    def small_parcel(
        self, message: Message, extra: Mapping[str, str] | None = None
    ) -> Parcel | None:
        """As :meth:`parcel`, without waiting; None if the body must be compressed."""
        body = bytes(message.body)
        if len(body) >= self._settings.compress_over:
            return None
        return self._parcel(message, extra, body, 0)

    def _parcel(
        self, message: Message, extra: Mapping[str, str] | None, body: bytes, sys_flag: int
    ) -> Parcel:
        unique_id = self.next_id()
        message_type, code = "Normal", _SEND
        added: dict[str, str] | None = None
        if extra or self.common:
            added = {**(extra or {}), **(self.common or {})}
            if added.get(names.PROPERTY_TRAN_MSG) == "true":
                sys_flag |= FLAG_TRANSACTION_PREPARED
                message_type = "Trans_Half"
            elif any(name in added for name in _DELAY_NAMES):
                message_type = "Delay"
            if added.get(names.PROPERTY_MSG_TYPE) == REPLY_TYPE:
                code = _SEND_REPLY
        return Parcel(
            messages=(message,),
            properties=property_text(message, unique_id, added),
            body=body,
            sys_flag=sys_flag,
            flag=checked_flag(message),
            code=code,
            msg_id=unique_id,
            message_type=message_type,
        )

    def batch_parcel(
        self, messages: Sequence[Message], parts: Iterable[bytes], part_ids: Sequence[str]
    ) -> Parcel:
        """The parcel of a batch; raises InvalidMessageError if it is too large."""
        body = b"".join(parts)
        size_max = self._settings.max_message_size
        if len(body) > size_max:
            raise InvalidMessageError(
                f"the message body size over max value, MAX: {size_max}, a batch of {len(body)}",
                hint="send fewer messages at once",
            )
        unique_id = self.next_id()
        return Parcel(
            messages=messages,
            properties=batch_wait_text(messages),
            properties_v5=batch_property_text(messages, unique_id),
            body=body,
            code=RequestCode.SEND_BATCH_MESSAGE,
            msg_id=unique_id,
            part_ids=part_ids,
        )

    async def _compressed(self, body: bytes) -> tuple[bytes, int]:
        level = self._settings.compress_level
        if len(body) <= COMPRESS_INLINE_MAX:
            return compress(body, self._compression, level)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, compress, body, self._compression, level)

    # ---- attempts --------------------------------------------------------------------------------

    async def send(
        self,
        state: TopicState,
        parcel: Parcel,
        mode: SendMode,
        timeout_s: float,
        began: float,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Send with retries until there is an outcome; only to ``queue`` if it is given.

        ``queue`` is as brokers know it; ``timeout_s`` counts from ``began``.
        """
        plan: SendPlan[SendResult] = SendPlan(
            self._settings, mode, timeout_s, began, one_queue=queue is not None
        )
        monotonic, meter, count = self._clock.monotonic, state.meter, len(parcel.messages)
        last_broker: str | None = None
        meter.begin(count)
        try:
            queues: Sequence[MessageQueue] = ()
            if queue is None:
                route = self._routes.get(state.topic)  # nearly always cached
                queues = (route and route.publish) or await self.queues(state)
            while True:
                chosen = queue or choose_in_turn(queues, state.turn, last_broker, self._faults)
                start = monotonic()
                attempt_s = plan.begin(start)
                try:
                    if queue is None and not plan.is_last:
                        self._skip_unreachable(chosen.broker_name, queues)
                    result = await self._attempt(state, parcel, chosen, attempt_s, mode)
                except SkylarkError as error:
                    now = monotonic()
                    self._record_failure(chosen.broker_name, now - start, error, mode)
                    outcome = plan.failed(error, now)
                else:
                    now = monotonic()
                    if self._faults is not None:
                        self._faults.update(
                            chosen.broker_name, now - start, isolated=False, reachable=True
                        )
                    outcome = plan.done(result, result.status, now)
                if outcome is not None:
                    meter.done(outcome.status, now - began, count)
                    return outcome
                last_broker = chosen.broker_name
                meter.retry()
        except BaseException as error:
            meter.failed(error, monotonic() - began, count)
            raise

    def _skip_unreachable(self, broker_name: str, queues: Sequence[MessageQueue]) -> None:
        """Raise ConnectError for a broker in its back-off, if another broker is not.

        The back-off may last longer than the timeout of the send. If all brokers are in back-off,
        the send waits.
        """
        if self._backs_off(broker_name) and not all(
            self._backs_off(queue.broker_name) for queue in queues
        ):
            raise ConnectError(f"broker {broker_name} could not be reached a moment ago")

    def _backs_off(self, broker_name: str) -> bool:
        address = self._routes.master(broker_name)
        return address is not None and self.link.backs_off(self.link.send_address(address))

    async def send_oneway(
        self, state: TopicState, parcel: Parcel, timeout_s: float, queue: MessageQueue | None
    ) -> None:
        """Send once, without a response."""
        if queue is None:
            queue = choose_in_turn(await self.queues(state), state.turn, None, self._faults)
        address = self._routes.master(queue.broker_name) or await self._lookup.master_of(queue)
        request = self._request(state, parcel, queue, address)
        address = self.link.send_address(address)
        contexts = self._contexts(parcel, queue, address, SendMode.ONEWAY)
        try:
            await self.link.oneway(address, request, timeout_s)
        except Exception as error:
            self._report_error(contexts, error)
            raise
        for context in contexts:
            call_hooks(self._after, context)

    def _request(
        self, state: TopicState, parcel: Parcel, queue: MessageQueue, address: str
    ) -> Command:
        request = state.template.request(parcel, queue, self._clock.now_ms())
        text = parcel.properties_v5
        if text is not None and request.ext is not None and self._version_of(address) >= V5_0_0:
            request.ext["i"] = text
        return request

    async def _attempt(
        self,
        state: TopicState,
        parcel: Parcel,
        queue: MessageQueue,
        timeout_s: float,
        mode: SendMode,
    ) -> SendResult:
        address = self._routes.master(queue.broker_name) or await self._lookup.master_of(queue)
        request = self._request(state, parcel, queue, address)
        address = self.link.send_address(address)
        shown = self.namespace.unwrap_queue(queue)
        if not self._has_hooks:
            answer = await self.link.call(address, request, timeout_s)
            return read_result(answer, address, parcel, shown)
        contexts = self._contexts(parcel, shown, address, mode)
        try:
            answer = await self.link.call(address, request, timeout_s)
            result = read_result(answer, address, parcel, shown)
        except Exception as error:
            self._report_error(contexts, error)
            raise
        results = split_result(result, parcel.part_ids) if parcel.part_ids else (result,)
        for context, own_result in zip(contexts, results, strict=True):
            context.result = own_result
            call_hooks(self._after, context)
        return result

    # ---- hooks and faults ------------------------------------------------------------------------

    def _contexts(
        self, parcel: Parcel, queue: MessageQueue, address: str, mode: SendMode
    ) -> list[SendContext]:
        """One context per message, after calling the hooks; raises errors of ForbiddenHook."""
        if not self._has_hooks:
            return []
        contexts = [
            SendContext(
                group=self.namespace.unwrap(self.group),
                message=message,
                queue=queue,
                broker_address=address,
                mode=mode.value,
                message_type=parcel.message_type,
                namespace=self.namespace.name,
            )
            for message in parcel.messages
        ]
        for context in contexts:
            for check in self._forbidden:
                check(context)
        for context in contexts:
            call_hooks(self._before, context)
        return contexts

    def _report_error(self, contexts: Iterable[SendContext], error: Exception) -> None:
        for context in contexts:
            context.error = error
            call_hooks(self._after, context)

    def _record_failure(
        self, broker_name: str, latency_s: float, error: SkylarkError, mode: SendMode
    ) -> None:
        if self._faults is None:
            return
        isolated, reachable = True, True
        if mode is SendMode.ASYNC:
            # Whether the request left the client.
            reachable = not isinstance(error, (ConnectError, TooManyRequestsError))
        elif isinstance(error, BrokerError):
            reachable = False
        elif isinstance(error, TransportError):
            reachable = not self._instance.options.start_detector
        else:
            isolated = False
        self._faults.update(broker_name, latency_s, isolated=isolated, reachable=reachable)
