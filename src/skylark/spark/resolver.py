"""Transaction resolver: answers check-backs of brokers about half messages of exactly-once sinks.

It runs without Spark. A driver commits the rows of a batch by itself, within their immunity time.
If it could not (it died, or was too slow), brokers later send check-backs, again and again, to the
producer group ``SPARK_TXN``, and a resolver must be there to answer. It reads the status of the
batch in the log and answers by :func:`skylark.spark.exactly_once.txn_log_records.outcome_of`; for
undecided batches, and for half messages of other producers, it answers *unknown*. Any number of
resolvers may run: all give the same answers.

``skylark up`` runs one, and ``skylark txn resolver`` runs one alone. It sends heartbeats to all
masters of all clusters that the name servers know. It does not create the log: without one there
is nothing to decide.

Every hour it compares the memories of sinks with the log
(:mod:`skylark.spark.exactly_once.sink_memory`).
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from skylark.admin.errors import NotFoundError
from skylark.client.core.client_message import MessageExt, TxState
from skylark.client.core.client_options import ClientOptions
from skylark.core.clock import Clock, LoopClock
from skylark.core.errors import SkylarkError
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.exactly_once.txn_log_records import (
    IDENTITY_PROPERTY,
    RESOLVER_GROUP,
    BatchStatus,
    outcome_of,
    read_identity,
)
from skylark.spark.sink.sink_client import SinkClient, open_client

logger = logging.getLogger(__name__)

#: How often to look for new brokers.
BROKERS_INTERVAL_S: Final = 30.0
#: Batches in the cache.
BATCH_COUNT_MAX: Final = 10_000
#: How long the status of an undecided batch is cached.
UNDECIDED_S: Final = 1.0
RETRY_S: Final = 5.0
#: How often memories of sinks are compared with the log.
REAFFIRM_INTERVAL_S: Final = 3600.0


class OutcomeLookup:
    """Looks up outcomes of half messages in the log; caches the status of batches."""

    def __init__(self, txn_log: TxnLog, clock: Clock) -> None:
        self._log = txn_log
        self._clock = clock
        # By sink and batch: the status, and until when it may be used.
        self._remembered: OrderedDict[tuple[str, int], tuple[BatchStatus, float]] = OrderedDict()

    async def outcome(self, text: str | None) -> TxState:
        """The outcome of the half message with this identity; raises SkylarkError."""
        identity = read_identity(text)
        if identity is None:
            return TxState.UNKNOWN
        return outcome_of(identity, await self._status(identity.sink, identity.batch))

    async def _status(self, sink: str, batch: int) -> BatchStatus:
        key = (sink, batch)
        status, until = self._remembered.get(key, (None, 0.0))
        if status is None or self._clock.monotonic() >= until:
            status = (await self._log.read_status(sink, batch)).status
            until = math.inf if _is_final(status) else self._clock.monotonic() + UNDECIDED_S
            self._remembered[key] = status, until
        self._remembered.move_to_end(key)
        if len(self._remembered) > BATCH_COUNT_MAX:
            self._remembered.popitem(last=False)
        return status


def _is_final(status: BatchStatus) -> bool:
    return status.decision is not None or status.abandoned or status.later


class Resolver:
    """Answers check-backs on the running loop, from :meth:`start` to :meth:`stop`."""

    def __init__(self, options: ClientOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or LoopClock()
        self._client: SinkClient | None = None
        self._outcomes: OutcomeLookup | None = None
        self._reaffirm_at = 0.0
        self.answers: dict[TxState, int] = dict.fromkeys(TxState, 0)  #: given so far

    async def start(self) -> None:
        """Register with all brokers; raises SkylarkError."""
        client = await open_client(self._options, RESOLVER_GROUP)
        try:
            self._outcomes = OutcomeLookup(TxnLog(client, make=False), self._clock)
            client.parts.transactions.checker = self.check
            self._client = client
            await self.register_with_brokers()
        except BaseException:
            self._client = None
            await client.close()
            raise

    async def stop(self) -> None:
        """Leave the group."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def run(self) -> None:
        """Register with new brokers periodically, until cancelled."""
        while True:
            if self._clock.monotonic() >= self._reaffirm_at:
                await self._reaffirm()
            await self._clock.sleep(BROKERS_INTERVAL_S)
            try:
                await self.register_with_brokers()
            except SkylarkError as error:
                logger.warning("the resolver cannot register with new brokers: %s", error)

    async def _reaffirm(self) -> None:
        """Compare the memories of sinks with the log; tried again soon if that fails."""
        if self._client is None:
            return
        try:
            await TxnLog(self._client, make=False).reaffirm()
        except NotFoundError:
            return
        except SkylarkError as error:
            logger.info("cannot compare the last batches of sinks with the log yet: %s", error)
            return
        self._reaffirm_at = self._clock.monotonic() + REAFFIRM_INTERVAL_S

    async def register_with_brokers(self) -> None:
        """Send a heartbeat to every master, new ones included."""
        client = self._client
        if client is None:
            return
        info = await client.session.cluster_info()
        for name, broker in info.broker_addr_table.items():
            # Every broker has a topic with the name of its cluster and one with its own.
            for topic in (broker.cluster, name):
                if topic and client.link.lookup.routes.master(name) is None:
                    await client.load_route(topic)
        await client.heartbeat()

    async def check(self, message: MessageExt) -> TxState:
        """Answer a check-back."""
        assert self._outcomes is not None
        text = message.properties.get(IDENTITY_PROPERTY)
        try:
            outcome = await self._outcomes.outcome(text)
        except NotFoundError:
            outcome = TxState.UNKNOWN
        except SkylarkError as error:
            logger.warning("cannot read the log to decide half message %s: %s", text, error)
            outcome = TxState.UNKNOWN
        self.answers[outcome] += 1
        return outcome


async def resolve_forever(
    options: ClientOptions | str, on_ready: Callable[[], None] | None = None
) -> None:
    """Run a resolver until cancelled; it retries until it can start.

    ``options`` may be just the address of the name server; then it exports no metrics.
    """
    if isinstance(options, str):
        options = ClientOptions(namesrv=options, metrics=False)
    clock = LoopClock()
    resolver = Resolver(options, clock)
    while True:
        try:
            await resolver.start()
            break
        except SkylarkError as error:
            logger.warning("the resolver cannot start yet: %s", error)
            await clock.sleep(RETRY_S)
    if on_ready is not None:
        on_ready()
    try:
        await resolver.run()
    finally:
        await resolver.stop()
