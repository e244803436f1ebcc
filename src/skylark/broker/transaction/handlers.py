"""Remoting requests about transactions: 37, 9002, 9003 and 323.

A decision (37) that is neither commit nor rollback gets no response, as in Java; the broker will
check back. :mod:`skylark.broker.transaction.end_transaction` carries out the others,
:mod:`skylark.broker.transaction.half_batches` describes 9002 and 9003.

Counterpart of ``EndTransactionProcessor`` and ``AdminBrokerProcessor.resumeCheckHalfMessage``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from skylark.broker.api import (
    EndTransactionRequest,
    EndTransactionResult,
    Pending,
    PutService,
    SendResult,
)
from skylark.broker.send.send_checks import SendChecks
from skylark.broker.transaction.commit_runs import CommitRunRequest, CommitRuns
from skylark.broker.transaction.end_transaction import check_master
from skylark.broker.transaction.half_batches import SendHalvesRequest
from skylark.broker.transaction.transaction_service import RESUME_FAILED, TransactionService
from skylark.core.errors import BrokerError, RemoteProtocolError
from skylark.core.hashing import decode_offset_id
from skylark.net.connection import Connection
from skylark.net.dispatch import LATER, Answer, Dispatcher, error_response
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.end_halves_body import decode_places, encode_codes
from skylark.wire.fields import decode_ext
from skylark.wire.headers.send import SendMessageRequestHeaderV2
from skylark.wire.headers.txn import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    EndHalvesRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)

logger = logging.getLogger(__name__)


class EndTransactionCodec:
    """Reads END_TRANSACTION (37) and writes its response."""

    def read(self, command: Command) -> EndTransactionRequest:
        header = command.header(EndTransactionRequestHeader)
        return EndTransactionRequest(header, not command.is_oneway)

    def write(self, command: Command, outcome: EndTransactionResult | Exception) -> Command | None:
        if isinstance(outcome, EndTransactionResult):
            if outcome.is_undecided:
                logger.debug("a producer answered a check-back with unknown: %s", command.remark)
                return None
            return None if command.is_oneway else response_to(command, ResponseCode.SUCCESS)
        return error_response(command, outcome)


class SendHalvesCodec:
    """Reads SEND_HALVES (9002) and writes its response."""

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


class TransactionHandlers:
    """END_HALVES (9003), RESUME_CHECK_HALF_MESSAGE (323)."""

    def __init__(self, puts: PutService, transactions: TransactionService) -> None:
        self._puts = puts
        self._transactions = transactions
        self._runs = CommitRuns(transactions)

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        dispatcher.add_hot(RequestCode.END_HALVES, self.end)
        dispatcher.add_hot(RequestCode.RESUME_CHECK_HALF_MESSAGE, self.resume)

    def end(self, connection: Connection, request: Command) -> Answer:
        """END_HALVES (9003): many decisions in one request."""
        check_master(self._transactions.config)
        header = decode_ext(EndHalvesRequestHeader, request.ext)
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise BrokerError(f"{header.commit_or_rollback} is neither commit nor rollback")
        places = decode_places(request.body or b"")
        decisions = self._runs.requests(header, places)
        outcomes = self._puts.run(connection, decisions, stops_at=_breaks_order)
        pending = [outcome for outcome in outcomes if isinstance(outcome, Pending)]
        answer = response_to(
            request, ResponseCode.SUCCESS, body=encode_codes(_codes_of(decisions, outcomes))
        )
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

    def resume(self, _connection: Connection, request: Command) -> Command:
        """RESUME_CHECK_HALF_MESSAGE (323): check a half message again that was given up."""
        header = decode_ext(ResumeCheckHalfMessageRequestHeader, request.ext)
        check_master(self._transactions.config)
        try:
            log_offset = decode_offset_id(header.msg_id or "").log_offset
        except RemoteProtocolError as error:
            raise BrokerError(RESUME_FAILED, hint=str(error)) from error
        self._transactions.resume(log_offset)
        return response_to(request, ResponseCode.SUCCESS)


def _breaks_order(error: BaseException) -> bool:
    """Whether the decisions after a refused one are skipped: yes, unless it came too late."""
    return not (isinstance(error, BrokerError) and error.code == ResponseCode.ILLEGAL_OPERATION)


def _codes_of(
    requests: Sequence[CommitRunRequest | EndTransactionRequest], outcomes: Sequence[Any]
) -> list[int]:
    """The response codes up to the first decision that failed."""
    codes: list[int] = []
    for request, outcome in zip(requests, outcomes, strict=True):
        if not isinstance(outcome, BaseException):
            count = request.count if isinstance(request, CommitRunRequest) else 1
            codes += [ResponseCode.SUCCESS] * count
            continue
        if not isinstance(outcome, BrokerError):
            raise outcome
        codes.append(outcome.code)
        if _breaks_order(outcome):
            break
    return codes
