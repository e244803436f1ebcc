"""Answers brokers that ask about the half messages of exactly-once sinks. Runs without Spark.

A driver commits the rows of a batch by itself, within their time of immunity. What it could not
(it died, or was too slow) brokers ask about afterwards, again and again, and somebody of the group
``SPARK_TXN`` must be there to answer: a resolver. It looks the batch up in the log and says what
was decided (:func:`skylark.spark.exactly_once.txn_log_records.fate_of`); about batches that nobody
has decided, and about halves that are not a sink's, it says that it does not know. Any number of
resolvers may run; all say the same.

``skylark up`` runs one, ``skylark txn resolver`` is one by itself. It makes itself known to the
masters of all clusters that the name servers know. Without a log there is nothing to decide, so it
makes none.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from skylark.admin.errors import NotFoundError
from skylark.client.core.client_message import MessageExt, TxState
from skylark.client.core.client_options import ClientOptions
from skylark.core.clock import Clock, LoopClock
from skylark.core.errors import SkylarkError
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.exactly_once.txn_log_records import (
    IDENTITY_PROPERTY,
    RESOLVER_GROUP,
    Fate,
    Standing,
    fate_of,
    read_identity,
)
from skylark.spark.sink.sink_client import SinkClient, open_client

log = logging.getLogger(__name__)

#: How often new brokers are looked for.
BROKERS_INTERVAL_S: Final = 30.0
#: Batches that are remembered.
BATCH_COUNT_MAX: Final = 10_000
#: For how long an undecided batch is not looked up again.
UNDECIDED_S: Final = 1.0
RETRY_S: Final = 5.0

STATES: Final = {
    Fate.COMMIT: TxState.COMMIT,
    Fate.ROLLBACK: TxState.ROLLBACK,
    Fate.UNKNOWN: TxState.UNKNOWN,
}


class _Known(msgspec.Struct):
    standing: Standing
    looked_at: float


class Judge:
    """What becomes of halves, by the log; remembers what was decided."""

    def __init__(self, txn_log: TxnLog, clock: Clock) -> None:
        self._log = txn_log
        self._clock = clock
        self._known: OrderedDict[tuple[str, int], _Known] = OrderedDict()

    async def fate(self, text: str | None) -> Fate:
        """Of the half with this identity; raises what reading the log raises."""
        identity = read_identity(text)
        if identity is None:
            return Fate.UNKNOWN
        return fate_of(identity, await self._standing(identity.sink, identity.batch))

    async def _standing(self, sink: str, batch: int) -> Standing:
        key = (sink, batch)
        known = self._known.get(key)
        now = self._clock.monotonic()
        if known is not None and (_is_final(known.standing) or now - known.looked_at < UNDECIDED_S):
            self._known.move_to_end(key)
            return known.standing
        standing = (await self._log.look(sink, batch)).standing
        self._known[key] = _Known(standing, self._clock.monotonic())
        self._known.move_to_end(key)
        if len(self._known) > BATCH_COUNT_MAX:
            self._known.popitem(last=False)
        return standing


def _is_final(standing: Standing) -> bool:
    return standing.decision is not None or standing.abandoned or standing.later


class Resolver:
    """A resolver on the running loop, from :meth:`start` to :meth:`stop`."""

    def __init__(self, options: ClientOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or LoopClock()
        self._client: SinkClient | None = None
        self._judge: Judge | None = None
        self.answers: dict[Fate, int] = dict.fromkeys(Fate, 0)  #: given so far

    async def start(self) -> None:
        """Make ourselves known to all brokers; raises SkylarkError."""
        client = await open_client(self._options, RESOLVER_GROUP)
        try:
            self._judge = Judge(TxnLog(client, make=False), self._clock)
            client.parts.transactions.checker = self.check
            self._client = client
            await self.see_brokers()
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
        """Look for new brokers now and then; until cancelled."""
        while True:
            await self._clock.sleep(BROKERS_INTERVAL_S)
            try:
                await self.see_brokers()
            except SkylarkError as error:
                log.warning("the resolver cannot look for new brokers: %s", error)

    async def see_brokers(self) -> None:
        """Send heartbeats to every master, those that are new included."""
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
        """A broker asks about a half."""
        assert self._judge is not None
        text = message.properties.get(IDENTITY_PROPERTY)
        try:
            fate = await self._judge.fate(text)
        except NotFoundError:
            fate = Fate.UNKNOWN
        except SkylarkError as error:
            log.warning("a half of %s stays undecided, the log cannot be read: %s", text, error)
            fate = Fate.UNKNOWN
        self.answers[fate] += 1
        return STATES[fate]


async def resolve_forever(
    options: ClientOptions | str, on_ready: Callable[[], None] | None = None
) -> None:
    """Run a resolver until cancelled; what it cannot do now it tries again.

    ``options`` may be the address of the name server alone; then nothing is counted.
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
            log.warning("the resolver cannot start yet: %s", error)
            await clock.sleep(RETRY_S)
    if on_ready is not None:
        on_ready()
    try:
        await resolver.run()
    finally:
        await resolver.stop()
