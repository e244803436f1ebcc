"""Half messages of a sink: sending them, writing down where they are, and ending them.

**Sending.** Each row is a message with ``TRAN_MSG``, the resolver's group, its identity and a time
of immunity, within which brokers ask nobody about it. A send that gets no answer may
have stored its half; it is repeated under the next number, and the number before is void
(:mod:`skylark.spark.exactly_once.txn_log_records`). Answers that say the row was not stored keep
the number.

**Ending.** END_TRANSACTION is sent as a request, so failures are seen, and repeated until it is
answered. An answer of 604 hands the half over: its immunity is over, and now only the answer to the
broker's question counts, which the resolver gives. With sharding keys the ends of one queue follow
each other, in the order of the rows; otherwise many are under way.

A Skylark broker takes a few hundred ends in one request, END_HALVES, and does them in order up to
the first that fails; that one is then ended by itself, with its own patience and its own error. A
request without an answer is repeated as a whole: any number of its ends may have been done, and
each counts once. A broker that does not know the request (3) gets one for each half.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from skylark.client.core.broker_calls import checked, make_request
from skylark.core.backoff import Backoff, Outage
from skylark.core.errors import BrokerError, ClientError, SkylarkError
from skylark.spark.exactly_once.txn_log import may_repeat
from skylark.spark.exactly_once.txn_log_records import (
    RESOLVER_GROUP,
    Manifest,
    sums,
    unique_id,
    unique_prefix,
)
from skylark.spark.sink.sink_client import SinkClient
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.end_halves_body import HalfPlace, decode_codes, encode_places
from skylark.wire.headers.pull import QueryMessageRequestHeader
from skylark.wire.headers.txn import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    EndHalvesRequestHeader,
    EndTransactionRequestHeader,
)

log = logging.getLogger(__name__)

#: Ends under way at one broker.
IN_FLIGHT_MAX: Final = 256
#: Ends in one request, and such requests under way at one broker.
PORTION_COUNT: Final = 512
_PORTIONS_IN_FLIGHT: Final = 4
END_TIMEOUT_S: Final = 5.0
_REPEAT: Final = Backoff(first_s=0.05, most_s=2.0)
#: Answers with code 1 that will not change, in Java's words and in ours.
_REFUSALS: Final = (
    "Find prepared transaction message failed",
    "The producer group wrong",
    "The transaction state table offset wrong",
    "The commit log offset wrong",
    "half already",
)
_FOREVER_MS: Final = (1 << 53) - 1


class Place(NamedTuple):
    """Where a half is, and where its row will be."""

    queue: MessageQueue
    log_offset: int
    queue_offset: int
    unique_id: str


class Ended(msgspec.Struct):
    """What became of many ends."""

    count: int = 0  #: answered with success
    handed_over: int = 0  #: left to the resolver
    skipped: int = 0  #: found to be committed before (``txnVerify``)


def places_of(manifest: Manifest) -> list[Place]:
    """The halves that a manifest names, in the order of the rows."""
    prefix = unique_prefix(manifest.sink, manifest.batch, manifest.partition, manifest.attempt)
    queues = [
        MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
        for topic, broker, queue_id in manifest.queues
    ]
    return [
        Place(queues[target], log_offset, queue_offset, unique_id(prefix, seq))
        for target, log_offset, queue_offset, seq in zip(
            manifest.targets,
            sums(manifest.log_offsets),
            sums(manifest.queue_offsets),
            sums(manifest.seqs),
            strict=True,
        )
    ]


class Ends:
    """Ends halves, many at a time."""

    def __init__(self, client: SinkClient, patience_s: float, *, verify: bool = False) -> None:
        """``verify``: ask before committing whether that was done before (best effort)."""
        self._client = client
        self._patience_s = patience_s
        self._verify = verify
        self._without: set[str] = set()  # brokers that do not know END_HALVES
        self._permits: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(IN_FLIGHT_MAX)
        )
        self._portion_permits: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_PORTIONS_IN_FLIGHT)
        )

    async def commit(self, places: Sequence[Place], *, ordered: bool) -> Ended:
        """Commit halves; raises the first failure, when nothing is under way any more."""
        ended = Ended()
        if ordered:
            lanes = _grouped(places, lambda place: place.queue)
            await all_of(self._commit_lane(lane, ended, ordered=True) for lane in lanes)
        else:
            parts = _portions(places)
            await all_of(self._commit_lane(part, ended, ordered=False) for part in parts)
        return ended

    async def _commit_lane(self, places: Sequence[Place], ended: Ended, *, ordered: bool) -> None:
        for portion in _portions(places):
            async with self._portion_permits[portion[0].queue.broker_name]:
                await self._portion(portion, TRANSACTION_COMMIT, ended, ordered=ordered)

    async def roll_back(self, places: Iterable[Place]) -> None:
        """Roll halves back that nobody will commit; a failure is left to the resolver."""
        failures: list[SkylarkError] = []

        async def roll_back(portion: Sequence[Place]) -> None:
            async with self._portion_permits[portion[0].queue.broker_name]:
                if failures:
                    return
                try:
                    await self._portion(portion, TRANSACTION_ROLLBACK, Ended(), ordered=False)
                except SkylarkError as error:
                    failures.append(error)

        await all_of(roll_back(portion) for portion in _portions(list(places)))
        if failures:
            log.info("rolling back is left to the resolver: %s", failures[0])

    # ---- portions: of one broker and topic -------------------------------------------------------

    async def _portion(
        self, places: Sequence[Place], what: int, ended: Ended, *, ordered: bool
    ) -> None:
        broker = places[0].queue.broker_name
        while places and not self._verify and broker not in self._without:
            codes = await self._end_together(places, what)
            if codes is None:
                self._without.add(broker)
                break
            for place, code in zip(places, codes, strict=False):
                await self._tally(place, what, code, ended)
            places = places[len(codes) :]
        if ordered:
            for place in places:
                await self._end_one(place, what, ended)
        else:
            await all_of(self._end_one(place, what, ended) for place in places)

    async def _tally(self, place: Place, what: int, code: int, ended: Ended) -> None:
        if code == ResponseCode.SUCCESS:
            ended.count += 1
        elif code == ResponseCode.ILLEGAL_OPERATION:
            ended.handed_over += 1
        else:
            await self._end_one(place, what, ended)

    async def _end_together(self, places: Sequence[Place], what: int) -> Sequence[int] | None:
        """The codes of the first ends, one at least; None: the broker cannot do it like this."""
        client, queue = self._client, places[0].queue
        header = EndHalvesRequestHeader(
            topic=queue.topic,
            producer_group=client.namespace.wrap(RESOLVER_GROUP),
            commit_or_rollback=what,
        )
        body = encode_places(
            HalfPlace(place.log_offset, place.queue_offset, place.unique_id) for place in places
        )

        def make() -> Command:
            request = make_request(RequestCode.END_HALVES, header, broker_name=queue.broker_name)
            request.body = body
            return request

        try:
            answer = await self._call(queue, make)
        except BrokerError as error:
            if is_unknown_request(error):
                return None
            raise
        return decode_codes(answer.body, len(places))

    # ---- one by one ------------------------------------------------------------------------------

    async def _end_one(self, place: Place, what: int, ended: Ended) -> None:
        async with self._permits[place.queue.broker_name]:
            if self._verify and what == TRANSACTION_COMMIT and await self._is_there(place):
                ended.skipped += 1
            elif await self._end(place, what):
                ended.count += 1
            else:
                ended.handed_over += 1

    async def _end(self, place: Place, what: int) -> bool:
        """Whether it counts; False if only the resolver can decide now."""
        header = EndTransactionRequestHeader(
            topic=place.queue.topic,
            producer_group=self._client.namespace.wrap(RESOLVER_GROUP),
            tran_state_table_offset=place.queue_offset,
            commit_log_offset=place.log_offset,
            commit_or_rollback=what,
            msg_id=place.unique_id,
            transaction_id=place.unique_id,
        )

        def make() -> Command:
            name = place.queue.broker_name
            return make_request(RequestCode.END_TRANSACTION, header, broker_name=name)

        answer = await self._call(place.queue, make)
        return answer.code == ResponseCode.SUCCESS

    async def _call(self, queue: MessageQueue, make: Callable[[], Command]) -> Command:
        """Ask the master of a queue until there is an answer, success or 604."""
        client = self._client
        outage = Outage(_REPEAT, client.clock, self._patience_s)
        while True:
            try:
                address = await client.master(queue)
                answer = await client.link.call(address, make(), END_TIMEOUT_S)
                return checked(answer, address, ResponseCode.ILLEGAL_OPERATION)
            except SkylarkError as error:
                pause_s = outage.next_pause_s()
                if pause_s is None or _is_refusal(error):
                    raise
                log.debug("an end at %s is repeated: %s", queue.broker_name, error)
            await client.clock.sleep(pause_s)

    async def _is_there(self, place: Place) -> bool:
        """Whether the final message is found by its id; an index may lag, so this is no proof."""
        address = await self._client.master(place.queue)
        header = QueryMessageRequestHeader(
            topic=place.queue.topic,
            key=place.unique_id,
            max_num=1,
            begin_timestamp=0,
            end_timestamp=_FOREVER_MS,
            unique_key_query=True,
        )
        found = await self._client.link.calls.query_messages(address, header)
        return any(record.topic == place.queue.topic for record in found.records)


def _is_refusal(error: SkylarkError) -> bool:
    """Whether a broker has said that there is no such half, or that it ended otherwise."""
    if isinstance(error, BrokerError):
        return error.remark.startswith(_REFUSALS) or not may_repeat(error)
    return not may_repeat(error) and not isinstance(error, ClientError)


def is_unknown_request(error: BrokerError) -> bool:
    """Whether a broker does not know a request that only Skylark has."""
    return error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def _grouped(places: Iterable[Place], key: Callable[[Place], Hashable]) -> list[list[Place]]:
    groups: dict[Hashable, list[Place]] = defaultdict(list)
    for place in places:
        groups[key(place)].append(place)
    return list(groups.values())


def _portions(places: Sequence[Place]) -> Iterator[Sequence[Place]]:
    """What one request can hold: places of one broker and topic, in their order."""
    for group in _grouped(places, lambda place: (place.queue.broker_name, place.queue.topic)):
        for first in range(0, len(group), PORTION_COUNT):
            yield group[first : first + PORTION_COUNT]


async def all_of(work: Iterable[object]) -> None:
    """Wait for all; the first error is raised when all have ended."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)  # type: ignore[call-overload]
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
