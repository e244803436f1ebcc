"""Puts messages into the store: those of clients, and those that the broker makes itself.

The settings limit a client's message. Only the record format limits a message that the broker makes
or copies: a delayed message that is due, a retry, a dead letter, a final message, a recall
(:mod:`skylark.broker.send.own_copies`). :meth:`MessageWriter.put_copy` stores it as it is;
:meth:`MessageWriter.put_own` first turns it into a delayed or timed message if its properties say
so, as for a producer.

Every put is timed for :mod:`skylark.broker.overload.overload_guard` and counted as a put of the
store; the caller counts it by topic. Counterpart of Java's ``EscapeBridge.putMessage`` and of the
put hooks of ``DefaultMessageStore``.

A crash leaves the whole record or nothing of it (:mod:`skylark.store.put_message`). Properties that
a copy leaves out are removed before the put.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skylark.broker.send.message_policy import Diverter
from skylark.broker.send.own_copies import UncopiedMessages, copy_growth, without_optional
from skylark.broker.stats.store_stats import StoreStats
from skylark.core.clock import TimeSource
from skylark.store.commit_log import Draft, PutLimits
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.message import MessageRecord
from skylark.wire.properties import encode_properties


def copy_of(record: MessageRecord, topic: str, queue_id: int) -> Draft:
    """Draft of a copy of a stored message for another queue, without properties."""
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
    """Puts messages, and counts the puts."""

    def __init__(
        self,
        store: MessageStore,
        diverter: Diverter,
        store_stats: StoreStats,
        clock: TimeSource,
        *,
        appended: Callable[[float, float], None],
    ) -> None:
        """``appended`` is called with the start and end time of each append (see ``overload``)."""
        store.leave_room_for_copies(copy_growth)
        self.store = store
        #: Messages that could not be copied.
        self.uncopied = UncopiedMessages()
        self.diverter = diverter
        self._stats = store_stats
        self._monotonic = clock.monotonic
        self._appended = appended
        #: The milliseconds of each message of the last run.
        self.put_ms = 0

    def put(self, draft: Draft) -> PutResult:
        """Store a message as it is."""
        return self.put_run([draft])[0]

    def put_run(self, drafts: Sequence[Draft]) -> list[PutResult]:
        """Store the messages of a run as they are; on the hot path."""
        started = self._monotonic()
        results = self.store.put_run(drafts)
        ended = self._monotonic()
        self._appended(started, ended)
        stats, count = self._stats, len(results)
        self.put_ms = int((ended - started) * 1000 / count)
        stats.record_put_time(self.put_ms, count)
        for result in results:
            if result.size:
                stats.put_count += result.message_count
                stats.put_size += result.size
            else:
                stats.put_failed_count += 1
        return results

    def fit_copy(self, draft: Draft) -> None:
        """Limit a copy by the record format only; drops optional properties that do not fit."""
        draft.limits = PutLimits.RECORD_FORMAT_ONLY
        fits = self.store.properties_fit
        if not fits(draft.properties):
            draft.properties = without_optional(draft.topic, draft.properties, fits)

    def put_copy(self, draft: Draft) -> PutResult:
        """Store a copy that the broker has made; no client waits for its flush.

        Optional properties that do not fit are dropped.
        A status in :data:`~skylark.broker.send.own_copies.NEVER_STORED` is final: the caller adds
        the message to :attr:`uncopied` and continues with the next one.
        """
        self.fit_copy(draft)
        result = self.put(draft)
        if result.status.stored:
            self.store.when_durable(result, _ignore, wait=False)
        return result

    def divert_own(self, draft: Draft, properties: dict[str, str]) -> PutStatus | None:
        """Redirect a delayed or timed message of the broker; a refusal counts as a failed put."""
        refused = self.diverter.divert(draft, properties)
        if refused is not None:
            self._stats.put_failed_count += 1
        return refused

    def prepare_own(
        self, draft: Draft, properties: dict[str, str], *, may_wait: bool = True
    ) -> PutStatus | None:
        """Give a message of the broker its property string; both arguments may be changed.

        ``may_wait`` is false for a message that must not become a delayed or timed one because of
        its properties. Returns a status if the message is refused.
        """
        refused = self.divert_own(draft, properties) if may_wait else None
        if refused is None:
            draft.properties = encode_properties(properties).encode()
            self.fit_copy(draft)
        return refused

    def put_own(self, draft: Draft, properties: dict[str, str]) -> PutResult:
        """Store a message of the broker that no client waits for."""
        refused = self.prepare_own(draft, properties)
        return self.put_copy(draft) if refused is None else PutResult(refused)


def _ignore(_status: PutStatus) -> None:
    """Callback of a put that no client waits for."""
