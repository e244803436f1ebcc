"""Sends message traces to the trace topic in the background.

::

    hooks, in any thread  --append-->  queue of 2,048  --control loop-->  trace producer --> topic

A trace never delays or fails a send or a handler: a full queue drops new contexts (counted in
``discarded``), and a trace that cannot be sent is logged and counted (``failed``).

**Time.** Traces are sent as soon as ``trace_batch`` contexts wait (20 at most), or five seconds
after the last traces; so the first one after a pause is sent at once. At most four messages are in
flight.

**Content.** The contexts of one topic of the application share a message. A message is split before
it has more than 128,000 bytes (Java checks afterwards), or more keys than its properties can hold.
Its KEYS are the ids and keys of all traced messages, so a trace is found by any of them.

**Topic.** ``trace_topic``, else ``RMQ_SYS_TRACE_TOPIC``; with the access channel CLOUD the topic
``rmq_sys_TRACE_DATA_<region>``. Never with a namespace in front, as in Java.

**Producer.** A separate producer on the control loop: group
``_INNER_TRACE_PRODUCER-<group>-<PRODUCE|CONSUME>-<n>``, instance
``PID_CLIENT_INNER_TRACE_PRODUCER_<name servers>``, which all dispatchers of a process share. It has
the credentials of its client and no hooks, so traces are not traced.

``stop`` sends the waiting traces, within five seconds. Counterpart of Java's
``AsyncTraceDispatcher``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, Protocol

import msgspec

from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_message import KEY_SEPARATOR, Message
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import ClientRuntime
from skylark.client.core.instance_registry import acquire_instance
from skylark.client.metrics import client_metrics
from skylark.client.producer.producer_components import ProducerParts
from skylark.client.producer.producer_settings import ProducerSettings
from skylark.client.producer.send_retry import SendMode
from skylark.client.trace.trace_records import Trace, encode_trace, trace_keys
from skylark.core.errors import ClientStateError
from skylark.core.lifecycle import Tasks
from skylark.core.names import TRACE_TOPIC, Endpoint

logger = logging.getLogger(__name__)

QUEUE_MAX: Final = 2_048
BATCH_MAX: Final = 20
FLUSH_INTERVAL_S: Final = 5.0
STOP_TIMEOUT_S: Final = 5.0
SEND_TIMEOUT_S: Final = 5.0
SENDS_MAX: Final = 4
BODY_SIZE_MAX: Final = 128_000
#: Half of what the properties of a message can hold.
KEYS_SIZE_MAX: Final = 16_000
CLOUD_TOPIC_PREFIX: Final = "rmq_sys_TRACE_DATA_"
CLOUD: Final = "CLOUD"
GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER"
INSTANCE_PREFIX: Final = "PID_CLIENT_INNER_TRACE_PRODUCER"
_GROUP_LENGTH_MAX: Final = 255

TraceKind = Literal["PRODUCE", "CONSUME"]
_numbers = itertools.count()


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """The trace records of one send or one handler call."""

    topic: str  #: of the traced messages
    region_id: str
    records: Sequence[Trace]


class TraceSink(Protocol):
    """The part of a dispatcher that hooks use."""

    topic: str
    is_cloud: bool

    def append(self, context: TraceContext) -> bool:
        """Add a context, unless the queue is full; from any thread."""


class TraceDispatcher:
    """Sends the traces of one producer or consumer; see the module docstring."""

    def __init__(
        self, runtime: ClientRuntime, options: ClientOptions, group: str, kind: TraceKind
    ) -> None:
        """``options`` and ``group`` are those of the traced client."""
        self.topic = options.trace_topic or TRACE_TOPIC
        self.is_cloud = options.access_channel == CLOUD
        self.group = f"{GROUP_PREFIX}-{group}-{kind}-{next(_numbers)}"[:_GROUP_LENGTH_MAX]
        self.discarded = 0  #: contexts for which there was no room
        self.failed = 0  #: trace messages that no broker took
        self.sent = 0  #: trace messages that a broker has
        self._metrics = client_metrics(options.metrics)
        self._runtime = runtime
        self._options = _trace_options(options)
        self._batch_max = max(1, min(options.trace_batch, BATCH_MAX))
        self._queue: deque[TraceContext] = deque()
        self._lock = threading.Lock()  # of the queue and what belongs to it
        self._woken = False
        self._stopping = False
        self._wake: asyncio.Event | None = None  # from here on: on the control loop
        self._task: asyncio.Task[None] | None = None
        self._tasks = Tasks(f"traces of {group}")
        self._flushed_at = runtime.clock.monotonic()

    def __len__(self) -> int:
        """Contexts that wait."""
        return len(self._queue)

    # ---- from any thread -------------------------------------------------------------------------

    def append(self, context: TraceContext) -> bool:
        """Take a context, unless the queue is full."""
        with self._lock:
            if self._stopping or len(self._queue) >= QUEUE_MAX:
                self.discarded += 1
                self._count("dropped")
                if self.discarded == 1:
                    logger.warning("traces of %s are dropped: the queue is full", self.group)
                return False
            self._queue.append(context)
            waiting = len(self._queue)
            if self._woken or not (waiting == 1 or waiting >= self._batch_max):
                return True
            self._woken = True
        try:
            self._runtime.control.post(self._check)
        except RuntimeError:
            logger.debug("the control loop is closed, traces stay where they are")
        return True

    def start(self) -> None:
        """Start to send; returns at once, and errors are only logged."""
        self._runtime.control.post(self._start)

    async def stop(self) -> None:
        """Send the waiting traces, within five seconds, and end; from any loop."""
        await self._runtime.control.run(self._stop())

    # ---- on the control loop ---------------------------------------------------------------------

    def _start(self) -> None:
        if self._task is None and not self._stopping:
            self._wake = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"traces {self.group}"
            )

    def _check(self) -> None:
        self._woken = False
        if self._wake is not None:
            self._wake.set()

    async def _stop(self) -> None:
        self._stopping = True
        self._check()
        task = self._task
        if task is None:
            return
        try:
            async with self._runtime.clock.timeout(STOP_TIMEOUT_S):
                await asyncio.wait([task])
        except TimeoutError:
            logger.warning("%d traces of %s are not sent", len(self._queue), self.group)
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        instance: ClientInstance | None = None
        parts: ProducerParts | None = None
        try:
            instance = self._acquire()
            await instance.start()
            settings = ProducerSettings(
                send_timeout=SEND_TIMEOUT_S, max_message_size=BODY_SIZE_MAX, batching=False
            )
            parts = ProducerParts(instance, self.group, settings, ())
            await parts.start(())
            await self._send_forever(parts)
        except Exception:
            logger.exception("cannot send traces of %s", self.group)
        finally:
            self._stopping = True
            await self._tasks.cancel_and_wait()
            if parts is not None:
                await parts.stop(0.0)
            if instance is not None:
                await instance.release()

    def _acquire(self) -> ClientInstance:
        options = self._options
        try:
            return acquire_instance(options, options.client_id(), self._runtime)
        except ClientStateError:
            # Another client of this process uses the same name servers with other credentials.
            own = msgspec.structs.replace(options, instance_name=f"{INSTANCE_PREFIX}_{self.group}")
            return acquire_instance(own, own.client_id(), self._runtime)

    async def _send_forever(self, parts: ProducerParts) -> None:
        """Send until :meth:`stop` was called and nothing waits."""
        assert self._wake is not None
        while True:
            self._wake.clear()
            contexts = self._take_due()
            if contexts:
                for message in messages_of(contexts, self._topic_of):
                    while len(self._tasks) >= SENDS_MAX:
                        await self._wake.wait()
                        self._wake.clear()
                    self._tasks.spawn(self._send(parts, message), name="send")
                continue
            if self._stopping and not self._queue:
                await self._tasks.wait()
                return
            await self._wait()

    async def _wait(self) -> None:
        """Wait for a wake-up, or until the waiting contexts are due."""
        assert self._wake is not None
        left_s: float | None = None
        if self._queue:
            left_s = self._flushed_at + FLUSH_INTERVAL_S - self._runtime.clock.monotonic()
        try:
            await self._runtime.clock.wait_for(self._wake.wait(), left_s)
        except TimeoutError:
            return

    def _take_due(self) -> list[TraceContext]:
        now = self._runtime.clock.monotonic()
        with self._lock:
            waiting = len(self._queue)
            is_due = self._stopping or now - self._flushed_at >= FLUSH_INTERVAL_S
            if not waiting or not (is_due or waiting >= self._batch_max):
                return []
            self._flushed_at = now
            return [self._queue.popleft() for _ in range(min(waiting, self._batch_max))]

    def _topic_of(self, context: TraceContext) -> str:
        return f"{CLOUD_TOPIC_PREFIX}{context.region_id}" if self.is_cloud else self.topic

    async def _send(self, parts: ProducerParts, message: Message) -> None:
        assert self._wake is not None
        try:
            sender, began = parts.sender, parts.clock.monotonic()
            state = sender.checked(message)
            parcel = await sender.parcel(message)
            await sender.send(state, parcel, SendMode.ASYNC, SEND_TIMEOUT_S, began)
            self.sent += 1
            self._count("sent")
        except Exception as error:  # noqa: BLE001 - a lost trace is only logged
            self.failed += 1
            self._count("failed")
            logger.info("cannot send a trace of %s: %s", self.group, error)
        finally:
            self._wake.set()

    def _count(self, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.trace(outcome)


# ---- messages ------------------------------------------------------------------------------------


def messages_of(
    contexts: Iterable[TraceContext], topic_of: Callable[[TraceContext], str]
) -> Iterator[Message]:
    """The trace messages of these contexts: one per topic, unless it gets too large."""
    groups: dict[tuple[str, str], list[Trace]] = {}
    for context in contexts:
        groups.setdefault((context.topic, topic_of(context)), []).extend(context.records)
    for (_, trace_topic), records in groups.items():
        yield from _cut(trace_topic, records)


def _cut(topic: str, records: Iterable[Trace]) -> Iterator[Message]:
    texts: list[bytes] = []
    keys: dict[str, None] = {}
    body_size = keys_size = 0
    for record in records:
        text = encode_trace(record).encode()
        own_keys = _fitting_keys(record)
        own_size = sum(len(key.encode()) + 1 for key in own_keys)
        if texts and (
            body_size + len(text) > BODY_SIZE_MAX or keys_size + own_size > KEYS_SIZE_MAX
        ):
            yield Message(topic, b"".join(texts), keys=tuple(keys))
            texts, keys = [], {}
            body_size = keys_size = 0
        texts.append(text)
        keys.update(dict.fromkeys(own_keys))
        body_size += len(text)
        keys_size += own_size
    if texts:
        yield Message(topic, b"".join(texts), keys=tuple(keys))


def _fitting_keys(record: Trace) -> list[str]:
    """The keys of a record; only its id, if its keys would fill the properties."""
    keys = trace_keys(record)
    if len(KEY_SEPARATOR.join(keys).encode()) > KEYS_SIZE_MAX:
        return keys[:1]
    return keys


# ---- the producer --------------------------------------------------------------------------------


def _trace_options(options: ClientOptions) -> ClientOptions:
    """The options of the trace producer of a client with these options."""
    return msgspec.structs.replace(
        options,
        trace=False,
        metrics=False,
        namespace="",
        vip_channel=False,
        instance_name=f"{INSTANCE_PREFIX}_{_namesrv_text(options.endpoint())}",
    )


def _namesrv_text(endpoint: Endpoint) -> str:
    return ";".join(map(str, endpoint.namesrv))
