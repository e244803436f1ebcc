"""Decisions about half messages (37): commit or roll back, once.

A :class:`~skylark.broker.send.put_pipeline.PutStep`. A commit drafts the final message
(:func:`~skylark.broker.transaction.half_message.final_draft`); a rollback stores no message of its
own, only its op message.

**Once.** A decision counts once, however often it is repeated and whichever copy it names
(:mod:`skylark.broker.transaction.decisions`): the same one again is a success that stores nothing,
the opposite one is refused. In Java every commit stores a message.

**Order.** A commit stores the final message, notes the decision in memory and collects it for the
next op message. What a crash leaves at each step:

* nothing of the final message: the half message is undecided, its producer will be asked;
* the final message without op message: recovery finds it, and the decision stands;
* both: so it was meant.

Of a run of commits a crash leaves the first final messages. Each names its half message, so
recovery finds that those are decided, and the others are not. One op message names all commits of a
run: recovery looks for final messages only behind the last op message.

**Acknowledged.** Java's producers send decisions one-way. A rollback that somebody waits for is
answered when its op message is stored, at once and not seconds later; with SYNC_FLUSH every answer
waits for the disk. An answer to a repeated decision promises no less than the first one did.

Counterpart of ``EndTransactionProcessor``.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from skylark.broker.api import EndTransactionRequest, EndTransactionResult, Peer, Pending
from skylark.broker.config import BrokerConfig
from skylark.broker.send.message_policy import TIMER_NAMES, timer_refusal
from skylark.broker.send.put_outcome import Durability
from skylark.broker.send.put_pipeline import STORE_FIRST, Done, Drafted
from skylark.broker.transaction.decisions import Fate
from skylark.broker.transaction.evicted import look_up
from skylark.broker.transaction.half_message import FinalDraft, Half, final_draft, read_half
from skylark.broker.transaction.record_lookup import read_record
from skylark.broker.transaction.transaction_service import ALREADY, TransactionService
from skylark.core.errors import BrokerError, broker_error
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.codes import ResponseCode
from skylark.wire.headers.txn import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    EndTransactionRequestHeader,
)

NOT_FOUND: Final = "Find prepared transaction message failed"
WRONG_GROUP: Final = "The producer group wrong"
WRONG_QUEUE_OFFSET: Final = "The transaction state table offset wrong"
_DECIDED: Final = EndTransactionResult()
_UNDECIDED: Final = EndTransactionResult(is_undecided=True)
#: A final message that has one of these waits before it is delivered.
_DELAYED: Final = re.compile(
    "(?:^|\x02)(?:{})\x01".format("|".join((*TIMER_NAMES, names.PROPERTY_DELAY))).encode()
)


def check_master(config: BrokerConfig) -> None:
    """Raise BrokerError at a slave."""
    if config.is_slave:
        raise BrokerError(
            "this broker is a slave",
            code=ResponseCode.SLAVE_NOT_AVAILABLE,
            hint="transactions end at the master",
        )


class EndTransactionStep:
    """The part of the pipeline that is about decisions."""

    def __init__(self, transactions: TransactionService, durability: Durability) -> None:
        self._transactions = transactions
        self._durability = durability
        self._store = transactions.store
        self._in_run: set[int] = set()  # first copies of what this run commits
        self._repeated: EndTransactionRequestHeader | None = None  # given STORE_FIRST already

    # --- from decision to draft -------------------------------------------------------------------

    def draft(self, _peer: Peer, request: EndTransactionRequest) -> Drafted:
        """The final message of a commit; everything else is done here. Raises BrokerError."""
        header, transactions = request.header, self._transactions
        config = transactions.config
        if config.is_slave:
            check_master(config)
        if header.commit_or_rollback == TRANSACTION_COMMIT:
            recent = transactions.recent.find(header)
            if recent is not None and transactions.is_open_alone(recent.offset):
                if recent.offset in self._in_run:
                    return STORE_FIRST
                draft = final_draft(
                    recent.draft,
                    recent.draft.properties[: recent.final_size],
                    recent.real_topic,
                    recent.real_queue_id,
                    recent.log_offset,
                )
                draft.half_offset = draft.first_offset = recent.offset
                self._in_run.add(recent.offset)
                return draft
        elif header.commit_or_rollback != TRANSACTION_ROLLBACK:
            return Done(_UNDECIDED)  # the producer will be asked
        return self._draft_from_log(header, wants_result=request.wants_result)

    def _draft_from_log(
        self, header: EndTransactionRequestHeader, *, wants_result: bool
    ) -> Drafted:
        """A decision about a half message that has to be read."""
        transactions = self._transactions
        if header is not self._repeated and self._needs_earlier(header):
            self._repeated = header
            return STORE_FIRST
        half = self._find(header)
        resolved = transactions.state.resolved
        fate = resolved.fate(half.offset, half.first_offset)
        if fate is None:
            fate, first_offset = look_up(self._store, resolved, half)
            half = msgspec.structs.replace(half, first_offset=first_offset)
        self._check(half, fate, header)
        if half.first_offset in self._in_run:
            return STORE_FIRST
        wanted = (
            Fate.COMMITTED if header.commit_or_rollback == TRANSACTION_COMMIT else Fate.ROLLED_BACK
        )
        if fate is Fate.DECIDED:
            fate = transactions.which(half, wanted)
        if fate in ALREADY:
            return Done(self._again(half, fate, wanted, wants_result=wants_result))
        transactions.make_room_for_ops()
        if wanted is Fate.ROLLED_BACK:
            transactions.roll_back(half, fate, now=wants_result)
            return Done(self._decided_until_now(wants_result))
        draft = half.final()
        draft.fate = fate
        return self._commit(draft)

    def _needs_earlier(self, header: EndTransactionRequestHeader) -> bool:
        """Whether what came before a decision in its run has to be in the log.

        The half message may be of that run. And a rollback is noted for the op message at once,
        which names decisions in the order of their arrival.
        """
        is_rollback = header.commit_or_rollback == TRANSACTION_ROLLBACK
        return is_rollback or header.commit_log_offset >= self._store.log.max_offset

    def _commit(self, draft: FinalDraft) -> FinalDraft:
        if _DELAYED.search(draft.properties):
            refused = self._transactions.divert(draft)
            if refused is not None:
                raise self._refusal(refused)
        self._transactions.fit_copy(draft)
        self._in_run.add(draft.first_offset)
        return draft

    def _find(self, header: EndTransactionRequestHeader) -> Half:
        """The half message that is meant.

        Java looks at its group and its offsets. But a power loss may take an unsynced message, and
        another one may get its offsets: a decision about the first must not count for that. Nor can
        Java tell a half message from any other of the group, and would store it twice.
        """
        log_offset = header.commit_log_offset
        record = read_record(self._store, log_offset)
        if record is None:
            raise BrokerError(NOT_FOUND, hint=f"nothing begins at log offset {log_offset}")
        half = read_half(record)
        if half is None:
            raise BrokerError(NOT_FOUND, hint=f"what is at {log_offset} is no half message")
        if header.transaction_id and half.unique_id != header.transaction_id:
            raise BrokerError(NOT_FOUND, hint=f"at {log_offset} is {half.unique_id} now")
        return half

    def _check(self, half: Half, fate: Fate, header: EndTransactionRequestHeader) -> None:
        """The checks in Java's order.

        A decision is too late if the producer of an open message is asked about it already. One
        about a decided message cannot be, nor a commit of one that was given up: its producer will
        not be asked any more. A rollback of such a one changes nothing, and would be forgotten.
        """
        commits = header.commit_or_rollback == TRANSACTION_COMMIT
        may_be_late = fate is Fate.OPEN or (fate is Fate.GIVEN_UP and not commits)
        if may_be_late and not header.from_transaction_check:
            transactions = self._transactions
            age_ms = transactions.now_ms() - half.record.born_timestamp
            limit_ms = half.immunity_ms(transactions.config.transaction_time_out)
            if half.has_immunity and age_ms > limit_ms:
                raise BrokerError(
                    f"the half message is {age_ms} ms old, its immunity was {limit_ms} ms",
                    code=ResponseCode.ILLEGAL_OPERATION,
                    hint="its producer will be asked, and only that answer counts",
                )
        if half.group != header.producer_group:
            raise BrokerError(WRONG_GROUP)
        if half.offset != header.tran_state_table_offset:
            raise BrokerError(WRONG_QUEUE_OFFSET)

    def _again(
        self, half: Half, fate: Fate, wanted: Fate, *, wants_result: bool
    ) -> EndTransactionResult | Pending[EndTransactionResult]:
        """A decision that was made before."""
        if fate is not wanted:
            raise BrokerError(
                ALREADY[fate], hint=f"message {half.unique_id} of {half.group}: nothing changed"
            )
        if fate is Fate.ROLLED_BACK and wants_result:
            self._transactions.write_ops_now()
        return self._decided_until_now(wants_result)

    def _decided_until_now(
        self, wants_result: bool
    ) -> EndTransactionResult | Pending[EndTransactionResult]:
        """A result that relies on all that the log holds."""
        result = PutResult(PutStatus.PUT_OK, self._store.log.max_offset)
        return self._result(result, wants_result)

    def _result(
        self, result: PutResult, wants_result: bool
    ) -> EndTransactionResult | Pending[EndTransactionResult]:
        # Also when the disk was too slow: the message is stored.
        return self._durability.when_durable(result, lambda _: _DECIDED, wait=wants_result)

    # --- from result to outcome -------------------------------------------------------------------

    def finish(
        self,
        request: EndTransactionRequest,
        draft: FinalDraft,
        result: PutResult,
        *,
        is_durable: bool,
    ) -> EndTransactionResult | Pending[EndTransactionResult] | Exception:
        self._transactions.committed(draft, result)
        if not result.size:
            return self._refusal(result.status)
        return _DECIDED if is_durable else self._result(result, request.wants_result)

    def after_put(self) -> None:
        """All commits of a put are done, or have failed: their op message is due."""
        if self._in_run:
            self._in_run.clear()
            self._transactions.ops_grew()

    def _refusal(self, status: PutStatus) -> BrokerError:
        """Why a final message was not stored, in the words that Java has for it here."""
        config = self._transactions.config
        if (refusal := timer_refusal(status, config)) is not None:
            return refusal
        code: int = status.code
        match status:
            case PutStatus.CREATE_MAPPED_FILE_FAILED:
                remark = "Create mapped file failed."
            case PutStatus.MESSAGE_ILLEGAL | PutStatus.PROPERTIES_SIZE_EXCEEDED:
                remark = (
                    "The message is illegal, maybe msg body or properties length not matched."
                    f" msg body length limit {config.store.max_message_size}B,"
                    " msg properties length limit 32KB."
                )
            case PutStatus.SERVICE_NOT_AVAILABLE:
                remark = "Service not available now."
            case PutStatus.OS_PAGE_CACHE_BUSY:
                code = ResponseCode.SYSTEM_ERROR
                remark = "OS page cache busy, please try another machine"
            case PutStatus.WHEEL_TIMER_NOT_ENABLE:
                enabled = "true" if config.timer_wheel_enable else "false"
                remark = f"accurate timer message is not enabled, timerWheelEnable is {enabled}"
            case PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH:
                remark = "in-sync replicas not enough"
            case _:
                remark = status.name
        return broker_error(code, remark, hint="the half message stays undecided")
