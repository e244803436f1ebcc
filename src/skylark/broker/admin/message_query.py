"""Messages by key (12) and by their place in the log (33), as records of the log.

A query returns what the index has for the hash of a key; clients compare the keys themselves. With
code 22, nothing found, both numbers of the answer are 0. Answers to ``QueryMessageProcessor``.
"""

from __future__ import annotations

from typing import Final

from skylark.core.errors import BrokerError
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.store.message_store import MessageStore
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.headers.pull import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)

NOT_FOUND: Final = "can not find message, maybe time range not correct"
_TAG_INDEX: Final = "T"


class QueryHandlers:
    """The requests that look messages up."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        dispatcher.add_hot(RequestCode.QUERY_MESSAGE, self.query)
        dispatcher.add_hot(RequestCode.VIEW_MESSAGE_BY_ID, self.view)

    def query(self, _connection: Connection, request: Command) -> Command:
        """QUERY_MESSAGE (12)."""
        header = decode_ext(QueryMessageRequestHeader, request.ext)
        result = self._store.reader.query(
            header.topic,
            header.key,
            # More than one message has a unique key only after a retry.
            self._store.config.default_query_max_num
            if header.unique_key_query
            else max(0, header.max_num),
            header.begin_timestamp,
            header.end_timestamp,
            index_type=_TAG_INDEX if header.index_type == _TAG_INDEX else None,
        )
        body = b"".join(result.views)
        result.release()
        code, remark = ResponseCode.SUCCESS, None
        answer = QueryMessageResponseHeader(
            index_last_update_timestamp=result.index_last_timestamp,
            index_last_update_phyoffset=result.index_last_log_offset,
        )
        if not body:
            code, remark = ResponseCode.QUERY_NOT_FOUND, NOT_FOUND
            answer = QueryMessageResponseHeader(
                index_last_update_timestamp=0, index_last_update_phyoffset=0
            )
        return response_to(request, code, remark, ext=encode_ext(answer), body=body or None)

    def view(self, _connection: Connection, request: Command) -> Command:
        """VIEW_MESSAGE_BY_ID (33)."""
        header = decode_ext(ViewMessageRequestHeader, request.ext)
        lease = self._store.reader.record(header.offset)
        if lease is None:
            raise BrokerError(f"can not find message by the offset, {header.offset}")
        with lease:
            body = bytes(lease.view)
        return response_to(request, ResponseCode.SUCCESS, body=body)
