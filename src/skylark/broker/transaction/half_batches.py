"""Many half messages at a time, between two Skylarks: SEND_HALVES and END_HALVES.

A sink that writes exactly once sends every row as a half message and decides about each. One
request for each costs many times what the rows cost; these two carry a few hundred.

**SEND_HALVES** is a batch send (320) whose messages are stored as half messages: in one append, so
all or none, with consecutive offsets of the half queue. The properties in the header are those of
all of them: PGROUP, and how long they are immune. It is for plain messages only: each has a unique
id, none has a delay or a property that the broker acts upon, the topic has no attributes. Whatever
is different is refused as illegal (13), and nothing is stored; its sender then takes 310.

**END_HALVES** is END_TRANSACTION for each of them, in order, by
:meth:`TransactionService.end
<skylark.broker.transaction.transaction_service.TransactionService.end>`. The answer has their
codes, up to the first that failed: order would be lost otherwise. One that is too late (604) is no
failure; only its producer's answer counts now. Plain ones take a quicker way with the same outcome
(:mod:`skylark.broker.transaction.batch_commits`).

What a crash leaves: of a SEND_HALVES that was not answered any number of half messages, from the
first on, as if they had been sent one after the other; nobody knows them, and their producer will
be asked. Of an END_HALVES any number of decisions, likewise; all may be repeated.

A broker without these requests answers 3, and whoever asked goes on message by message.
"""

from __future__ import annotations

import re
from typing import Final

from skylark.broker.send.batch_ids import batch_ids
from skylark.broker.send.message_policy import is_plain, plain_item
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.put_replies import PutAnswers
from skylark.broker.send.send_checks import SendChecks, send_header
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.transaction.batch_commits import PlainCommits
from skylark.broker.transaction.half_message import HALF_QUEUE_ID
from skylark.broker.transaction.handlers import check_master
from skylark.broker.transaction.recent_halves import HALF_NAMES
from skylark.broker.transaction.transaction_service import TransactionService
from skylark.core.clock import TimeSource
from skylark.core.errors import BrokerError, NoPermissionError
from skylark.core.names import HALF_TOPIC, is_retry_topic
from skylark.net.connection import Connection
from skylark.net.dispatch import Answer, Dispatcher
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.batch import Batch, split_batch
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.end_halves_body import HalfPlace, decode_places, encode_codes
from skylark.wire.fields import decode_ext
from skylark.wire.headers.send import SendHeader
from skylark.wire.headers.txn import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    EndHalvesRequestHeader,
    EndTransactionRequestHeader,
)
from skylark.wire.layout import FLAG_TRANSACTION_MASK

#: What a message must not bring along: the broker or the header says it.
_HALF_ITEM: Final = plain_item(names.PROPERTY_PGROUP, *HALF_NAMES)
_HALF_PLAIN: Final = re.compile(f"(?:{_HALF_ITEM})+".encode())
_UNIQUE_ID: Final = names.needle_of(names.PROPERTY_UNIQ_KEY.encode())


class HalfHandlers:
    """The requests about many half messages."""

    def __init__(
        self,
        checks: SendChecks,
        answers: PutAnswers,
        writer: MessageWriter,
        stats: BrokerStats,
        transactions: TransactionService,
        clock: TimeSource,
    ) -> None:
        self._checks = checks
        self._answers = answers
        self._writer = writer
        self._stats = stats
        self._transactions = transactions
        self._clock = clock

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        dispatcher.add_hot(RequestCode.SEND_HALVES, self.send)
        dispatcher.add_hot(RequestCode.END_HALVES, self.end)

    # --- SEND_HALVES ------------------------------------------------------------------------------

    def send(self, connection: Connection, request: Command) -> Answer:
        """SEND_HALVES (9002)."""
        checks = self._checks
        checks.follow()
        header = send_header(request)
        topic = checks.topic_of(connection, header)
        draft = checks.draft(connection, header, topic, b"")
        real_queue_id = draft.queue_id
        batch = self._halves(header, topic, draft, request.body or b"")
        draft.topic, draft.queue_id = HALF_TOPIC, HALF_QUEUE_ID
        draft.sys_flag &= ~FLAG_TRANSACTION_MASK
        result = self._writer.put_batch(draft, batch)
        if not result.status.stored:
            raise self._answers.refusal(result.status)
        self._transactions.halves_stored(header.topic, len(batch))
        self._stats.put(HALF_TOPIC, result.message_count, result.size, is_system=True)
        ext = {
            **checks.ext,
            "msgId": batch_ids(self._writer.store, result, batch),
            "queueId": str(real_queue_id),
            "queueOffset": str(result.queue_offset),
        }
        return self._answers.when_durable(
            connection,
            request,
            result,
            header.properties or "",
            lambda status: response_to(request, status.code, ext=ext),
        )

    def _halves(self, header: SendHeader, topic: TopicConfig, draft: Draft, body: bytes) -> Batch:
        """The messages with the properties of half messages; raises BrokerError."""
        checks = self._checks
        if checks.config.reject_transaction_message:
            raise NoPermissionError(
                f"the broker[{checks.config.broker_ip1}] sending transaction message is forbidden"
            )
        common = header.properties or ""
        if (
            topic.attributes
            or is_retry_topic(header.topic)
            or len(body) > self._writer.store.config.max_message_size
            or not is_plain(common)
            or names.find_property(common, names.PROPERTY_PGROUP) is None
        ):
            raise self._illegal("these half messages need requests of their own")
        batch = split_batch(body, size_max=len(body))
        middle = (
            f"{common}{names.PROPERTY_TRAN_MSG}\x01true\x02{names.PROPERTY_TRANSACTION_ID}\x01"
        ).encode()
        end = (
            f"\x02{checks.added_text}{names.PROPERTY_REAL_TOPIC}\x01{draft.topic}\x02"
            f"{names.PROPERTY_REAL_QID}\x01{draft.queue_id}\x02"
        ).encode()
        added = len(batch) * (len(middle) + len(end))
        if sum(batch.sizes) + added > self._writer.store.config.record_size_max:
            raise self._illegal("these half messages are too large for one request")
        completed = []
        for properties in batch.properties:
            unique_id = names.find_by_needle(properties, _UNIQUE_ID)
            if unique_id is None or not _HALF_PLAIN.fullmatch(properties):
                raise self._illegal("a half message needs a request of its own")
            completed.append(properties + middle + unique_id + end)
        return batch.with_properties(completed)

    def _illegal(self, hint: str) -> BrokerError:
        return self._answers.refusal(PutStatus.MESSAGE_ILLEGAL, hint)

    # --- END_HALVES -------------------------------------------------------------------------------

    def end(self, connection: Connection, request: Command) -> Answer:
        """END_HALVES (9003)."""
        self._checks.follow()
        check_master(self._checks.config)
        header = decode_ext(EndHalvesRequestHeader, request.ext)
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise BrokerError(f"{header.commit_or_rollback} is no decision")
        codes, last = self._end(header, decode_places(request.body or b""))
        return self._answers.when_durable(
            connection,
            request,
            last,
            "",
            lambda _status: response_to(request, ResponseCode.SUCCESS, body=encode_codes(codes)),
        )

    def _end(
        self, header: EndHalvesRequestHeader, places: list[HalfPlace]
    ) -> tuple[list[int], PutResult]:
        """The codes up to the first failure, and the last record on which they rely."""
        last = PutResult(PutStatus.PUT_OK, self._writer.store.log.max_offset)
        codes: list[int] = []
        is_commit = header.commit_or_rollback == TRANSACTION_COMMIT
        group, now_ms = header.producer_group, self._clock.now_ms()
        with PlainCommits(self._transactions, self._writer, group, now_ms) as plain:
            while len(codes) < len(places):
                left = places[len(codes) :]
                try:
                    result = plain.commit(left) if is_commit else None
                    codes += [ResponseCode.SUCCESS] * (result.message_count if result else 1)
                    if result is None:
                        decision = _decision(header, left[0])
                        result = self._transactions.end(decision, acknowledged=True)
                except BrokerError as error:
                    codes[-1] = error.code
                    if error.code != ResponseCode.ILLEGAL_OPERATION:
                        break
                else:
                    last = max(last, result, key=lambda each: each.next_offset)
        return codes, last


def _decision(header: EndHalvesRequestHeader, place: HalfPlace) -> EndTransactionRequestHeader:
    return EndTransactionRequestHeader(
        producer_group=header.producer_group,
        tran_state_table_offset=place.queue_offset,
        commit_log_offset=place.log_offset,
        commit_or_rollback=header.commit_or_rollback,
        msg_id=place.unique_id,
        transaction_id=place.unique_id,
    )
