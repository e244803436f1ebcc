"""The clients of one kombu connection: a producer, a pop consumer for each queue, held messages.

:mod:`skylark.integrations.kombu` calls this from kombu's threads. Everything here runs on the event
loop of the blocking clients (:mod:`skylark.client.blocking.event_loop_thread`), so there are no
locks.

A message is *held* from its receive until the application settles it. The invisible time of held
messages is renewed when a third to two thirds of it have passed, without limit: a message belongs
to its connection for as long as that is open, as with AMQP. If the process dies, renewals end, and
brokers deliver its messages again when the invisible time is over.

Each queue has its own consumer group, because members of one group must have the same
subscriptions, and workers do not all consume the same queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from skylark.client.consumer.pop.pop_consumer import RECEIVE_MAX, PopConsumer
from skylark.client.consumer.pop.popped_message import PoppedMessage
from skylark.client.core.client_message import Message
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.instance_registry import open_instance
from skylark.client.errors import ReceiptExpiredError
from skylark.client.producer.producer import Producer
from skylark.client.producer.send_options import SendKeywords
from skylark.client.public_names import ConsumeFromWhere
from skylark.core.clock import Clock, LoopClock
from skylark.core.errors import NoRouteError, QueryNotFoundError, SkylarkError
from skylark.core.lifecycle import Tasks
from skylark.core.names import AUTO_CREATE_TOPIC

logger = logging.getLogger(__name__)

PRODUCER_GROUP: Final = "kombu"
#: Pause before a topic that does not exist is asked for again.
NO_ROUTE_PAUSE_S: Final = 1.0
#: A rejected message comes again after this.
REQUEUE_DELAY_S: Final = 1.0
#: Renewals at a time.
REQUESTS_MAX: Final = 32
_RENEWALS: Final = 3  # ticks in one invisible time


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all consumers of a connection."""

    group: str  #: put before the topic, for the name of the consumer group
    invisible_s: float
    max_reconsume_times: int


class Wanted(NamedTuple):
    """What one channel can take: at most ``room`` messages of these topics together."""

    topics: Sequence[str]
    room: int


class Delivery(NamedTuple):
    """A held message, as kombu's thread gets it."""

    tag: int
    topic: str
    body: bytes
    attempt: int


class _Held(NamedTuple):
    consumer: PopConsumer
    message: PoppedMessage


class ConnectionClients:
    """See the module docstring; all methods are for the loop of the blocking clients."""

    def __init__(
        self, options: ClientOptions, settings: ConsumerSettings, clock: Clock | None = None
    ) -> None:
        self._options = options
        self._settings = settings
        self._clock = clock or LoopClock()
        self._producer = Producer(PRODUCER_GROUP, options)
        self._consumers: dict[str, PopConsumer] = {}  # by topic
        self._starting = asyncio.Lock()  # two receives may want the same consumer
        self._held: dict[int, _Held] = {}
        self._tags = count(1)
        self._turn = 0
        self._settling = Tasks("kombu acknowledgements", limit=None)  # acks are batched
        self._renewal = Tasks("kombu renewal")

    # ---- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the producer, and require a name server; raises NoNameServerError."""
        await self._producer.start()
        try:
            await self._producer.queues(AUTO_CREATE_TOPIC)
        except NoRouteError:
            return  # a name server has answered: its brokers do not create topics
        except BaseException:
            await self._producer.stop()
            raise

    async def close(self) -> None:
        """Wait for acks, give back what is held by consumers, and stop; errors are logged."""
        await self._renewal.cancel_and_wait()
        self._settling.close()
        await self._settling.wait()
        self._held.clear()
        for client in (*self._consumers.values(), self._producer):
            try:
                await client.stop()
            except SkylarkError as error:
                logger.info("%s did not stop cleanly: %s", client, error)

    async def _consumer(self, topic: str) -> PopConsumer:
        """The consumer of a topic, which joins its group at the first call."""
        if topic not in self._consumers:
            async with self._starting:
                if topic not in self._consumers:
                    self._consumers[topic] = await self._start_consumer(topic)
        return self._consumers[topic]

    async def _start_consumer(self, topic: str) -> PopConsumer:
        consumer = PopConsumer(
            self.group_of(topic),
            self._options,
            invisible=self._settings.invisible_s,
            max_reconsume_times=self._settings.max_reconsume_times,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ).subscribe(topic)
        await consumer.start()
        if not self._renewal:
            self._renewal.spawn(self._renew_held(), name="renew")
        return consumer

    def group_of(self, topic: str) -> str:
        """The consumer group of a topic."""
        return f"{self._settings.group}-{topic}"

    # ---- messages --------------------------------------------------------------------------------

    async def send(self, message: Message, how: SendKeywords) -> None:
        """Send a message and wait until it is stored."""
        await self._producer.send(message, **how)

    async def receive(self, wanted: Sequence[Wanted], wait_s: float) -> list[Delivery]:
        """Messages that are held from now on, as soon as there is one; none if none comes in time.

        Asks all topics in turn, and waits at all of them if none has a message.
        """
        found: list[_Held] = []
        try:
            if sum(len(each.topics) for each in wanted) > 1:
                await self._receive_all(wanted, found)
            if not found:
                found = await self._receive_first(wanted, wait_s)
        except BaseException:
            self._put_back(found)
            raise
        return [self._hold(each) for each in found]

    async def _receive_all(self, wanted: Sequence[Wanted], found: list[_Held]) -> None:
        """Add what is there now, from another topic first each time."""
        self._turn += 1
        for topics, room in wanted:
            end = len(found) + room
            for index in range(len(topics)):
                topic = topics[(self._turn + index) % len(topics)]
                if len(found) < end:
                    found += await self._receive_from(topic, end - len(found), 0.0)

    async def _receive_from(self, topic: str, count_max: int, wait_s: float) -> list[_Held]:
        try:
            consumer = await self._consumer(topic)
            found = await consumer.receive(min(count_max, RECEIVE_MAX), wait=wait_s)
        except NoRouteError:  # a topic exists from its first message on
            await self._clock.sleep(min(wait_s, NO_ROUTE_PAUSE_S))
            return []
        return [_Held(consumer, message) for message in found]

    async def _receive_first(self, wanted: Sequence[Wanted], wait_s: float) -> list[_Held]:
        """Wait at all topics for the first messages. A receive that is cancelled loses nothing."""
        places = [(topic, each.room) for each in wanted for topic in each.topics]
        if len(places) == 1:
            return await self._receive_from(*places[0], wait_s)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._receive_from(*place, wait_s)) for place in places]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            for each in await _ended(tasks):
                self._put_back(each)
            raise
        first, *others = await _ended(tasks) or [[]]
        for each in others:  # they came at the same time, and there may be no room for them
            self._put_back(each)
        return first

    def _hold(self, held: _Held) -> Delivery:
        tag = next(self._tags)
        self._held[tag] = held
        message = held.message
        return Delivery(tag, message.topic, message.body, message.attempt)

    @staticmethod
    def _put_back(messages: Iterable[_Held]) -> None:
        """Leave messages to the next receive, or to others; this counts no attempt."""
        for consumer, message in messages:
            consumer._put_back([message])

    # ---- settling --------------------------------------------------------------------------------

    def ack(self, tag: int) -> None:
        """The message is done; the broker knows it soon."""
        self._settle(tag, is_done=True)

    def nack(self, tag: int) -> None:
        """The message comes again, as its next attempt."""
        self._settle(tag, is_done=False)

    def give_back(self, tags: Iterable[int]) -> None:
        """Let others have messages, without counting an attempt."""
        found = (self._held.pop(tag, None) for tag in tags)
        self._put_back(held for held in found if held is not None)

    def _settle(self, tag: int, *, is_done: bool) -> None:
        held = self._held.pop(tag, None)
        if held is None or self._settling.closed:
            return
        message = held.message
        work = message.ack() if is_done else message.nack(REQUEUE_DELAY_S)
        self._settling.spawn(_logging_errors(message, work), name="settle")

    # ---- renewal ---------------------------------------------------------------------------------

    async def _renew_held(self) -> None:
        seen: frozenset[int] = frozenset()  # held at the last tick
        while True:
            await self._clock.sleep(self._settings.invisible_s / _RENEWALS)
            due = [tag for tag in self._held if tag in seen]
            seen = frozenset(self._held)
            for start in range(0, len(due), REQUESTS_MAX):
                await asyncio.gather(*map(self._renew, due[start : start + REQUESTS_MAX]))

    async def _renew(self, tag: int) -> None:
        held = self._held.get(tag)
        if held is None:
            return
        try:
            await held.message.extend(self._settings.invisible_s)
        except SkylarkError as error:
            if tag not in self._held:
                return  # it was settled meanwhile
            if not error.retriable:
                del self._held[tag]  # so that it is not settled: another worker may have it
            logger.warning("%s is not renewed and may be delivered again: %s", held.message, error)

    # ---- queues ----------------------------------------------------------------------------------

    async def purge(self, topic: str) -> int:
        """Acknowledge all messages that can be received; returns how many."""
        purged = 0
        while found := await self._receive_from(topic, RECEIVE_MAX, 0.0):
            await found[0].consumer.ack([held.message for held in found])
            purged += len(found)
        return purged

    async def size(self, topic: str) -> int | None:
        """Messages that were not acknowledged; None if the topic does not exist.

        Without those that failed and wait for another attempt, and those whose time has not come.
        """
        async with open_instance(self._options) as (instance, link):
            group = instance.namespace.wrap(self.group_of(topic))
            try:
                route = await link.lookup.subscribe_route(instance.namespace.wrap(topic))
            except NoRouteError:
                return None
            total = 0
            for queue in route.subscribe:
                address = await link.lookup.master_of(queue)
                end = await link.calls.max_offset(address, queue)
                try:
                    begin = await link.calls.query_offset(address, group, queue)
                except QueryNotFoundError:
                    begin = await link.calls.min_offset(address, queue)
                total += max(0, end - begin)
            return total


async def _ended(tasks: Sequence[asyncio.Task[list[_Held]]]) -> list[list[_Held]]:
    """Cancel the tasks; what they brought. Raises the error of one if none brought anything."""
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    found = [each for each in results if isinstance(each, list) and each]
    failures = [each for each in results if isinstance(each, Exception)]
    if failures and not found:
        raise failures[0]
    return found


async def _logging_errors(message: PoppedMessage, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except ReceiptExpiredError:
        logger.warning(
            "%s was settled after its visibility timeout: it is delivered again", message
        )
    except SkylarkError as error:
        logger.warning("%s is not settled and is delivered again: %s", message, error)
