"""Saving offsets where they outlive the consumer: at brokers, or in a file.

Both stores have the same interface and an :class:`OffsetTable` as memory. They run on the control
loop, so that offsets are saved while an application blocks its own. A save to a broker gets no
answer (as in Java): what gets lost on the way is sent again with the next round, and pulls carry
the offset as well. There is no next round when a consumer leaves: then it waits for the answers.
:meth:`OffsetStore.read` asks the store itself and leaves the memory alone: what is there is saved,
and what was only read might take the group back. While a master is away its slave is asked, and
told: it knows what was committed up to some seconds before, and tells the master when that is back.

The file of a broadcasting consumer is small, and written only if an offset has moved; so this
happens in place. Answers to ``RemoteBrokerOffsetStore`` and ``LocalFileOffsetStore``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from skylark.client.consumer.offset_table import LocalOffsetFile, OffsetTable
from skylark.client.core.broker_connections import Link
from skylark.core.errors import ClientError, QueryNotFoundError, SkylarkError
from skylark.wire.bodies.common_body import MessageQueue

log = logging.getLogger(__name__)

OFFSET_TIMEOUT_S: Final = 5.0


class OffsetStore(Protocol):
    """Where the offsets of a group are kept; on the control loop."""

    table: OffsetTable

    async def read(self, queue: MessageQueue) -> int | None:
        """What is stored, None if nothing is; raises SkylarkError or OSError."""

    async def persist(self, queue: MessageQueue) -> None:
        """Save the offset of one queue, if there is one in memory."""

    async def persist_some(self, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, int]:
        """Save the offsets of these queues, the others stay as they are; those that went out."""

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Save the offsets of these queues; all others are forgotten."""

    async def persist_last(self, queues: Collection[MessageQueue]) -> None:
        """Save the offsets of these queues for good: the consumer leaves."""


class RemoteOffsets:
    """Offsets at the brokers, shared by the members of a group."""

    def __init__(self, group: str, link: Callable[[], Link]) -> None:
        """``link`` gives that of the control loop."""
        self.table = OffsetTable()
        self._group = group
        self._link = link
        self._begun: set[tuple[str, str]] = set()  # broker and topic: it has offsets of ours

    async def read(self, queue: MessageQueue) -> int | None:
        link = self._link()
        address = await self._address(queue)
        try:
            return await link.calls.query_offset(address, self._group, queue, OFFSET_TIMEOUT_S)
        except QueryNotFoundError:
            return None

    async def _address(self, queue: MessageQueue) -> str:
        """Who knows best: the master, also if it is so new that its route must be asked for."""
        lookup = self._link().lookup
        try:
            return await lookup.master_of(queue)
        except ClientError:
            return (await lookup.reader_of(queue)).address

    async def persist(self, queue: MessageQueue) -> None:
        offset = self.table.read(queue)
        if offset is not None:
            await self._save(queue, offset)

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
        saves: dict[tuple[str, str], dict[MessageQueue, int]] = {}
        offsets = self.table.to_save(queues)
        for queue, offset in offsets.items():
            saves.setdefault((queue.broker_name, queue.topic), {})[queue] = offset
        saved = await asyncio.gather(
            *(self._save_in_turn(place, each, wait=wait) for place, each in saves.items())
        )
        return {queue: offsets[queue] for each in saved for queue in each}

    async def _save_in_turn(
        self, place: tuple[str, str], offsets: dict[MessageQueue, int], *, wait: bool
    ) -> list[MessageQueue]:
        """Save the offsets of one topic at one broker; for which queues that went well.

        Apache's broker loses some of the first offsets of a group if they arrive together. So the
        first one goes alone, and until one was answered its answer is waited for; if there is none,
        nobody waits for the others.
        """
        (first, first_offset), *rest = offsets.items()
        answered = await self._save(first, first_offset, wait=wait or place not in self._begun)
        if answered:
            self._begun.add(place)
        others = await asyncio.gather(*(self._save(*each, wait=wait and answered) for each in rest))
        results = zip(offsets, (answered, *others), strict=True)
        return [queue for queue, went_well in results if went_well]

    async def _save(self, queue: MessageQueue, offset: int, *, wait: bool = False) -> bool:
        """Send an offset to its broker; whether that went well."""
        link = self._link()
        try:
            target = await link.lookup.reader_of(queue)
            await link.calls.update_offset(
                target.address, self._group, queue, offset, OFFSET_TIMEOUT_S, oneway=not wait
            )
        except SkylarkError as error:
            log.warning("offset %d of %s is not saved now: %s", offset, queue, error)
            return False
        return True


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
            log.warning("offsets are not saved now: %s", error)
            return {}
        return offsets
