"""The transport of kombu, and so the broker of Celery: a queue is a topic, a task is a message.

::

    import skylark.integrations.kombu                       # registers skylark+rocketmq://

    app = celery.Celery("shop", broker="skylark+rocketmq://127.0.0.1:9876")

    @app.task
    def resize(picture: str) -> None: ...

    resize.apply_async(["cat.png"], countdown=60)           # the broker keeps it for a minute

After ``skylark+`` comes a connection URL of :mod:`skylark.core.names`, with several name servers
separated by commas; without an address the name servers are those of the environment.

**Acknowledgement.** Workers pop messages (``docs/how-to/pop.md``) and acknowledge each by itself.
``reject(requeue=True)`` delivers a message again after a second; a reject without it drops the
message. A connection that is closed returns its unacknowledged messages. If the process dies,
brokers deliver them again when their visibility timeout is over. An open connection renews that
timeout, so a task may take longer than it. The prefetch count limits how many messages a worker
holds.

**Time.** A Celery task with a ``countdown`` or ``eta`` is sent as a timed message: no worker holds
it before it is due. A task that is due within a second is sent at once and waits in a worker, as
with other transports; so does one that the broker refuses (timerMaxDelaySec, 3 days). A task that
is due after more than two days is timed in steps, to stay below that limit.

**Errors.** If no broker can be reached, calls raise :class:`BrokerUnavailableError`. It is a
recoverable connection error for kombu, which then connects again.

**Not supported**, with an error that says so:

* fanout exchanges and temporary queues, because topics are permanent. Celery uses them for remote
  control, event monitors, and results by ``rpc://``.
* the pools gevent and eventlet, because the client runs its own event loop in a thread.

Priorities are ignored.

**Transport options** (Celery: ``broker_transport_options``):

=======================  =========  ============================================================
``visibility_timeout``   60         seconds until the messages of a dead worker come again
``queue_name_prefix``    ""         put before the name of a queue, for its topic
``group``                "workers"  put before the topic, for the consumer group of the queue
``max_reconsume_times``  -1         deliveries after the first before a dead letter; -1: 16
``client``               {}         further keywords of ClientOptions
=======================  =========  ============================================================

Needs the extra ``celery``.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from queue import Empty
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from kombu.exceptions import ConnectionError as KombuConnectionError
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.utils.compat import detect_environment
from kombu.utils.json import dumps, loads

from skylark.client.blocking.event_loop_thread import EventLoopThread, shared_loop_thread
from skylark.client.core.client_message import Message
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.send_options import SendKeywords
from skylark.core.clock import SystemClock, TimeSource
from skylark.core.errors import (
    ClientStateError,
    ConfigError,
    MessageIllegalError,
    SkylarkError,
)
from skylark.core.names import check_group, check_topic
from skylark.integrations.kombu_clients import (
    ConnectionClients,
    ConsumerSettings,
    Delivery,
    Wanted,
)

logger = logging.getLogger(__name__)

SCHEME: Final = "skylark"
URL_SCHEME: Final = "rocketmq://"
#: How long one request waits for messages, if kombu sets no limit.
WAIT_S: Final = 10.0
#: Messages of one receive without a prefetch count.
BATCH: Final = 32
#: Tasks due sooner wait in a worker.
TIMED_MIN_MS: Final = 1_000
#: The longest time of one step, below the broker's default limit of three days.
STEP_MS: Final = 2 * 24 * 3600 * 1000
#: In the envelope of a message that was timed for a step, and not until it is due.
STEP_KEY: Final = "step"

_ESCAPED: Final = re.compile(r"[^a-zA-Z0-9_|-]")
_NOT_HERE: Final = (
    "Broadcast queues, event monitors, remote control (celery inspect, celery control) and results"
    " by rpc:// are not available with it"
)


def topic_of(queue: str, prefix: str = "") -> str:
    """The topic of a queue: other characters than ``a-z A-Z 0-9 _ - |`` are percent-encoded."""
    return _ESCAPED.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), prefix + queue
    )


def due_ms(envelope: dict[str, Any]) -> int | None:
    """When a task of Celery is due; None if it is not for later, or without a time zone."""
    headers = envelope.get("headers") or {}
    eta = headers.get("eta")
    if not isinstance(eta, str) or "task" not in headers:
        return None
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return None
    return None if due.tzinfo is None else round(due.timestamp() * 1000)


def _task_id(envelope: dict[str, Any]) -> list[str]:
    """Keys of a message: the id of its task, by which tools find it."""
    found = (envelope.get("headers") or {}).get("id")
    return [found] if isinstance(found, str) and found and not found.isspace() else []


class BrokerUnavailableError(KombuConnectionError):  # type: ignore[misc]
    """No broker can be asked now; the error of the client is its cause. kombu connects again."""


class DeclaredQueue(NamedTuple):
    """What kombu expects of a declaration."""

    queue: str
    message_count: int
    consumer_count: int


@contextlib.contextmanager
def _kombu_errors() -> Iterator[None]:
    """Translate errors that may pass."""
    try:
        yield
    except SkylarkError as error:
        if error.retriable:
            raise BrokerUnavailableError(str(error)) from error
        raise


class SkylarkChannel(virtual.Channel):  # type: ignore[misc]
    """A channel: its queues, its prefetch count and the messages that it has not acknowledged."""

    do_restore = False  # unacknowledged messages are given back, not sent again
    connection: SkylarkTransport

    def __init__(self, connection: SkylarkTransport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._no_ack: set[str] = set()

    # ---- declarations ----------------------------------------------------------------------------

    def exchange_declare(
        self, exchange: str | None = None, type: str = "direct", **kwargs: Any  # noqa: A002
    ) -> None:  # fmt: skip
        if type not in ("direct", "topic", None, ""):
            raise ConfigError(
                f"exchange {exchange!r} is of type {type}, which this transport does not support",
                hint=_NOT_HERE,
            )
        super().exchange_declare(exchange, type, **kwargs)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        if not queue or kwargs.get("exclusive") or kwargs.get("auto_delete"):
            raise ConfigError(
                f"queue {queue or ''!r} is temporary, which this transport does not support",
                hint=_NOT_HERE,
            )
        self.connection.topic(queue)  # raises here, not at the first message
        if passive:
            return super().queue_declare(queue, passive, **kwargs)
        return DeclaredQueue(queue, 0, 0)  # the first message creates the topic

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self.connection.size(queue) is not None

    def _size(self, queue: str) -> int:
        return self.connection.size(queue) or 0

    def _purge(self, queue: str) -> int:
        return self.connection.purge(queue)

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> Any:
        """The queues of a message; bindings are known to the connection that declared them."""
        found = super()._lookup(exchange, routing_key, default)
        if not found and self.typeof(exchange).type == "direct":
            raise ConfigError(
                f"no queue is bound to exchange {exchange!r} with {routing_key!r} here",
                hint="declare the queue before: producer.publish(..., declare=[queue])",
            )
        return found

    # ---- messages --------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self.connection.send(queue, message)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        found = self.connection.receive([(self, [queue], 1)], timeout or 0.0)
        for envelope, _, _ in found:
            return envelope
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        found = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if found is not None and no_ack:
            self.connection.settle(found.delivery_tag, is_done=True)
        return found

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        if no_ack:
            self._no_ack.add(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> None:
        self._no_ack.discard(self._tag_to_queue.get(consumer_tag))
        super().basic_cancel(consumer_tag)

    def room(self) -> int:
        """How many more messages the prefetch count allows."""
        found = self.qos.can_consume_max_estimate()
        return BATCH if found is None else int(found)

    def deliver(self, queue: str, envelope: dict[str, Any]) -> None:
        """Call the consumer of a queue with a message."""
        tag = envelope["properties"]["delivery_tag"]
        callback = self.connection._callbacks.get(queue)
        if callback is None:  # it was cancelled meanwhile
            self.connection.give_back([tag])
            return
        if queue in self._no_ack:
            self.connection.settle(tag, is_done=True)
        callback(envelope)

    # ---- settling; any thread calls these --------------------------------------------------------

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        if multiple:
            raise NotImplementedError("this transport acknowledges single messages")
        self._settle(delivery_tag, is_done=True)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        self._settle(delivery_tag, is_done=not requeue)

    def _restore(self, message: Any) -> None:
        """Called by kombu for each message that a recover lets come again."""
        self.connection.settle(message.delivery_tag, is_done=False)

    def _settle(self, tag: int, *, is_done: bool) -> None:
        transport = self.connection
        if self.closed or transport is None:
            raise BrokerUnavailableError("the channel of this message is closed")
        self.qos.ack(tag)
        transport.settle(tag, is_done=is_done)

    def close(self) -> None:
        """End the consumers, and give back what was not acknowledged."""
        if not self.closed and self.connection is not None and self._qos is not None:
            self._qos._flush()
            self.connection.give_back(list(self._qos._delivered))
        super().close()


class SkylarkTransport(virtual.Transport):  # type: ignore[misc]
    """A connection: one producer, and a consumer for each queue that is consumed."""

    Channel = SkylarkChannel
    client: Any
    can_parse_url = True
    driver_type = "rocketmq"
    driver_name = "skylark"
    connection_errors = (BrokerUnavailableError,)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()
    clock: TimeSource = SystemClock()

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        given = client.transport_options
        self._prefix: str = given.get("queue_name_prefix", "")
        self._settings = ConsumerSettings(
            group=given.get("group", "workers"),
            invisible_s=float(given.get("visibility_timeout", 60)),
            max_reconsume_times=int(given.get("max_reconsume_times", -1)),
        )
        self._has_room = threading.Event()  # set when a message was settled
        self._loop_thread: EventLoopThread | None = None
        self._clients: ConnectionClients | None = None
        self._pid = 0
        self._refused_ms = math.inf  # the shortest time that a broker has refused

    def driver_version(self) -> str:
        return version("skylark-mq")

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        try:
            endpoint = ClientOptions(namesrv=_address(self.client)).endpoint()
        except ConfigError:
            return f"{SCHEME}+{URL_SCHEME}"
        return f"{SCHEME}+{endpoint.url(mask_secret=not include_password)}"

    # ---- life ------------------------------------------------------------------------------------

    def establish_connection(self) -> SkylarkTransport:
        if detect_environment() != "default":
            raise ConfigError(
                f"this transport does not run under {detect_environment()}",
                hint="use the pool prefork, threads or solo",
            )
        keywords = {
            "namesrv": _address(self.client),
            "start_timeout": float(self.client.connect_timeout or 0),
            **self.client.transport_options.get("client", {}),
        }
        clients = ConnectionClients(ClientOptions(**keywords), self._settings)
        self._loop_thread, self._pid = shared_loop_thread(), os.getpid()
        with _kombu_errors():
            self._loop_thread.call(clients.start())
        self._clients = clients
        super().establish_connection()
        return self

    def close_connection(self, connection: object) -> None:
        super().close_connection(connection)
        self._close_clients()

    def _collect(self, connection: object) -> None:
        """Drop a connection that was lost, or that belongs to the parent of a forked process.

        Nothing is given back: brokers could hardly be asked to.
        """
        for channel in self.channels:
            channel.closed = True
        self._close_clients()

    def _close_clients(self) -> None:
        clients, self._clients = self._clients, None
        if clients is not None and self._loop_thread is not None and self._pid == os.getpid():
            with contextlib.suppress(ClientStateError):  # at the end of the interpreter
                self._loop_thread.call(clients.close())

    def _opened(self) -> tuple[ConnectionClients, EventLoopThread]:
        if self._clients is None or self._loop_thread is None:
            raise BrokerUnavailableError("the connection is closed")
        self._loop_thread.check()
        return self._clients, self._loop_thread

    # ---- queues ----------------------------------------------------------------------------------

    def topic(self, queue: str) -> str:
        """The topic of a queue; raises IllegalNameError if it is too long."""
        topic = topic_of(queue, self._prefix)
        check_topic(topic)
        check_group(f"{self._settings.group}-{topic}")
        return topic

    def size(self, queue: str) -> int | None:
        """See :meth:`ConnectionClients.size`."""
        clients, loop_thread = self._opened()
        with _kombu_errors():
            return loop_thread.call(clients.size(self.topic(queue)))

    def purge(self, queue: str) -> int:
        """See :meth:`ConnectionClients.purge`."""
        clients, loop_thread = self._opened()
        with _kombu_errors():
            return loop_thread.call(clients.purge(self.topic(queue)))

    # ---- sending ---------------------------------------------------------------------------------

    def send(self, queue: str, envelope: dict[str, Any]) -> None:
        """Send a message, timed if it is a task for later; returns when it is stored."""
        due = due_ms(envelope)
        wait_ms = 0 if due is None else due - self.clock.now_ms()
        with _kombu_errors():
            is_timed = TIMED_MIN_MS <= wait_ms < self._refused_ms
            if not (is_timed and self._send_timed(queue, envelope, wait_ms)):
                self._send(queue, envelope, {})

    def _send_timed(self, queue: str, envelope: dict[str, Any], wait_ms: int) -> bool:
        """Send a task for later; whether the broker has accepted it."""
        if wait_ms > STEP_MS:
            envelope = {**envelope, STEP_KEY: True}
        at_ms = self.clock.now_ms() + min(wait_ms, STEP_MS)
        at = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
        try:
            self._send(queue, envelope, {"deliver_at": at})
        except MessageIllegalError as error:
            self._refused_ms = wait_ms
            logger.warning(
                "the broker does not keep messages until %s: tasks for then or later wait in"
                " workers (%s)",
                at,
                error.remark,
            )
            return False
        return True

    def _send(self, queue: str, envelope: dict[str, Any], how: SendKeywords) -> None:
        clients, loop_thread = self._opened()
        body = dumps(envelope).encode()
        message = Message(self.topic(queue), body, keys=_task_id(envelope))
        loop_thread.call(clients.send(message, how))

    # ---- receiving -------------------------------------------------------------------------------

    def drain_events(self, connection: object, timeout: float | None = None) -> None:
        """Deliver the next messages; raises ``socket.timeout`` (TimeoutError) if none comes."""
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        wait_s = WAIT_S
        while True:
            if deadline is not None:
                wait_s = min(WAIT_S, max(0.0, deadline - self.clock.monotonic()))
            if self._drain_once(wait_s):
                return
            if deadline is not None and self.clock.monotonic() >= deadline:
                raise TimeoutError

    def _drain_once(self, wait_s: float) -> bool:
        """Receive and deliver; whether there was a message."""
        self._has_room.clear()
        wanted = [
            (channel, list(dict.fromkeys(channel._active_queues)), room)
            for channel in self.channels
            if channel._active_queues and (room := channel.room()) > 0
        ]
        if not wanted:
            self._has_room.wait(wait_s)
            return False
        received = deque(self.receive(wanted, wait_s))
        has_any = bool(received)
        try:
            while received:
                envelope, channel, queue = received.popleft()
                channel.deliver(queue, envelope)
        finally:
            self.give_back([each[0]["properties"]["delivery_tag"] for each in received])
        return has_any

    def receive(
        self, wanted: Sequence[tuple[SkylarkChannel, Sequence[str], int]], wait_s: float
    ) -> list[tuple[dict[str, Any], SkylarkChannel, str]]:
        """Messages with their channels and queues; they are held until they are settled."""
        clients, loop_thread = self._opened()
        places = {
            self.topic(queue): (channel, queue) for channel, queues, _ in wanted for queue in queues
        }
        asked = [
            Wanted([self.topic(queue) for queue in queues], room) for _, queues, room in wanted
        ]
        with _kombu_errors():
            found = loop_thread.call(
                clients.receive(asked, wait_s),
                lambda unused: clients.give_back([each.tag for each in unused]),
            )
        return [
            (envelope, *places[each.topic])
            for each in found
            if (envelope := self._decoded(each, places[each.topic][1])) is not None
        ]

    def _decoded(self, delivery: Delivery, queue: str) -> dict[str, Any] | None:
        """The envelope of a message; None if it is not for consumers."""
        try:
            envelope: dict[str, Any] = loads(delivery.body)
            properties = envelope["properties"]
            properties["delivery_tag"] = delivery.tag
            properties["delivery_info"]["redelivered"] = delivery.attempt > 1
        except (ValueError, LookupError, TypeError):
            logger.error(  # noqa: TRY400 - the traceback says nothing about the message
                "a message in topic %s is not from kombu: it will become a dead letter",
                delivery.topic,
            )
            self.settle(delivery.tag, is_done=False)
            return None
        if envelope.pop(STEP_KEY, False) and self._next_step(delivery, queue, envelope):
            return None
        return envelope

    def _next_step(self, delivery: Delivery, queue: str, envelope: dict[str, Any]) -> bool:
        """Send a task that is due much later once more; if that fails, it waits in this worker."""
        due = due_ms(envelope)
        if due is None or due - self.clock.now_ms() < TIMED_MIN_MS:
            return False
        try:
            self.send(queue, envelope)
        except (SkylarkError, BrokerUnavailableError) as error:
            logger.warning("a task in %s waits here, as it cannot be sent again: %s", queue, error)
            return False
        self.settle(delivery.tag, is_done=True)
        return True

    # ---- settling; any thread calls these --------------------------------------------------------

    def settle(self, tag: int, *, is_done: bool) -> None:
        """Acknowledge a message, or let it come again; the broker knows it soon."""
        clients, loop_thread = self._opened()
        loop_thread.post(clients.ack if is_done else clients.nack, tag)
        self._has_room.set()

    def give_back(self, tags: Sequence[int]) -> None:
        """Let others have messages that were not handled."""
        if tags and self._clients is not None and self._loop_thread is not None:
            self._loop_thread.post(self._clients.give_back, tags)


def _address(client: Any) -> str | None:
    """The name servers of a kombu connection, as ClientOptions takes them; None: environment."""
    text = client.hostname or ""
    if "://" in text:
        return None if text == URL_SCHEME else text.replace(f"{SCHEME}://", URL_SCHEME)
    if not text:
        return None
    # kombu has taken the URL apart, as it does with alternatives after a failure.
    secrets = (client.userid, client.password)
    credentials = ":".join(quote(each, safe="") for each in secrets) + "@" if all(secrets) else ""
    port = f":{client.port}" if client.port else ""
    namespace = (client.virtual_host or "").strip("/")
    return f"{URL_SCHEME}{credentials}{text}{port}/{namespace}"


for _name in (SCHEME, f"{SCHEME}+{URL_SCHEME.removesuffix('://')}"):
    TRANSPORT_ALIASES[_name] = f"{__name__}:SkylarkTransport"
