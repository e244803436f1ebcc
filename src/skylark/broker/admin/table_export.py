"""Table export: whole tables for slaves to copy.

These are offsets (43), delay levels (45), the timer (60, 61) and request modes (402). Topics (21)
are in ``topic_handlers``, groups (201) in ``group_handlers``.

Large tables are encoded in chunks (:mod:`skylark.broker.admin.chunked_json`). The version in the
answer is that of the first chunk: a slave may get newer offsets with an older version; it then sees
a newer version in the next round, and copies again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from skylark.broker.admin.chunked_json import ObjectPieces
from skylark.broker.admin.handler_base import AdminHandlers, handles
from skylark.core.errors import BrokerError
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body

NO_TIMER: Final = "timerWheelEnable is false, or this broker is a slave"


class SyncHandlers(AdminHandlers):
    """The requests of slaves for whole tables."""

    @handles(RequestCode.GET_ALL_CONSUMER_OFFSET)
    async def get_offsets(self, _connection: Connection, request: Command) -> Command:
        """GET_ALL_CONSUMER_OFFSET (43)."""
        tables = self._broker.offsets.dump()
        body = b'{"dataVersion":%b,"groupTopicMap":%b,"offsetTable":%b,"pullOffsetTable":%b}' % (
            encode_body(tables.data_version),
            await self._encode(tables.group_topic_map or {}),
            await self._encode(tables.offset_table),
            # Java's slave does not know this table, and can only skip keys that are strings.
            await self._encode(tables.pull_offset_table or {}, keys_as_text=True),
        )
        return response_to(request, ResponseCode.SUCCESS, body=body)

    async def _encode(self, table: Mapping[str, Any], *, keys_as_text: bool = False) -> bytes:
        pieces = ObjectPieces(self._broker.clock)
        for key in list(table):
            value = table.get(key)
            if value is not None:
                if keys_as_text:
                    value = {str(queue_id): offset for queue_id, offset in value.items()}
                await pieces.put(key, value)
        return pieces.encode()

    @handles(RequestCode.GET_ALL_DELAY_OFFSET)
    def get_delay_offsets(self, _connection: Connection, request: Command) -> Command:
        """GET_ALL_DELAY_OFFSET (45)."""
        return success(request, body=self._broker.delay_offsets())

    @handles(RequestCode.GET_TIMER_CHECK_POINT)
    def get_timer_checkpoint(self, _connection: Connection, request: Command) -> Command:
        """GET_TIMER_CHECK_POINT (60)."""
        if self._broker.timer is None:
            raise BrokerError("The checkpoint is null", hint=NO_TIMER)
        body = self._broker.timer.checkpoint_body()
        return response_to(request, ResponseCode.SUCCESS, body=body)

    @handles(RequestCode.GET_TIMER_METRICS)
    def get_timer_counts(self, _connection: Connection, request: Command) -> Command:
        """GET_TIMER_METRICS (61)."""
        if self._broker.timer is None:
            raise BrokerError("The timer message store is null", hint=NO_TIMER)
        return success(request, body=self._broker.timer.counts_table())

    @handles(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    def get_modes(self, _connection: Connection, request: Command) -> Command:
        """GET_ALL_MESSAGE_REQUEST_MODE (402)."""
        return success(request, body=self._broker.request_modes.dump())
