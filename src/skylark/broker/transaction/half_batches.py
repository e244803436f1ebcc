"""Many half messages at a time, between two Skylarks: SEND_HALVES and END_HALVES.

A sink that writes exactly once sends every row as a half message and decides about each. One
request for each costs many times what the rows cost; these two carry a few hundred.

**SEND_HALVES** is a batch send (320) whose messages are stored as half messages: in one append, so
all or none, with consecutive offsets of the half queue. The properties in the header are those of
all of them: PGROUP, and how long they are immune. It is for plain messages only: each has a unique
id, none has a delay or a property that the broker acts upon, the topic has no attributes. Whatever
is different is refused as illegal (13), and nothing is stored; its sender then takes 310.

**END_HALVES** is END_TRANSACTION for each of them, in order
(:mod:`skylark.broker.transaction.end_transaction`). The answer has their codes, up to the first
that failed: order would be lost otherwise. One that is too late (604) is no failure; only its
producer's answer counts now.

What a crash leaves: of a SEND_HALVES that was not answered any number of half messages, from the
first on, as if they had been sent one after the other; nobody knows them, and their producer will
be asked. Of an END_HALVES any number of decisions, likewise; all may be repeated.

A broker without these requests answers 3, and the client goes on message by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from skylark.broker.api import (
    EndTransactionRequest,
    Peer,
    Pending,
    PutService,
    SendResult,
)
from skylark.broker.send.message_policy import REWRITES, PropertyScanner, scan_properties
from skylark.broker.send.put_outcome import Durability, wants_to_wait
from skylark.broker.send.send_checks import SendChecks, SendDraft
from skylark.broker.send.send_step import batch_ids
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.transaction.end_transaction import check_master
from skylark.broker.transaction.half_message import HALF_QUEUE_ID, half_suffix
from skylark.broker.transaction.transaction_service import TransactionService
from skylark.core.errors import BrokerError, NoPermissionError
from skylark.core.names import HALF_TOPIC, is_retry_topic
from skylark.net.connection import Connection
from skylark.net.dispatch import LATER, Answer, Dispatcher, error_response
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.batch import Batch, split_batch
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.end_halves_body import HalfPlace, decode_places, encode_codes
from skylark.wire.fields import decode_ext
from skylark.wire.headers.send import SendHeader, SendMessageRequestHeaderV2
from skylark.wire.headers.txn import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    EndHalvesRequestHeader,
    EndTransactionRequestHeader,
)
from skylark.wire.layout import FLAG_TRANSACTION_MASK

_GROUP_ITEM: Final = f"{names.PROPERTY_PGROUP}\x01"


class SendHalvesRequest(msgspec.Struct, gc=False):
    """SEND_HALVES (9002)."""

    header: SendHeader
    body: bytes | None


class SendHalvesStep:
    """The part of the pipeline that is about half messages which come as a batch."""

    def __init__(
        self,
        checks: SendChecks,
        durability: Durability,
        store: MessageStore,
        stats: BrokerStats,
        transactions: TransactionService,
    ) -> None:
        self._checks = checks
        self._durability = durability
        self._store = store
        self._stats = stats
        self._transactions = transactions
        self._scan = PropertyScanner().scan

    def draft(self, peer: Peer, request: SendHalvesRequest) -> SendDraft:
        """The half messages as they will be stored; raises BrokerError."""
        header = request.header
        topic = self._checks.topic_of(peer, header)
        draft = self._checks.draft(peer, header, topic, b"")
        draft.batch = self._halves(header, topic, draft, request.body or b"")
        draft.topic, draft.queue_id = HALF_TOPIC, HALF_QUEUE_ID
        draft.sys_flag &= ~FLAG_TRANSACTION_MASK
        draft.properties = (header.properties or "").encode()
        return draft

    def _halves(
        self, header: SendHeader, topic: TopicConfig, draft: SendDraft, body: bytes
    ) -> Batch:
        """The messages with the properties of half messages; raises BrokerError."""
        config = self._checks.config
        if config.reject_transaction_message:
            raise NoPermissionError(
                f"the broker[{config.broker_ip1}] sending transaction message is forbidden"
            )
        common = header.properties or ""
        if common and common[-1] != "\x02":
            common += "\x02"
        if (
            topic.attributes
            or is_retry_topic(header.topic)
            or len(body) > self._store.config.max_message_size
            or scan_properties(common)[1] & REWRITES
            or names.find_property(common, names.PROPERTY_PGROUP) is None
        ):
            raise self._illegal("these half messages need requests of their own")
        batch = split_batch(body, size_max=len(body))
        middle = f"{common}{names.PROPERTY_TRAN_MSG}\x01true\x02{self._checks.added_text}".encode()
        completed = [
            self._properties(raw, middle, draft.topic, draft.queue_id) for raw in batch.properties
        ]
        if sum(map(len, batch.bodies)) + sum(map(len, completed)) > (
            self._store.config.record_size_max
        ):
            raise self._illegal("these half messages are too large for one request")
        return batch.with_properties(completed)

    def _properties(self, raw: bytes, middle: bytes, topic: str, queue_id: int) -> bytes:
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise self._illegal("a half message needs a request of its own") from error
        unique_id, actions = self._scan(text)
        if unique_id is None or actions or _GROUP_ITEM in text:
            raise self._illegal("a half message needs a request of its own")
        end = b"" if raw.endswith(b"\x02") else b"\x02"
        return raw + end + middle + half_suffix(unique_id.encode(), topic, queue_id)

    def _illegal(self, hint: str) -> BrokerError:
        return self._durability.refusal(PutStatus.MESSAGE_ILLEGAL, hint)

    def finish(
        self, request: SendHalvesRequest, draft: SendDraft, result: PutResult, *, is_durable: bool
    ) -> SendResult | Pending[SendResult] | Exception:
        del is_durable  # when_durable finds out
        if not result.size:
            return self._durability.refusal(result.status)
        assert draft.batch is not None
        self._transactions.halves_stored(request.header.topic, len(draft.batch))
        self._stats.put(HALF_TOPIC, result.message_count, result.size, is_system=True)
        ids = batch_ids(self._store, result, draft.batch)
        place = result.log_offset, draft.asked_queue_id, result.queue_offset

        def outcome(status: PutStatus) -> SendResult:
            return SendResult(status.code, *place, "", ids)

        wait = wants_to_wait(draft.properties)
        return self._durability.when_durable(result, outcome, wait=wait)


class SendHalvesCodec:
    """SEND_HALVES (9002)."""

    def __init__(self, checks: SendChecks) -> None:
        self._checks = checks

    def read(self, command: Command) -> SendHalvesRequest:
        return SendHalvesRequest(decode_ext(SendMessageRequestHeaderV2, command.ext), command.body)

    def write(self, command: Command, outcome: SendResult | Exception) -> Command:
        if not isinstance(outcome, SendResult):
            return error_response(command, outcome)
        ext = {
            **self._checks.ext,
            "msgId": outcome.message_ids or "",
            "queueId": str(outcome.queue_id),
            "queueOffset": str(outcome.queue_offset),
        }
        return response_to(command, outcome.code, ext=ext)


class EndHalvesHandlers:
    """END_HALVES (9003)."""

    def __init__(self, puts: PutService, transactions: TransactionService) -> None:
        self._puts = puts
        self._transactions = transactions

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        dispatcher.add_hot(RequestCode.END_HALVES, self.end)

    def end(self, connection: Connection, request: Command) -> Answer:
        """END_HALVES (9003)."""
        check_master(self._transactions.config)
        header = decode_ext(EndHalvesRequestHeader, request.ext)
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise BrokerError(f"{header.commit_or_rollback} is no decision")
        places = decode_places(request.body or b"")
        decisions = [EndTransactionRequest(_decision(header, place)) for place in places]
        outcomes = self._puts.run(connection, decisions, stops_at=_breaks_order)
        pending = [outcome for outcome in outcomes if isinstance(outcome, Pending)]
        answer = response_to(request, ResponseCode.SUCCESS, body=encode_codes(_codes_of(outcomes)))
        if not pending:
            return answer
        left = len(pending)

        def durable(_result: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                connection.answer(request, answer)

        for each in pending:
            each.then(durable)
        return LATER


def _breaks_order(error: BaseException) -> bool:
    """Whether decisions behind a refused one must wait: all but those that came too late."""
    return not (isinstance(error, BrokerError) and error.code == ResponseCode.ILLEGAL_OPERATION)


def _codes_of(outcomes: Sequence[Any]) -> list[int]:
    """The response codes up to the first decision that failed."""
    codes: list[int] = []
    for outcome in outcomes:
        if isinstance(outcome, BrokerError):
            codes.append(outcome.code)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            codes.append(ResponseCode.SUCCESS)
        if isinstance(outcome, BaseException) and _breaks_order(outcome):
            break
    return codes


def _decision(header: EndHalvesRequestHeader, place: HalfPlace) -> EndTransactionRequestHeader:
    return EndTransactionRequestHeader(
        topic=header.topic,
        producer_group=header.producer_group,
        tran_state_table_offset=place.queue_offset,
        commit_log_offset=place.log_offset,
        commit_or_rollback=header.commit_or_rollback,
        msg_id=place.unique_id,
        transaction_id=place.unique_id,
    )
