"""Persistence of consumer offsets: at the brokers, or in a local file.

Both stores have the same interface (:class:`OffsetStore`) and an
:class:`~skylark.client.consumer.offset_table.OffsetTable` as memory. They run on the control loop,
so offsets are saved while an application blocks its loop. The periodic save to a broker is one-way,
as in Java: the next round repeats an update that is lost, and pulls carry the offset as well. Two
saves wait for responses: the last one of a consumer that leaves, and :meth:`OffsetStore.commit`,
which an application calls. A save sends the offset in memory at that moment, so a slow round never
overwrites a later commit.

:meth:`OffsetStore.read` reads from the store and does not change the memory: the memory is saved
periodically, and an offset that was only read could set the group back. While a master is down,
reads and saves go to its slave, whose offsets are some seconds old; the slave passes the offsets to
the master when it is back.

The file of a broadcasting consumer is small, and only written if an offset has changed; so the
write is not moved to a thread. Counterpart of Java's ``RemoteBrokerOffsetStore`` and
``LocalFileOffsetStore``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, Protocol

from skylark.client.consumer.offset_table import LocalOffsetFile, OffsetTable, local_offset_path
from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.client_instance import ClientInstance
from skylark.core.errors import ClientError, QueryNotFoundError, SkylarkError
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

OFFSET_TIMEOUT_S: Final = 5.0


class OffsetStore(Protocol):
    """Saves and reads the offsets of a group; on the control loop."""

    table: OffsetTable

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset, None if there is none; raises SkylarkError or OSError."""

    async def commit(self, queues: Collection[MessageQueue]) -> None:
        """Save the offsets of these queues and wait until they are stored.

        Raises SkylarkError or OSError for the first that failed; the others are saved, and memory
        keeps all of them for the next round.
        """

    async def persist(self, queue: MessageQueue) -> None:
        """Save the offset of one queue, if memory has one."""

    async def persist_some(self, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, int]:
        """Save the offsets of these queues only; returns the offsets that were sent."""

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Save the offsets of these queues, and forget all others."""

    async def persist_last(self, queues: Collection[MessageQueue]) -> None:
        """Save the offsets of these queues and wait, because the consumer leaves."""


class RemoteOffsets:
    """Offsets at the brokers, shared by the members of a group."""

    def __init__(self, group: str, link: Callable[[], BrokerConnections]) -> None:
        """``link`` returns the link of the control loop."""
        self.table = OffsetTable()
        self._group = group
        self._link = link
        self._begun: set[tuple[str, str]] = (
            set()
        )  # broker and topic that have offsets of this group

    async def read(self, queue: MessageQueue) -> int | None:
        link = self._link()
        address = await self._address(queue)
        try:
            return await link.calls.query_offset(address, self._group, queue, OFFSET_TIMEOUT_S)
        except QueryNotFoundError:
            return None

    async def _address(self, queue: MessageQueue) -> str:
        """The address of the master, else of a slave."""
        lookup = self._link().lookup
        try:
            return await lookup.master_of(queue)
        except ClientError:
            return (await lookup.reader_of(queue)).address

    async def commit(self, queues: Collection[MessageQueue]) -> None:
        results = await asyncio.gather(
            *(self._commit_in_turn(*each) for each in _by_place(self.table.to_save(queues))),
            return_exceptions=True,
        )
        for error in results:
            if error is not None:
                raise error

    async def _commit_in_turn(
        self, place: tuple[str, str], offsets: dict[MessageQueue, int]
    ) -> None:
        """Commit the offsets of one topic at one broker; see :meth:`_save_in_turn`."""
        queues = list(offsets)
        if place not in self._begun:
            await self._send(queues.pop(0), wait=True)
            self._begun.add(place)
        results = await asyncio.gather(
            *(self._send(queue, wait=True) for queue in queues), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def persist(self, queue: MessageQueue) -> None:
        if self.table.read(queue) is not None:
            await self._save(queue)

    async def persist_some(self, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, int]:
        return await self._save_all(queues, wait=False)

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        self.table.retain(queues)
        await self._save_all(queues, wait=False)

    async def persist_last(self, queues: Collection[MessageQueue]) -> None:
        await self._save_all(queues, wait=True)

    async def _save_all(
        self, queues: Collection[MessageQueue], *, wait: bool
    ) -> dict[MessageQueue, int]:
        places = _by_place(self.table.to_save(queues))
        saved = await asyncio.gather(
            *(self._save_in_turn(place, each, wait=wait) for place, each in places)
        )
        return {queue: offset for each in saved for queue, offset in each.items()}

    async def _save_in_turn(
        self, place: tuple[str, str], offsets: dict[MessageQueue, int], *, wait: bool
    ) -> dict[MessageQueue, int]:
        """Save the offsets of one topic at one broker; returns the offsets that were sent.

        Apache's broker loses some of the first offsets of a group if they arrive together. So the
        first one is sent alone, and its response is awaited until a broker has responded once; if
        there is none, the others are sent without waiting.
        """
        first, *rest = offsets
        sent = await self._save(first, wait=wait or place not in self._begun)
        if sent is not None:
            self._begun.add(place)
        wait = wait and sent is not None
        others = await asyncio.gather(*(self._save(queue, wait=wait) for queue in rest))
        results = zip(offsets, (sent, *others), strict=True)
        return {queue: offset for queue, offset in results if offset is not None}

    async def _save(self, queue: MessageQueue, *, wait: bool = False) -> int | None:
        """Send the offset of a queue to its broker; returns it, or None with a warning."""
        try:
            return await self._send(queue, wait=wait)
        except SkylarkError as error:
            offset = self.table.read(queue)
            logger.warning("cannot save offset %s of %s now: %s", offset, queue, error)
            return None

    async def _send(self, queue: MessageQueue, *, wait: bool) -> int | None:
        """Send the offset of a queue to its broker; None if memory no longer has it."""
        link = self._link()
        target = await link.lookup.reader_of(queue)
        offset = self.table.read(queue)  # read after the look-up, during which it may have moved
        if offset is not None:
            await link.calls.update_offset(
                target.address, self._group, queue, offset, OFFSET_TIMEOUT_S, oneway=not wait
            )
        return offset


def _by_place(
    offsets: Mapping[MessageQueue, int],
) -> list[tuple[tuple[str, str], dict[MessageQueue, int]]]:
    """Offsets grouped by broker and topic."""
    places: dict[tuple[str, str], dict[MessageQueue, int]] = {}
    for queue, offset in offsets.items():
        places.setdefault((queue.broker_name, queue.topic), {})[queue] = offset
    return list(places.items())


class LocalOffsets:
    """Offsets in the file of one broadcasting consumer."""

    def __init__(self, file: LocalOffsetFile) -> None:
        """Reads the file; raises ClientError if it and its copy are broken."""
        self.table = OffsetTable()
        self._file = file
        for queue, offset in file.load().items():
            self.table.update(queue, offset)

    async def read(self, queue: MessageQueue) -> int | None:
        return self._file.load().get(queue)

    async def commit(self, queues: Collection[MessageQueue]) -> None:
        self._file.save(self.table.to_save(queues))

    async def persist(self, queue: MessageQueue) -> None:
        self._save([queue])

    async def persist_some(self, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, int]:
        return self._save(queues)

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        self.table.retain(queues)
        self._save(queues)

    async def persist_last(self, queues: Collection[MessageQueue]) -> None:
        self._save(queues)

    def _save(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        offsets = self.table.to_save(queues)
        try:
            self._file.save(offsets)
        except (OSError, ClientError) as error:
            logger.warning("cannot save offsets now: %s", error)
            return {}
        return offsets


def open_offset_store(
    instance: ClientInstance, group: str, *, clustering: bool, folder: Path | None
) -> OffsetStore:
    """The offsets of a group, as brokers know it: at the brokers, or in a file below ``folder``.

    Raises ClientError if that file and its copy are broken.
    """
    if clustering:
        return RemoteOffsets(group, lambda: instance.control_link)
    return LocalOffsets(LocalOffsetFile(local_offset_path(folder, instance.client_id, group)))
