"""Memory of exactly-once sinks: the last batch of each sink, kept where retention does not reach.

The records of the transaction log expire (``fileReservedTime``); a query or a ``txnId`` may come
back later. So four numbers of each sink are kept as committed offsets of a group named after the
sink, on the broker of the log. Brokers copy committed offsets to their slaves and keep them until
the group or the topic is deleted:

=========  ==========  ===========================================================================
queue id   written     content
=========  ==========  ===========================================================================
0          after X     the last batch that is done, plus 1
1          before D    the last batch that a driver has begun to decide, plus 1
2          before 1    the end of the log queue when that driver found no decision (``seen``)
3          before 0    the fingerprint of the rows, of batch writes with a ``txnId``
=========  ==========  ===========================================================================

The log stays the truth. The memory is used if the log has neither a decision about a batch nor one
about its predecessor (:func:`skylark.spark.exactly_once.commit_protocol.admit`).

**After a crash.** A driver that dies between two of these writes leaves a memory that is older than
the log; the next driver or the resolver raises it. Brokers write offsets to disk every few seconds,
so a broker that is killed may forget the last ones: the resolver compares all sinks with the log
when it starts and every hour
(:meth:`~skylark.spark.exactly_once.txn_log.TxnLog.reaffirm`), long before the log expires. Two
drivers may write at the same time, and the older one may win. Then the memory is too low, which
refuses a batch at worst; it never lets one be written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from skylark.admin.topic_queues import commit_offset, committed_offset
from skylark.client.core.broker_calls import make_request
from skylark.core.errors import SubscriptionGroupNotExistError
from skylark.core.names import SYSTEM_GROUP_PREFIX
from skylark.spark.exactly_once.txn_log_records import (
    Decision,
    Done,
    SinkMemory,
    is_sink_id,
)
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import SubscriptionGroupConfig
from skylark.wire.bodies.slave_sync_body import SubscriptionGroupWrapper
from skylark.wire.codes import RequestCode
from skylark.wire.headers.admin import DeleteSubscriptionGroupRequestHeader

if TYPE_CHECKING:
    from skylark.spark.sink.sink_client import SinkClient

#: Tools do not list groups with this prefix.
GROUP_PREFIX: Final = f"{SYSTEM_GROUP_PREFIX}SPARK_TXN-"
#: Sink ids have no bar, and names of groups no dot.
_DOT: Final = "|"
_DONE, _DECIDING, _SEEN, _DATA = range(4)
#: No sink id: its memory says that the log of earlier versions was read.
UPGRADE_MARK: Final = "%upgraded"


def memory_group(sink: str) -> str:
    """The group that keeps the memory of a sink."""
    return f"{GROUP_PREFIX}{sink.replace('.', _DOT)}"


def sink_of_group(group: str) -> str | None:
    """The sink whose memory a group keeps; None for other groups."""
    if not group.startswith(GROUP_PREFIX):
        return None
    sink = group.removeprefix(GROUP_PREFIX).replace(_DOT, ".")
    return sink if is_sink_id(sink) else None


class SinkMemoryTable:
    """Reads and raises the memories of sinks; raises SkylarkError, outages included."""

    def __init__(self, client: SinkClient) -> None:
        self._client = client

    async def read(self, queue: MessageQueue, sink: str) -> SinkMemory:
        """The memory of a sink; ``queue`` is any queue of the log."""
        address, group = await self._client.master(queue), memory_group(sink)
        done, deciding, seen, data = await asyncio.gather(
            *(
                committed_offset(self._client.session, address, group, _cell(queue, number))
                for number in (_DONE, _DECIDING, _SEEN, _DATA)
            )
        )
        return memory_of({_DONE: done, _DECIDING: deciding, _SEEN: seen, _DATA: data})

    async def raise_to(self, queue: MessageQueue, sink: str, memory: SinkMemory) -> None:
        """Write what ``memory`` knows and the stored one does not."""
        await self._write(queue, sink, cells_to_write(await self.read(queue, sink), memory))

    async def settle(self, queue: MessageQueue, sink: str, done: int) -> None:
        """Let ``done`` be the last batch, whatever is stored."""
        await self._write(queue, sink, [(_DECIDING, done + 1), (_DONE, done + 1)])

    async def forget(self, queue: MessageQueue, sink: str) -> None:
        """Delete the memory of a sink."""
        header = DeleteSubscriptionGroupRequestHeader(
            group_name=memory_group(sink), clean_offset=True
        )
        address = await self._client.master(queue)
        request = make_request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        await self._client.session.call(address, request)

    async def sinks(self, queue: MessageQueue) -> list[str]:
        """All sinks with a memory, also one whose offsets a killed broker has lost."""
        address = await self._client.master(queue)
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        table = await self._client.session.ask(SubscriptionGroupWrapper, address, code)
        found = map(sink_of_group, table.subscription_group_table)
        return sorted(sink for sink in found if sink is not None)

    async def _write(self, queue: MessageQueue, sink: str, cells: list[tuple[int, int]]) -> None:
        session, group = self._client.session, memory_group(sink)
        address = await self._client.master(queue)
        for number, value in cells:
            cell = _cell(queue, number)
            try:
                await commit_offset(session, address, group, cell, value)
            except SubscriptionGroupNotExistError:
                config = SubscriptionGroupConfig(group_name=group, consume_enable=False)
                code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
                await session.call(address, make_request(code, body=config))
                await commit_offset(session, address, group, cell, value)


def memory_of(cells: Mapping[int, int | None]) -> SinkMemory:
    """The memory with these committed offsets, by queue id."""
    done, deciding, seen = cells.get(_DONE), cells.get(_DECIDING), cells.get(_SEEN)
    return SinkMemory(
        done=-1 if done is None else done - 1,
        deciding=-1 if deciding is None else deciding - 1,
        seen=-1 if seen is None else seen,
        data=cells.get(_DATA),
    )


def cells_to_write(stored: SinkMemory, memory: SinkMemory) -> list[tuple[int, int]]:
    """Queue ids and offsets that raise the stored memory, in the order of the module."""
    cells: list[tuple[int, int]] = []
    if memory.deciding > stored.done and memory.deciding >= stored.deciding:
        cells += [(_SEEN, memory.seen), (_DECIDING, memory.deciding + 1)]
    if memory.done > stored.done:
        if memory.data is not None:
            cells.append((_DATA, memory.data))
        cells.append((_DONE, memory.done + 1))
    return cells


def add_to_memory(memory: SinkMemory, record: Decision | Done) -> SinkMemory:
    """The memory after one more record of the log."""
    if isinstance(record, Done):
        return msgspec.structs.replace(memory, done=max(memory.done, record.batch))
    if record.batch <= memory.deciding:
        return memory
    return SinkMemory(
        done=memory.done,
        deciding=record.batch,
        seen=record.seen,
        data=memory.data if record.data is None else record.data,
    )


def _cell(queue: MessageQueue, number: int) -> MessageQueue:
    return msgspec.structs.replace(queue, queue_id=number)
