"""The broker of taskiq (https://taskiq-python.github.io): tasks are messages of one topic.

::

    broker = SkylarkBroker("tasks", "workers", ClientOptions(namesrv="127.0.0.1:9876"))

    @broker.task
    async def resize(picture: str) -> None: ...

    await resize.kiq("cat.png")                                   # in the application
    await resize.kicker().with_labels(delay=60).kiq("cat.png")    # a minute later

Workers are started by ``taskiq worker module:broker``. They are members of one consumer group.

**Acknowledgement.** Each task is acknowledged by itself: the handler of the push consumer waits
until taskiq has acknowledged the message (by default when its result is saved). A task whose worker
dies is delivered again. A task that raises is done, as taskiq itself keeps its error as the result;
use taskiq's retry middleware for retries. A task that takes longer than ``consume_timeout`` (15
minutes) is delivered again: raise that setting for long tasks.

**Delays** (label ``delay``, in seconds) are kept by the broker. Up to ``concurrency`` tasks are
taken by a worker at a time.

Needs the extra ``taskiq``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Final, Unpack

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.consumer.push.push_settings import PushKeywords
from skylark.client.core.client_message import Message, MessageExt, RetryLater
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.producer import Producer
from skylark.client.public_names import ConsumeFromWhere
from skylark.core.errors import ConfigError

DELAY_LABEL: Final = "delay"


class SkylarkBroker(AsyncBroker):
    """See the module."""

    def __init__(
        self,
        topic: str,
        group: str,
        options: ClientOptions | None = None,
        **settings: Unpack[PushKeywords],
    ) -> None:
        """``group`` is that of the workers; ``settings`` are those of their push consumer."""
        super().__init__()
        settings.setdefault("consume_from_where", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        self._topic = topic
        self._group = group
        self._options = options
        self._settings = settings
        self._producer = Producer(f"{group}-tasks", options)
        self._consumer: PushConsumer | None = None
        self._received: asyncio.Queue[tuple[bytes, asyncio.Future[None]]] = asyncio.Queue()
        self._unacknowledged: set[asyncio.Future[None]] = set()

    async def startup(self) -> None:
        """Start the producer; a worker starts its consumer in :meth:`listen`."""
        await super().startup()
        await self._producer.start()

    async def shutdown(self) -> None:
        """Give back the tasks that were not acknowledged, and stop the clients."""
        for waiting in list(self._unacknowledged):
            if not waiting.done():
                waiting.set_exception(RetryLater("its worker stops"))
        if self._consumer is not None:
            await self._consumer.stop()
        await self._producer.stop()
        await super().shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task."""
        task = Message(self._topic, message.message, tag=None, keys=[message.task_id])
        await self._producer.send(task, delay=_delay(message))

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield tasks; each is done when taskiq acknowledges it."""
        if self._consumer is None:
            self._consumer = PushConsumer(self._group, self._options, **self._settings)
            self._consumer.subscribe(self._topic, self._take)
            await self._consumer.start()
        while True:
            body, acknowledged = await self._received.get()

            def acknowledge(done: asyncio.Future[None] = acknowledged) -> None:
                if not done.done():  # else the consumer has given the message up
                    done.set_result(None)

            yield AckableMessage(data=body, ack=acknowledge)

    async def _take(self, message: MessageExt) -> None:
        """The handler: returns when the task is acknowledged."""
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unacknowledged.add(acknowledged)
        try:
            self._received.put_nowait((message.body, acknowledged))
            await acknowledged
        finally:
            self._unacknowledged.discard(acknowledged)


def _delay(message: BrokerMessage) -> timedelta | None:
    """The delay that a label asks for."""
    given = message.labels.get(DELAY_LABEL)
    if given is None:
        return None
    try:
        return timedelta(seconds=float(given))
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"the label {DELAY_LABEL} of {message.task_name} is {given!r}",
            hint="a number of seconds",
        ) from error
