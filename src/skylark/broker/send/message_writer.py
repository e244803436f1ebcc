"""The one way into the store: sends, and everything that the broker stores by itself.

A message that the broker makes, or stores once more, comes here too: a delayed one that is due, a
retry, a dead letter, a half message and what it becomes, a recall. :meth:`MessageWriter.put_own`
sends it the way of delayed messages where its properties say so, as it is done for a producer.

Every put is measured for :mod:`skylark.broker.overload.overload_guard` and counted as a put of the
store. The statistics by topic are for whoever knows what the message was meant for. Answers to
``EscapeBridge.putMessage`` and to the put hooks of ``DefaultMessageStore``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skylark.broker.send.message_policy import Diverter
from skylark.broker.stats.store_stats import StoreStats
from skylark.core.clock import TimeSource
from skylark.store.commit_log import Draft
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutResult, PutStatus, PutWaiter
from skylark.wire.message import MessageRecord
from skylark.wire.properties import encode_properties


def copy_of(record: MessageRecord, topic: str, queue_id: int) -> Draft:
    """A stored message once more, for another queue; its properties are up to the caller."""
    return Draft(
        topic,
        queue_id,
        record.body,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times,
    )


class MessageWriter:
    """Puts messages, and keeps count."""

    def __init__(
        self,
        store: MessageStore,
        diverter: Diverter,
        store_stats: StoreStats,
        clock: TimeSource,
        *,
        appended: Callable[[float, float], None],
    ) -> None:
        """``appended`` is told when each append began and ended (see ``overload``)."""
        self.store = store
        self.diverter = diverter
        self._stats = store_stats
        self._clock = clock
        self._appended = appended

    def put(self, draft: Draft) -> PutResult:
        """Store a message as it is."""
        return self.put_run([draft])[0]

    def put_run(self, drafts: list[Draft]) -> list[PutResult]:
        """Store messages that came together, each as it is. Hot."""
        started = self._clock.monotonic()
        results = self.store.put_run(drafts)
        ended = self._clock.monotonic()
        self._appended(started, ended)
        stats, count = self._stats, len(results)
        stats.put_took(int((ended - started) * 1000 / count), count)
        for result in results:
            if result.size:
                stats.put_count += result.message_count
                stats.put_size += result.size
            else:
                stats.put_failed_count += 1
        return results

    def put_own(
        self, draft: Draft, properties: dict[str, str], when_durable: PutWaiter | None = None
    ) -> PutResult:
        """Store a message that has no property string yet; both arguments may be changed.

        ``when_durable`` is called with the final status once the flush setting is satisfied,
        perhaps before this returns, and only for a message that was stored.
        """
        refused = self.diverter.divert(draft, properties)
        if refused is not None:
            self._stats.put_failed_count += 1
            return PutResult(refused)
        draft.properties = encode_properties(properties).encode()
        result = self.put(draft)
        if result.status.stored:
            waits = when_durable is not None
            self.store.when_durable(result, when_durable or _ignore, wait=waits)
        return result

    async def put_own_safely(
        self, draft: Draft, properties: dict[str, str]
    ) -> tuple[PutResult, PutStatus]:
        """:meth:`put_own`, and wait until the flush setting is satisfied; with the final status.

        Who gives up waiting takes nothing back: the message is stored.
        """
        durable: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()

        def note(status: PutStatus) -> None:
            if not durable.done():  # cancelled with whoever waited
                durable.set_result(status)

        result = self.put_own(draft, properties, note)
        return result, await durable if result.status.stored else result.status


def _ignore(_status: PutStatus) -> None:
    """For a put that nobody waits for."""
