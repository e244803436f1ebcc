"""Transactions: the end of one (37), and a second chance for one that was given up (323).

Hot: an END_TRANSACTION comes for every transactional message. "I do not know" and what is neither
commit nor rollback get no answer, as in Java; the producer will be asked. The answer to a commit or
rollback leaves when it is as durable as that of a send. What counts is decided in
:mod:`skylark.broker.transaction.transaction_service`. Commits of half messages that are at hand
(:mod:`skylark.broker.transaction.recent_halves`) and came together are stored together.

Answers to ``EndTransactionProcessor`` and ``AdminBrokerProcessor.resumeCheckHalfMessage``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from skylark.broker.config import BrokerConfig
from skylark.broker.live_settings import LiveSettings
from skylark.broker.send.message_policy import timer_refusal
from skylark.broker.send.put_replies import PutAnswers
from skylark.broker.send.request_runs import Plain, PutRuns
from skylark.broker.transaction.recent_halves import RecentHalf
from skylark.broker.transaction.transaction_service import (
    RESUME_FAILED,
    NotStoredError,
    TransactionService,
)
from skylark.core.errors import BrokerError, RemoteProtocolError, broker_error
from skylark.core.hashing import decode_offset_id
from skylark.net.connection import Connection
from skylark.net.dispatch import Answer, Dispatcher, error_response
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fields import decode_ext
from skylark.wire.headers.txn import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)

log = logging.getLogger(__name__)


def check_master(config: BrokerConfig) -> None:
    """Raise BrokerError at a slave."""
    if config.is_slave:
        raise BrokerError(
            "this broker is a slave",
            code=ResponseCode.SLAVE_NOT_AVAILABLE,
            hint="transactions end at the master",
        )


class TransactionHandlers:
    """The requests about half messages."""

    def __init__(
        self,
        live: LiveSettings,
        transactions: TransactionService,
        answers: PutAnswers,
        put_runs: PutRuns,
    ) -> None:
        self._put_runs = put_runs
        self._live = live
        self._transactions = transactions
        self._answers = answers

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        self._put_runs.add(RequestCode.END_TRANSACTION, self)
        dispatcher.add_hot(RequestCode.END_TRANSACTION, self.alone, run=self._put_runs.run)
        dispatcher.add_hot(RequestCode.RESUME_CHECK_HALF_MESSAGE, self.resume)

    def alone(self, connection: Connection, request: Command) -> Answer:
        """END_TRANSACTION (37)."""
        header = decode_ext(EndTransactionRequestHeader, request.ext)
        check_master(self._live.current)
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            log.debug(
                "%s of %s stays undecided: %s",
                header.msg_id,
                header.producer_group,
                request.remark,
            )
            return None
        try:
            result = self._transactions.end(header, acknowledged=not request.is_oneway)
        except NotStoredError as error:
            raise self._refusal(error.status) from error
        return self._answer(connection, request, result)

    # --- the part of runs -------------------------------------------------------------------------

    def follow(self) -> None:
        """Settings are looked at for each request."""

    def plain(self, _connection: Connection, request: Command) -> Plain[RecentHalf] | None:
        """The final message of a commit that need not be read from the log."""
        half = self._recent_half(request)
        return None if half is None else (half.final, request, half)

    def stored(
        self,
        connection: Connection,
        plain: Sequence[Plain[RecentHalf]],
        results: Sequence[PutResult],
        _as_frames: bool,
    ) -> list[Answer]:
        self._transactions.recent_committed([half for _, _, half in plain], results)
        return [
            self._answer_in_run(connection, request, result)
            for (_, request, _), result in zip(plain, results, strict=True)
        ]

    # --- one by one -------------------------------------------------------------------------------

    def _recent_half(self, request: Command) -> RecentHalf | None:
        if request.ext is None or self._live.current.is_slave:
            return None
        return self._transactions.recent_half(request.ext)

    def _answer(self, connection: Connection, request: Command, result: PutResult) -> Answer:
        if request.is_oneway:
            return None
        return self._answers.when_durable(
            connection,
            request,
            result,
            "",
            # Also when the disk was too slow: the message is stored.
            lambda _status: response_to(request, ResponseCode.SUCCESS),
        )

    def _answer_in_run(self, connection: Connection, request: Command, result: PutResult) -> Answer:
        """What goes wrong with one is no answer to the others, which may wait for the disk."""
        try:
            if result.status.stored:
                return self._answer(connection, request, result)
            return error_response(request, self._refusal(result.status))
        except Exception as error:  # noqa: BLE001 - becomes code 1
            return error_response(request, error)

    def resume(self, _connection: Connection, request: Command) -> Command:
        """RESUME_CHECK_HALF_MESSAGE (323)."""
        header = decode_ext(ResumeCheckHalfMessageRequestHeader, request.ext)
        check_master(self._live.current)
        try:
            log_offset = decode_offset_id(header.msg_id or "").log_offset
        except RemoteProtocolError as error:
            raise BrokerError(RESUME_FAILED, hint=str(error)) from error
        self._transactions.resume(log_offset)
        return response_to(request, ResponseCode.SUCCESS)

    def _refusal(self, status: PutStatus) -> BrokerError:
        """Why a final message was not stored, in the words that Java has for it here."""
        config = self._live.current
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
