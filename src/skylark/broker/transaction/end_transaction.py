"""END_TRANSACTION (37): commits or rolls back half messages, each once.

A :class:`~skylark.broker.send.put_pipeline.PutStep`. A commit drafts the final message
(:func:`~skylark.broker.transaction.half_message.final_draft`); a rollback stores only its op
message.

**Once.** A decision is applied once, also if it is repeated or names another copy
(:mod:`skylark.broker.transaction.decisions`): a repeated decision succeeds and stores nothing, the
opposite decision is refused. In Java every commit stores a message.

**Order.** A commit stores the final message, records the decision in memory and collects it for the
next op message. A crash leaves one of these:

* no final message: the half message is undecided, and the broker will check back;
* the final message without op message: recovery finds it, and the decision stands;
* both: the decision is complete.

Of a run of commits a crash leaves the first final messages. Each names its half message, so
recovery knows which ones are decided. One op message names all commits of a run: recovery searches
for final messages only after the last op message.

**Acknowledgement.** Java's producers send decisions one-way. The response to a rollback is sent
when its op message is stored, which then happens at once; with SYNC_FLUSH every response waits for
the disk, also that to a repeated decision.

Counterpart of ``EndTransactionProcessor``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skylark.broker.api import EndTransactionRequest, EndTransactionResult, Peer, Pending
from skylark.broker.config import BrokerConfig
from skylark.broker.send.message_policy import timer_refusal
from skylark.broker.send.put_outcome import Durability
from skylark.broker.send.put_pipeline import STORE_FIRST, Done, Drafted
from skylark.broker.transaction.decisions import HalfOutcome
from skylark.broker.transaction.evicted import look_up
from skylark.broker.transaction.half_message import (
    FinalDraft,
    Half,
    final_draft,
    read_half,
    read_record,
)
from skylark.broker.transaction.transaction_service import (
    ALREADY,
    TransactionService,
)
from skylark.core.errors import BrokerError, broker_error
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.codes import ResponseCode
from skylark.wire.headers.txn import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    EndTransactionRequestHeader,
)

NOT_FOUND: Final = "Find prepared transaction message failed"
WRONG_GROUP: Final = "The producer group wrong"
WRONG_QUEUE_OFFSET: Final = "The transaction state table offset wrong"
DECIDED: Final = EndTransactionResult()
_UNDECIDED: Final = EndTransactionResult(is_undecided=True)


def check_master(config: BrokerConfig) -> None:
    """Raise BrokerError on a slave."""
    if config.is_slave:
        raise BrokerError(
            "this broker is a slave",
            code=ResponseCode.SLAVE_NOT_AVAILABLE,
            hint="send the request to the master",
        )


def check_decision(
    transactions: TransactionService,
    half: Half,
    outcome: HalfOutcome,
    header: EndTransactionRequestHeader,
) -> None:
    """Validate a decision, in Java's order of checks; raises BrokerError.

    A decision is too late if check-backs of an undecided message have begun: only the answer to
    a check-back counts then. A decision about a decided message is never too late, nor is a
    commit of a message that was given up, because there will be no more check-backs. A rollback
    of a message that was given up changes nothing.
    """
    commits = header.commit_or_rollback == TRANSACTION_COMMIT
    may_be_late = outcome is HalfOutcome.OPEN or (outcome is HalfOutcome.GIVEN_UP and not commits)
    if may_be_late and not header.from_transaction_check:
        age_ms = transactions.now_ms() - half.record.born_timestamp
        limit_ms = half.immunity_ms(transactions.config.transaction_time_out)
        if half.has_immunity and age_ms > limit_ms:
            raise BrokerError(
                f"the half message is {age_ms} ms old, its immunity was {limit_ms} ms",
                code=ResponseCode.ILLEGAL_OPERATION,
                hint="only the answer to the check-back counts now",
            )
    if half.group != header.producer_group:
        raise BrokerError(WRONG_GROUP)
    if half.offset != header.tran_state_table_offset:
        raise BrokerError(WRONG_QUEUE_OFFSET)


def put_refusal(config: BrokerConfig, status: PutStatus) -> BrokerError:
    """The error for a final message that was not stored, with Java's text."""
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
    return broker_error(code, remark, hint="the half message is still undecided")


class EndTransactionStep:
    """The step of the put pipeline that handles decisions."""

    def __init__(self, transactions: TransactionService, durability: Durability) -> None:
        self._transactions = transactions
        self._durability = durability
        self._store = transactions.store
        self._in_run: set[int] = set()  # first offsets of the half messages that this run commits
        self._deferred: EndTransactionRequestHeader | None = None  # got STORE_FIRST once

    # --- from decision to draft -------------------------------------------------------------------

    def draft(self, _peer: Peer, request: EndTransactionRequest) -> Drafted:
        """Draft the final message of a commit, or complete the request; raises BrokerError."""
        header, transactions = request.header, self._transactions
        config = transactions.config
        if config.is_slave:
            check_master(config)
        if header.commit_or_rollback == TRANSACTION_COMMIT:
            recent = transactions.recent.find(header)
            if recent is not None and transactions.is_sole_undecided(recent.offset):
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
            return Done(_UNDECIDED)  # the broker will check back
        return self._draft_from_log(header, wants_result=request.wants_result)

    def _draft_from_log(
        self, header: EndTransactionRequestHeader, *, wants_result: bool
    ) -> Drafted:
        """:meth:`draft` for a half message that is read from the log."""
        transactions = self._transactions
        if header is not self._deferred and self._needs_stored_run(header):
            self._deferred = header
            return STORE_FIRST
        half = self._find_half(header)
        decisions = transactions.state.decisions
        outcome = decisions.outcome(half.offset, half.first_offset)
        if outcome is None:
            outcome, first_offset = look_up(self._store, decisions, half)
            half = msgspec.structs.replace(half, first_offset=first_offset)
        check_decision(transactions, half, outcome, header)
        if half.first_offset in self._in_run:
            return STORE_FIRST
        wanted = (
            HalfOutcome.COMMITTED
            if header.commit_or_rollback == TRANSACTION_COMMIT
            else HalfOutcome.ROLLED_BACK
        )
        if outcome is HalfOutcome.DECIDED:
            outcome = transactions.find_outcome(half, wanted)
        if outcome in ALREADY:
            return Done(self._repeat(half, outcome, wanted, wants_result=wants_result))
        transactions.make_room_for_ops()
        if wanted is HalfOutcome.ROLLED_BACK:
            transactions.roll_back(half, outcome, now=wants_result)
            return Done(self._result_of_whole_log(wants_result))
        draft = half.final_message()
        draft.outcome = outcome
        refused = transactions.prepare_final(draft)
        if refused is not None:
            raise put_refusal(transactions.config, refused)
        self._in_run.add(draft.first_offset)
        return draft

    def _needs_stored_run(self, header: EndTransactionRequestHeader) -> bool:
        """Whether the earlier requests of the run must be stored before this decision.

        The half message may be one of them. And a rollback is added to the op message at once,
        which names decisions in the order of their arrival.
        """
        is_rollback = header.commit_or_rollback == TRANSACTION_ROLLBACK
        return is_rollback or header.commit_log_offset >= self._store.log.max_offset

    def _find_half(self, header: EndTransactionRequestHeader) -> Half:
        """The half message that a decision names; raises BrokerError.

        Java compares group and offsets only. But after a power loss another message may have the
        offsets of an unsynced one: a decision about the lost message must not apply to it. Java
        also accepts messages of the group that are not half messages, and stores them twice.
        """
        log_offset = header.commit_log_offset
        record = read_record(self._store, log_offset)
        if record is None:
            raise BrokerError(NOT_FOUND, hint=f"no record begins at log offset {log_offset}")
        half = read_half(record)
        if half is None:
            raise BrokerError(NOT_FOUND, hint=f"the record at {log_offset} is not a half message")
        if header.transaction_id and half.unique_id != header.transaction_id:
            raise BrokerError(
                NOT_FOUND, hint=f"the half message at {log_offset} has the id {half.unique_id}"
            )
        return half

    def _repeat(
        self, half: Half, outcome: HalfOutcome, wanted: HalfOutcome, *, wants_result: bool
    ) -> EndTransactionResult | Pending[EndTransactionResult]:
        """The result of a decision that was made before; raises BrokerError for the opposite."""
        if outcome is not wanted:
            raise BrokerError(
                ALREADY[outcome], hint=f"message {half.unique_id} of {half.group}: nothing changed"
            )
        if outcome is HalfOutcome.ROLLED_BACK and wants_result:
            self._transactions.write_ops_now()
        return self._result_of_whole_log(wants_result)

    def _result_of_whole_log(
        self, wants_result: bool
    ) -> EndTransactionResult | Pending[EndTransactionResult]:
        """A result that is given when the log is durable up to its end."""
        result = PutResult(PutStatus.PUT_OK, self._store.log.max_offset)
        return self._result(result, wants_result)

    def _result(
        self, result: PutResult, wants_result: bool
    ) -> EndTransactionResult | Pending[EndTransactionResult]:
        # Success also after a flush timeout: the message is stored.
        return self._durability.when_durable(result, lambda _: DECIDED, wait=wants_result)

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
            return put_refusal(self._transactions.config, result.status)
        return DECIDED if is_durable else self._result(result, request.wants_result)

    def after_put(self) -> None:
        """Write the op message of the commits of one put now or soon."""
        if self._in_run:
            self._in_run.clear()
            self._transactions.write_ops_soon()
