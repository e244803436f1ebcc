"""Headers of transactional messages.

The producer ends a half message with END_TRANSACTION (one-way). Half messages whose fate stays
open are asked about by CHECK_TRANSACTION_STATE, one-way from broker to producer, which the
producer answers with another END_TRANSACTION. ``tranStateTableOffset`` is the queue offset of the
half message, ``commitLogOffset`` its position in the log. Counterpart of
Java's ``EndTransactionRequestHeader`` and its neighbours.
"""

from __future__ import annotations

from skylark.wire.fields import Header, Int32, Int64

#: Values of ``commitOrRollback``: the transaction bits of the message's sysFlag.
TRANSACTION_UNKNOWN = 0
TRANSACTION_COMMIT = 8
TRANSACTION_ROLLBACK = 12


class EndTransactionRequestHeader(Header, kw_only=True, rename="camel"):
    """END_TRANSACTION: commit, roll back or "I do not know"."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


class EndHalvesRequestHeader(Header, kw_only=True, rename="camel"):
    """END_HALVES, Skylark only: one decision about many half messages, which the body names."""

    topic: str
    producer_group: str
    commit_or_rollback: Int32


class CheckTransactionStateRequestHeader(Header, kw_only=True, rename="camel"):
    """CHECK_TRANSACTION_STATE: the body is the half message itself."""

    topic: str | None = None
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(Header, kw_only=True, rename="camel"):
    """RESUME_CHECK_HALF_MESSAGE: check a half message again that was given up."""

    topic: str | None = None
    msg_id: str | None = None
