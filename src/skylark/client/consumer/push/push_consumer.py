"""The push consumer: calls handlers with the messages of the topics that the group subscribes to.

::

    consumer = PushConsumer("orders", options, concurrency=20)

    @consumer.subscribe("Orders", tags="paid || shipped")
    async def on_order(message: MessageExt) -> None: ...

    await consumer.run()                      # until SIGTERM or Ctrl-C, then drain
    # or: async with consumer: ...            # or: start() and stop(), in a web application

A handler that returns has accepted its message. ``raise RetryLater(level=5)`` delivers it again
later, ``raise DeadLetter()`` makes it a dead letter, any other exception is logged and counts as
RetryLater.
Coroutine functions run on the loop that called ``start``, plain functions in threads. With
``batch`` above 1 a handler gets a list and may return the index of the last message that it
accepts. Delivery is at least once. :mod:`~skylark.client.consumer.push.concurrent_runner` and
:mod:`~skylark.client.consumer.push.orderly_runner` describe what happens to handlers that raise,
hang or are cancelled; :mod:`~skylark.client.consumer.push.pull_loop` messages that cannot be
decoded. All intervals use the monotonic clock, so the machine's clock may jump.

**Two loops.** Pull loops and handlers run on the application's loop; heartbeats, rebalancing, locks
and the saving of offsets on the control loop (:mod:`skylark.client.core.control_loop`), where they
continue while a handler blocks its loop.

**Pop.** With ``mode="pop"`` no queue belongs to a member: it takes messages from any queue, and
acknowledges each of them (:mod:`skylark.client.consumer.pop.pop_runner`). The brokers must have the
group in that mode (:mod:`skylark.client.consumer.broker_assignment`). Handlers are the same; those
in order need queues of their own, and are refused.

**Stopping** ends all pulls, waits for running handlers (``await_termination``) and then cancels
them, saves offsets, releases locks, leaves the group and closes all connections. Messages that were
pulled and not handed out are delivered to another member.

Counterpart of Java's ``DefaultMQPushConsumer`` and ``DefaultMQPushConsumerImpl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, Unpack

import msgspec

from skylark.client.consumer.consumer_start import ConsumerStart
from skylark.client.consumer.pop.pop_loops import PopLoops
from skylark.client.consumer.pull_api import check_sql
from skylark.client.consumer.push.consume_runner import PushSetup
from skylark.client.consumer.push.consumer_stats import ConsumerStats
from skylark.client.consumer.push.message_handlers import (
    Binding,
    Handler,
    HandlerSubscriptions,
    SubscribeKeywords,
    bind,
)
from skylark.client.consumer.push.pull_service import PullService
from skylark.client.consumer.push.push_components import PushParts
from skylark.client.consumer.push.push_settings import BATCH_MAX, PushKeywords, PushSettings
from skylark.client.consumer.subscription import (
    Subscription,
    make_subscription,
    require_same_filter,
    retry_subscription,
)
from skylark.client.core.argument_checks import checks_arguments
from skylark.client.core.client_options import ClientOptions, given_options, seconds
from skylark.client.core.client_runtime import ClientRuntime, runtime_of
from skylark.client.core.instance_registry import acquire_instance
from skylark.client.core.namespace import Namespace
from skylark.client.core.serializers import deserializing_hooks
from skylark.client.core.service_state import (
    ServiceState,
    Startable,
    require_new,
    require_not_stopped,
    require_running,
)
from skylark.client.core.shutdown_signals import call_on_signal
from skylark.client.core.validation import check_group, check_hooks, check_topic
from skylark.client.telemetry import find_telemetry
from skylark.client.trace.trace_hooks import consumer_tracing
from skylark.core.clock import Clock, LoopClock
from skylark.core.errors import ClientError, ClientStateError, ConfigError, NoRouteError
from skylark.core.lifecycle import join
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)


@checks_arguments
class PushConsumer(Startable, HandlerSubscriptions):
    """A member of a consumer group; see the module docstring."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        runtime: ClientRuntime | None = None,
        **settings: Unpack[PushKeywords],
    ) -> None:
        """Nothing is sent before :meth:`start`.

        ``settings`` are those of :class:`~skylark.client.consumer.push.push_settings.PushSettings`;
        ``hooks`` see ConsumeHook and FilterHook in :mod:`skylark.client.core.hooks`.
        """
        check_group(group)
        self.group = group
        self.options = given_options(options)
        self.settings = PushSettings(**settings)
        self.client_id = self._new_client_id()
        self.state = ServiceState.CREATE_JUST
        self._hooks = (
            *deserializing_hooks(self.settings.value_deserializer),
            *check_hooks(hooks),
        )
        self._runtime = runtime = runtime_of(self.options, runtime)
        self._pid = os.getpid()
        self._clock: Clock = LoopClock() if runtime is None else runtime.clock
        self.stats = ConsumerStats(self._clock.steady_ms())
        self._bindings: dict[str, Binding] = {}
        self._wanted: dict[str, Subscription] = {}  # by topic, as the application knows it
        self._subscriptions: dict[str, Subscription] = {}  # by topic, as brokers know it
        self._pop_retries: dict[str, Subscription] = {}  # as PushSetup.pop_retries
        self._orderly: bool | None = None
        self._suspended = False
        self._parts: PushParts | None = None
        self._exit = AsyncExitStack()
        self._stopping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def _new_client_id(self) -> str:
        return self.options.client_id(keep_default=not self.settings.clustering)

    def __repr__(self) -> str:
        return f"<PushConsumer {self.group} {self.client_id} {self.state.value}>"

    # ---- subscriptions ---------------------------------------------------------------------------

    def _adding(self, topic: str, **how: Unpack[SubscribeKeywords]) -> Callable[[Handler], None]:
        check_topic(topic)
        orderly, batch = how["orderly"], how["batch"]
        if not 1 <= batch <= BATCH_MAX:
            raise ConfigError(f"batch is out of range [1, {BATCH_MAX}]: {batch}")
        if orderly and not self.settings.shares_itself:
            raise ClientError(
                f"orderly handlers of {topic} need queues of their own: mode={self.settings.mode!r}"
                " with assignment by brokers has no order",
                hint="leave out mode and client_rebalance for this consumer",
            )
        if self._orderly is not None and self._orderly is not orderly:
            raise ClientError(
                f"{self.group} consumes in order or not: {topic} cannot differ from the rest",
                hint="use two consumers with two groups",
            )
        now_ms = self._clock.now_ms()
        subscription = make_subscription(topic, how["tags"], sql=how["sql"], now_ms=now_ms)

        def add(function: Handler) -> None:
            require_same_filter(self._wanted.get(topic), subscription)
            self._orderly = orderly
            self._bindings[topic] = bind(topic, function, batch)
            self._wanted[topic] = subscription
            self._announce(topic)

        return add

    def unsubscribe(self, topic: str) -> None:
        """End a subscription; the next rebalance saves offsets and gives up the queues."""
        self._wanted.pop(topic, None)
        self._announce(topic)

    def _announce(self, topic: str) -> None:
        """After the start, send a changed subscription to brokers; on the loop that consumes."""
        if self._parts is None or self.state is not ServiceState.RUNNING:
            return
        name = self._parts.instance.namespace.wrap(topic)
        subscriptions = dict(self._subscriptions)
        old = subscriptions.pop(name, None)
        wanted = self._wanted.get(topic)
        if wanted is not None:
            newer_than = 0 if old is None else old.data.sub_version
            subscriptions[name] = _on_wire(wanted, name, newer_than)
        self._subscriptions = subscriptions
        self._parts.announce(None if wanted is None else name)

    def _all_on_wire(self, namespace: Namespace) -> dict[str, Subscription]:
        """All subscriptions as brokers know them."""
        found: dict[str, Subscription] = {}
        for topic, wanted in self._wanted.items():
            name = namespace.wrap(topic)
            found[name] = _on_wire(wanted, name)
        if self.settings.clustering:
            retry = retry_subscription(namespace.wrap(self.group), self._clock.now_ms())
            found[retry.topic] = retry
        return found

    def _all_subscriptions(self) -> Mapping[str, Subscription]:
        """All subscriptions now, by topic; from any thread."""
        if not self._pop_retries:
            return self._subscriptions
        return {**self._subscriptions, **self._pop_retries}

    # ---- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group, and start to consume on the running loop.

        Waits for a name server, up to ``start_timeout`` of the options. A start that failed or was
        cancelled may be repeated. Raises ClientError (the group is in use here, SQL that a broker
        refuses, no name server).
        """
        await self._start(seconds(self.options.start_timeout))

    async def _start(self, timeout_s: float, ended: asyncio.Event | None = None) -> None:
        require_new(self.state, f"consumer {self.group}")
        if not self._bindings:
            raise ClientError(
                f"{self.group} subscribes nothing", hint="call subscribe() before start()"
            )
        self.state = ServiceState.START_FAILED
        if self._pid != os.getpid():  # made before a fork: each child is another member
            self.client_id = self._new_client_id()
        self._loop = asyncio.get_running_loop()
        try:
            await self._join(timeout_s, ended or asyncio.Event())
            require_not_stopped(self.state, f"consumer {self.group}")
            self.state = ServiceState.RUNNING
            await self._enter()
        except BaseException:
            await join(asyncio.ensure_future(self._undo_start()))
            raise
        logger.info("consumer %s started as %s", self.group, self.client_id)

    async def _undo_start(self) -> None:
        """Release what a start has acquired, so that the next one can begin anew."""
        if self._stopping is not None:
            await join(self._stopping)
        await self._exit.aclose()
        if self._stopping is None:
            self._exit, self._parts, self._loop = AsyncExitStack(), None, None
            self.state = ServiceState.CREATE_JUST

    async def _join(self, timeout_s: float, ended: asyncio.Event) -> None:
        """Acquire all resources; ``_exit`` releases them in reverse order."""
        instance = acquire_instance(self.options, self.client_id, self._runtime)
        self._exit.push_async_callback(instance.release)
        self._subscriptions = self._all_on_wire(instance.namespace)
        await instance.start()
        starting = ConsumerStart(
            instance=instance,
            group=instance.namespace.wrap(self.group),
            timeout_s=timeout_s,
            ended=ended,
        )
        await starting.fetch_routes(tuple(self._subscriptions))
        if self.settings.clustering:
            await starting.require_free_id(tuple(self._subscriptions))
        link = instance.open_link()
        self._exit.push_async_callback(link.release)
        hooks, bindings = self._hooks, self._bindings
        if self.options.trace:
            dispatcher, hook = consumer_tracing(instance, self.options, self.group)
            self._exit.push_async_callback(dispatcher.stop)
            hooks = (*hooks, hook)
        spans = find_telemetry(
            self.options.telemetry,
            client_id=self.client_id,
            group=self.group,
            namespace=instance.namespace.name,
        )
        setup = PushSetup(
            group=self.group,
            settings=self.settings,
            hooks=hooks,
            bindings=bindings if spans is None else spans.bindings(bindings),
            stats=self.stats,
            is_orderly=bool(self._orderly),
            start_timestamp=self.settings.start_timestamp(self._clock.now_ms()),
            subscriptions=self._all_subscriptions,
            is_running=lambda: self.state is ServiceState.RUNNING,
            is_suspended=lambda: self._suspended,
            pop_retries=self._pop_retries,
        )
        parts = PushParts(instance, link, setup)
        self._exit.push_async_callback(parts.tasks.cancel_and_wait)
        self._exit.push_async_callback(parts.leave)
        await instance.register_consumer(parts.member)
        self._parts = parts

    async def _enter(self) -> None:
        """Register at the brokers and start to rebalance."""
        assert self._parts is not None
        parts, instance = self._parts, self._parts.instance
        self._subscriptions = self._all_on_wire(instance.namespace)  # some came or went meanwhile
        await parts.begin()
        for subscription in tuple(self._subscriptions.values()):
            if instance.routes.get(subscription.topic) is None:
                await instance.refresh_route(subscription.topic)
            with contextlib.suppress(NoRouteError):  # its brokers have not started yet
                await check_sql(instance, parts.link, parts.member.group, subscription)
        is_known = await instance.heartbeat_all(whole=True)
        await parts.require_mode(tuple(self._subscriptions) if is_known else ())
        if is_known:
            instance.rebalance_soon()

    async def stop(self) -> None:
        """Stop consuming and leave the group; see the module docstring. A second call waits too.

        A cancellation ends the wait, not the stop. Raises ClientStateError in a handler, which
        would wait for itself.
        """
        self.refuse_in_handler()
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise ClientStateError(
                f"consumer {self.group} runs on another event loop, which must stop it"
            )
        if self._stopping is None:
            if self._parts is not None:
                self._parts.instance.runtime.control.check_process()
            self.state = ServiceState.SHUTDOWN_ALREADY
            work = self._exit.aclose()
            self._stopping = asyncio.get_running_loop().create_task(work, name=f"stop {self.group}")
        await join(self._stopping)

    def refuse_in_handler(self) -> None:
        """Raise ClientStateError in a handler of this consumer, where ``stop`` would deadlock."""
        if (
            self._parts is not None
            and self._stopping is None
            and self._parts.runner.pools.is_current
        ):
            raise ClientStateError(
                "a handler cannot wait for the end of its own consumer",
                hint="stop it from another task or thread",
            )

    async def run(self) -> None:
        """Start unless that was done, consume until SIGTERM, Ctrl-C or :meth:`stop`, and stop.

        Waits for a name server without limit. In another thread than the main one signals are left
        alone.
        """
        ended = asyncio.Event()
        with call_on_signal(ended.set):
            await self.run_until(ended)

    async def run_until(self, ended: asyncio.Event) -> None:
        """As :meth:`run`, until ``ended`` is set, without signals."""
        if self.state is ServiceState.CREATE_JUST:
            try:
                await self._start(math.inf, ended)
            except ClientStateError:
                if not ended.is_set():
                    raise
        else:
            self._require_running()
        try:
            if ended.is_set():
                return
            if self._stopping is None:  # a handler may have stopped it at once
                self._exit.callback(ended.set)
                await ended.wait()
        finally:
            await self.stop()

    def suspend(self) -> None:
        """Pause pulls and rebalancing until :meth:`resume`; running handlers finish."""
        self._suspended = True

    def resume(self) -> None:
        """Continue after :meth:`suspend`."""
        self._suspended = False
        if self._parts is not None and self.state is ServiceState.RUNNING:
            self._parts.instance.rebalance_soon()

    async def reset_to(self, time: datetime) -> None:
        """Continue with messages stored at or after ``time``, in all queues that are ours now.

        Raises ClientError if topics are popped: brokers keep the offsets of a group that pops.
        """
        parts = self._require_running()
        if self.settings.mode == "pop" or (parts.pop_loops and parts.pop_loops.assigned):
            raise ClientError(
                f"{self.group} pops, so it has no queues whose offsets it could reset",
                hint=f"run `skylark group reset-offset {self.group} TOPIC --to TIME`",
            )
        work: Coroutine[Any, Any, None] = parts.resets.to_time(
            tuple(self._subscriptions), int(time.timestamp() * 1000)
        )
        await parts.instance.runtime.control.run(work)

    # ---- state -------------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now, and popped assignments; none unless it runs.

        The queue of an assignment to all queues of a broker is -1. From any thread.
        """
        if self._parts is None or self.state is not ServiceState.RUNNING:
            return frozenset()
        table: Mapping[MessageQueue, object] = self._parts.rebalancer.rebalance.table
        pops = self._parts.pop_loops
        queues = (*tuple(table), *(() if pops is None else pops.assigned))
        return frozenset(map(self._parts.instance.namespace.unwrap_queue, queues))

    @property
    def in_flight(self) -> int:
        """Messages that were pulled or popped, and not settled."""
        return sum(each.in_flight for each in self._services())

    @property
    def lag(self) -> int:
        """Messages that are not settled, here and at the brokers as of the last requests."""
        return sum(each.lag for each in self._services())

    def _services(self) -> list[PullService | PopLoops]:
        parts = self._parts
        if parts is None:
            return []
        pops = parts.pop_loops
        return [parts.pull_service] if pops is None else [parts.pull_service, pops]

    def _require_running(self) -> PushParts:
        require_running(self.state, f"consumer {self.group}")
        assert self._parts is not None
        return self._parts


def _on_wire(wanted: Subscription, topic: str, newer_than: int = 0) -> Subscription:
    """A subscription with the topic that brokers know; they use the newest version."""
    version = max(wanted.data.sub_version, newer_than + 1)
    return Subscription(msgspec.structs.replace(wanted.data, topic=topic, sub_version=version))
