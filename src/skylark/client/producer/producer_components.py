"""Composition of a running producer: makes, starts and stops its parts.

The parts live on the event loop of the producer; :class:`Member` represents it at its client
instance, on the control loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_options import seconds
from skylark.client.core.permits import Permits
from skylark.client.core.validation import check_topic
from skylark.client.producer.accumulator_runner import Collector
from skylark.client.producer.latency_fault_tolerance import DETECTOR_PERIOD_S, FaultTable
from skylark.client.producer.producer_request_reply import Requests
from skylark.client.producer.producer_settings import ProducerSettings
from skylark.client.producer.sender import Sender
from skylark.client.producer.transaction_producer import Transactions
from skylark.core.clock import Clock
from skylark.core.errors import SkylarkError
from skylark.core.lifecycle import Tasks
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)


class Member:
    """A running producer as a member of its client instance; used on the control loop."""

    def __init__(self, sender: Sender, transactions: Transactions) -> None:
        self.group = sender.group
        self.topics = sender.topics
        self.check_transaction = transactions.check_transaction

    def __repr__(self) -> str:
        return f"producer {self.group}"


class ProducerParts:
    """The parts of a running producer."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        settings: ProducerSettings,
        hooks: Sequence[object],
    ) -> None:
        options, clock = instance.options, instance.runtime.clock
        self.instance = instance
        self.clock: Clock = clock
        self.link = instance.open_link()
        self.faults = None
        if options.send_latency:
            self.faults = FaultTable(clock.monotonic, seconds(options.detect_interval))
        self.sender = Sender(instance, self.link, group, settings, hooks=hooks, faults=self.faults)
        self.sends = Tasks(f"producer {group}", limit=None)  # permits bound them
        self.checks = Tasks(f"transactions of {group}")
        self.permits = Permits(
            clock,
            count_max=settings.pending_max,
            size_max=settings.pending_bytes_max,
            settings="pending_max and pending_bytes_max",
        )
        self.collector = Collector(self.sender, settings, clock, self.sends, self.permits)
        self.transactions = Transactions(self.sender, clock, self.checks, hooks)
        self.requests = Requests(self.sender, instance, clock)
        self.member = Member(self.sender, self.transactions)
        self._end_detector: Callable[[], None] | None = None

    async def start(self, topics: Iterable[str]) -> None:
        """Join the group, and load the routes of ``topics``."""
        await self.instance.register_producer(self.member)
        for topic in topics:
            check_topic(topic)
            await self.sender.queues(self.sender.state_of(topic))
        if self.faults is not None and self.instance.options.start_detector:
            self._end_detector = await self.instance.add_periodic(
                "detector", DETECTOR_PERIOD_S, DETECTOR_PERIOD_S, self.detect
            )
        await self.instance.heartbeat_all()

    async def stop(self, timeout_s: float) -> None:
        """Wait for messages in flight, at most ``timeout_s``; then leave the group."""
        if self._end_detector is not None:
            self._end_detector()
        self.collector.close()
        self.sends.close()
        try:
            async with self.clock.timeout(timeout_s):
                await self.sends.wait()
        except TimeoutError:
            logger.warning(
                "%r stops although %d requests have not ended", self.member, len(self.sends)
            )
        try:
            await self.sends.cancel_and_wait()
            await self.checks.cancel_and_wait()
        finally:
            self.requests.close()
            await self.instance.unregister_producer(self.member)
            await self.link.release()

    async def detect(self) -> None:
        """Probe brokers that were unreachable; on the control loop."""
        faults, instance = self.faults, self.instance
        topics = self.sender.topics()
        if faults is None or not topics:
            return
        for name in faults.take_due():
            address = instance.routes.master(name)
            if address is None:
                faults.forget(name)
                continue
            queue = MessageQueue(topic=topics[0], broker_name=name, queue_id=0)
            timeout_s = seconds(instance.options.detect_timeout)
            try:
                await instance.control_link.calls.max_offset(address, queue, timeout_s)
            except SkylarkError as error:
                logger.debug("broker %s is still unreachable: %s", name, error)
            else:
                faults.answered(name)
