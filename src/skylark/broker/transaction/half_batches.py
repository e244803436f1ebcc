"""SEND_HALVES and END_HALVES: many half messages or decisions in one request, between two Skylarks.

The exactly-once sink sends every row as a half message and decides about each. One request per row
costs many times as much as the rows; these requests carry a few hundred rows.

**SEND_HALVES** is a batch send (320) whose messages are stored as half messages: in one append, so
all or none, with consecutive offsets of the half queue. The properties in the header apply to all
messages: PGROUP and the immunity time. Each message needs a unique id and must not have a delay or
another property that the broker acts upon; the topic must not have attributes. Otherwise the broker
refuses the request as illegal (13), stores nothing, and the client sends the messages with 310.

**END_HALVES** is END_TRANSACTION for each of them, in order
(:mod:`skylark.broker.transaction.end_transaction`); commits of neighbours in the log are stored
together (:mod:`skylark.broker.transaction.commit_runs`). The response has their codes, up to the
first failure, because later decisions would break the order. A decision that is too late (604) is
not a failure: only the answer to the check-back counts then.

A crash during SEND_HALVES leaves any number of half messages, from the first on, as if they had
been sent one by one; the client has no response, and the broker will check back. A crash during
END_HALVES leaves any number of decisions; all may be repeated.

A broker without these requests answers 3, and the client continues message by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from skylark.broker.api import Peer, Pending, SendResult
from skylark.broker.send.message_policy import DECISIONS, EDITS, PropertyScanner, scan_properties
from skylark.broker.send.put_outcome import Durability, waits_for_durability
from skylark.broker.send.send_checks import SendChecks, SendDraft
from skylark.broker.send.send_step import batch_ids
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.transaction.half_message import HALF_QUEUE_ID, half_suffix
from skylark.broker.transaction.transaction_service import TransactionService
from skylark.core.errors import BrokerError
from skylark.core.names import HALF_TOPIC, is_retry_topic
from skylark.store.index_keys import alike_ids
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.batch import Batch, split_batch
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.headers.send import SendHeader
from skylark.wire.layout import FLAG_TRANSACTION_MASK

_GROUP_ITEM: Final = f"{names.PROPERTY_PGROUP}\x01"
_ONE_BY_ONE: Final = "send this half message alone with SEND_MESSAGE_V2 (310)"


class SendHalvesRequest(msgspec.Struct, gc=False):
    """SEND_HALVES (9002)."""

    header: SendHeader
    body: bytes | None


class SendHalvesStep:
    """The step of the put pipeline that handles batches of half messages."""

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
        """Check the batch and draft its half messages; raises BrokerError."""
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
        """Add the properties of half messages to each message; raises BrokerError."""
        if self._checks.config.reject_transaction_message:
            raise self._checks.transactions_forbidden()
        common = header.properties or ""
        if common and common[-1] != "\x02":
            common += "\x02"
        if (
            topic.attributes
            or is_retry_topic(header.topic)
            or len(body) > self._store.config.max_message_size
            or scan_properties(common)[1] & (DECISIONS | EDITS)
            or names.find_property(common, names.PROPERTY_PGROUP) is None
        ):
            raise self._illegal("send these half messages one by one with SEND_MESSAGE_V2 (310)")
        batch = split_batch(body, size_max=len(body))
        middle = f"{common}{names.PROPERTY_TRAN_MSG}\x01true\x02{self._checks.added_text}".encode()
        completed = [
            raw
            + (b"" if raw.endswith(b"\x02") else b"\x02")
            + middle
            + half_suffix(unique_id, draft.topic, draft.queue_id)
            for raw, unique_id in zip(
                batch.properties, self._unique_ids(batch.properties), strict=True
            )
        ]
        if sum(map(len, batch.bodies)) + sum(map(len, completed)) > (
            self._store.config.record_size_max
        ):
            raise self._illegal("these half messages are too large for one request")
        return batch.with_properties(completed)

    def _unique_ids(self, property_strings: Sequence[bytes]) -> list[bytes]:
        """The unique id of each message; raises BrokerError if one has none, or a special name."""
        alike = alike_ids(property_strings) if property_strings else None
        if alike is None:
            return [self._unique_id(raw) for raw in property_strings]
        self._unique_id(property_strings[0])  # the others have the same names
        return alike.ids()

    def _unique_id(self, raw: bytes) -> bytes:
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise self._illegal(_ONE_BY_ONE) from error
        unique_id, actions = self._scan(text)
        if unique_id is None or actions or _GROUP_ITEM in text:
            raise self._illegal(_ONE_BY_ONE)
        return unique_id.encode()

    def _illegal(self, hint: str) -> BrokerError:
        return self._durability.refusal(PutStatus.MESSAGE_ILLEGAL, hint)

    def finish(
        self, request: SendHalvesRequest, draft: SendDraft, result: PutResult, *, is_durable: bool
    ) -> SendResult | Pending[SendResult] | Exception:
        del is_durable  # when_durable checks it
        if not result.size:
            return self._durability.refusal(result.status)
        assert draft.batch is not None
        self._transactions.count_halves(request.header.topic, len(draft.batch))
        self._stats.put(HALF_TOPIC, result.message_count, result.size, is_system=True)
        ids = batch_ids(self._store, result, draft.batch)
        place = result.log_offset, draft.requested_queue_id, result.queue_offset

        def outcome(status: PutStatus) -> SendResult:
            return SendResult(status.code, *place, "", ids)

        wait = waits_for_durability(draft.properties)
        return self._durability.when_durable(result, outcome, wait=wait)
