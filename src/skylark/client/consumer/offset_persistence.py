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
from itertools import chain
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

    async def save(
        self, queues: Collection[MessageQueue], *, wait: bool = False, changed: bool = False
    ) -> Mapping[MessageQueue, int]:
        """Send the offsets of these queues that memory has; returns those that were sent.

        Failures are logged. ``wait``: for responses, because another member continues there;
        ``changed``: only offsets that were not sent yet.
        """


class RemoteOffsets:
    """Offsets at the brokers, shared by the members of a group."""

    def __init__(self, group: str, link: Callable[[], BrokerConnections]) -> None:
        """``link`` returns the link of the control loop."""
        self.table = OffsetTable()
        self._group = group
        self._link = link
        self._known: dict[MessageQueue, int] = {}  # what the brokers know
        self._begun: set[tuple[str, str]] = set()  # broker and topic with offsets of this group

    async def read(self, queue: MessageQueue) -> int | None:
        link = self._link()
        address = await self._address(queue)
        try:
            offset = await link.calls.query_offset(address, self._group, queue, OFFSET_TIMEOUT_S)
        except QueryNotFoundError:
            return None
        self._known[queue] = offset
        return offset

    async def _address(self, queue: MessageQueue) -> str:
        """The address of the master, else of a slave."""
        lookup = self._link().lookup
        try:
            return await lookup.master_of(queue)
        except ClientError:
            return (await lookup.reader_of(queue)).address

    async def commit(self, queues: Collection[MessageQueue]) -> None:
        for result in (await self._send_all(queues, wait=True)).values():
            if isinstance(result, SkylarkError):
                raise result

    async def save(
        self, queues: Collection[MessageQueue], *, wait: bool = False, changed: bool = False
    ) -> Mapping[MessageQueue, int]:
        if changed:
            queues = [each for each in queues if self.table.read(each) != self._known.get(each)]
        saved: dict[MessageQueue, int] = {}
        for queue, result in (await self._send_all(queues, wait=wait)).items():
            if isinstance(result, SkylarkError):
                offset = self.table.read(queue)
                logger.warning("cannot save offset %s of %s now: %s", offset, queue, result)
            elif result is not None:
                saved[queue] = result
        return saved

    async def _send_all(
        self, queues: Collection[MessageQueue], *, wait: bool
    ) -> dict[MessageQueue, int | SkylarkError | None]:
        places: dict[tuple[str, str], list[MessageQueue]] = {}
        for queue in self.table.to_save(queues):
            places.setdefault((queue.broker_name, queue.topic), []).append(queue)
        results = await asyncio.gather(
            *(self._send_in_turn(place, *each, wait=wait) for place, each in places.items())
        )
        of_queues = (queue for each in places.values() for queue in each)
        return dict(zip(of_queues, chain.from_iterable(results), strict=True))

    async def _send_in_turn(
        self, place: tuple[str, str], first: MessageQueue, *rest: MessageQueue, wait: bool
    ) -> list[int | SkylarkError | None]:
        """Send the offsets of one topic to one broker.

        Apache's broker loses some of the first offsets of a group if they arrive together. So the
        first one is sent alone, and its response is awaited until a broker has responded once; if
        there is none, the others are sent without waiting.
        """
        result = await self._send(first, wait=wait or place not in self._begun)
        is_sent = isinstance(result, int)
        if is_sent:
            self._begun.add(place)
        others = (self._send(queue, wait=wait and is_sent) for queue in rest)
        return [result, *await asyncio.gather(*others)]

    async def _send(self, queue: MessageQueue, *, wait: bool) -> int | SkylarkError | None:
        """Send the offset of a queue to its broker; None if memory no longer has it."""
        link = self._link()
        try:
            target = await link.lookup.reader_of(queue)
            offset = self.table.read(queue)  # after the look-up, during which it may have moved
            if offset is not None:
                await link.calls.update_offset(
                    target.address, self._group, queue, offset, OFFSET_TIMEOUT_S, oneway=not wait
                )
                self._known[queue] = offset
        except SkylarkError as error:
            return error
        return offset


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

    async def save(
        self, queues: Collection[MessageQueue], *, wait: bool = False, changed: bool = False
    ) -> Mapping[MessageQueue, int]:
        del wait, changed  # the file is written at once if an offset has changed
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
