"""Remoting requests about transactions: the end of one (37), and a second chance (323).

"I do not know" and what is neither commit nor rollback get no answer, as in Java; the producer will
be asked. What counts is decided in :mod:`skylark.broker.transaction.end_transaction`.

Counterpart of ``EndTransactionProcessor`` and ``AdminBrokerProcessor.resumeCheckHalfMessage``.
"""

from __future__ import annotations

import logging

from skylark.broker.api import EndTransactionRequest, EndTransactionResult
from skylark.broker.transaction.end_transaction import check_master
from skylark.broker.transaction.transaction_service import RESUME_FAILED, TransactionService
from skylark.core.errors import BrokerError, RemoteProtocolError
from skylark.core.hashing import decode_offset_id
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher, error_response
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fields import decode_ext
from skylark.wire.headers.txn import (
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)

log = logging.getLogger(__name__)


class EndTransactionCodec:
    """END_TRANSACTION (37)."""

    def read(self, command: Command) -> EndTransactionRequest:
        header = command.header(EndTransactionRequestHeader)
        return EndTransactionRequest(header, not command.is_oneway)

    def write(self, command: Command, outcome: EndTransactionResult | Exception) -> Command | None:
        if isinstance(outcome, EndTransactionResult):
            if outcome.is_undecided:
                log.debug("a producer did not decide: %s", command.remark)
                return None
            return None if command.is_oneway else response_to(command, ResponseCode.SUCCESS)
        return error_response(command, outcome)


class ResumeHandlers:
    """The request that brings back a half message that was given up."""

    def __init__(self, transactions: TransactionService) -> None:
        self._transactions = transactions

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        dispatcher.add_hot(RequestCode.RESUME_CHECK_HALF_MESSAGE, self.resume)

    def resume(self, _connection: Connection, request: Command) -> Command:
        """RESUME_CHECK_HALF_MESSAGE (323)."""
        header = decode_ext(ResumeCheckHalfMessageRequestHeader, request.ext)
        check_master(self._transactions.config)
        try:
            log_offset = decode_offset_id(header.msg_id or "").log_offset
        except RemoteProtocolError as error:
            raise BrokerError(RESUME_FAILED, hint=str(error)) from error
        self._transactions.resume(log_offset)
        return response_to(request, ResponseCode.SUCCESS)
