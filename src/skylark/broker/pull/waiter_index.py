"""Index of the requests that wait for messages, by queue and by filter.

A queue may have thousands of waiting requests, most of which want other messages than the one that
arrives. So an arriving message does not visit them all: it finds those without a filter, and those
with the hash of its tag; of the requests with an SQL filter it evaluates each distinct expression
once. A request that wants several tags stands under each of them; one that wants more than
:data:`CODES_MAX` stands with those of the same filter, which is asked once. A queue with a single
waiter, as most have, needs no index: its waiter is asked.

The key is a queue in the widest sense: held pulls use ``(topic, queue id)``, of which a message
wakes all waiters that it passes (:meth:`WaiterIndex.passing`); requests that share a queue, such as
those of POP consumers, may use ``(topic, group, queue id)`` and wake one
(:meth:`WaiterIndex.first_passing`).

:func:`passes` defines the meaning of the filters; a property test holds the index to it.

Pure: it knows neither times nor connections.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from itertools import count
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from skylark.filter.sql_eval import SqlFilter
from skylark.filter.tag import TagFilter, low_int

#: A waiter stands under as many tags at most.
CODES_MAX: Final = 64


class Waiter(msgspec.Struct, eq=False, kw_only=True):
    """A waiting request; subclasses add what is needed to run it."""

    key: Hashable
    #: The filters: a message has to pass both. None passes everything.
    tags: TagFilter | None = None
    sql: SqlFilter | None = None
    #: Its number among all that were ever added; set by the index.
    order: int = -1


WaiterT = TypeVar("WaiterT", bound=Waiter)
#: An ordered set.
_Group = dict[WaiterT, None]
#: What the waiters of a group have in common, besides a tag: the text of their SQL filter or None,
#: and if they want too many tags to stand under each, the hashes of these.
_Common: TypeAlias = str | tuple[str | None, frozenset[int]] | None


def passes(waiter: Waiter, tags_code: int | None, properties: bytes | None) -> bool:
    """Whether a message passes the filters; unknown data of it (None) passes every filter."""
    if tags_code is not None and waiter.tags is not None and not waiter.tags.matches(tags_code):
        return False
    return properties is None or waiter.sql is None or waiter.sql.matches_raw(properties)


class _Queue(Generic[WaiterT]):
    """The waiters of a key that has, or had, several."""

    __slots__ = ("all", "by_code")

    def __init__(self) -> None:
        self.all: _Group[WaiterT] = {}
        #: Hash of a tag, or None for waiters of every tag and of too many -> what they have in
        #: common -> waiters. No group is empty.
        self.by_code: dict[int | None, dict[_Common, _Group[WaiterT]]] = {}

    def add(self, waiter: WaiterT) -> None:
        self.all[waiter] = None
        codes, common = _place(waiter)
        for code in codes:
            self.by_code.setdefault(code, {}).setdefault(common, {})[waiter] = None

    def remove(self, waiter: WaiterT) -> None:
        del self.all[waiter]
        codes, common = _place(waiter)
        for code in codes:
            groups = self.by_code[code]
            group = groups[common]
            del group[waiter]
            if not group:
                del groups[common]
                if not groups:
                    del self.by_code[code]


class WaiterIndex(Generic[WaiterT]):
    """All waiters of one kind."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, WaiterT | _Queue[WaiterT]] = {}
        self._orders = count()

    @property
    def keys(self) -> Mapping[Hashable, object]:
        """The keys of all waiters, always up to date; messages of others need not be looked up."""
        return self._queues

    def __iter__(self) -> Iterator[WaiterT]:
        for found in self._queues.values():
            if isinstance(found, _Queue):
                yield from found.all
            else:
                yield found

    def count(self, key: Hashable) -> int:
        """How many waiters a key has."""
        found = self._queues.get(key)
        if isinstance(found, _Queue):
            return len(found.all)
        return 0 if found is None else 1

    def add(self, waiter: WaiterT) -> None:
        """Add a waiter; it is the last of its key."""
        waiter.order = next(self._orders)
        found = self._queues.setdefault(waiter.key, waiter)
        if found is waiter:
            return
        if not isinstance(found, _Queue):
            single, found = found, _Queue()
            found.add(single)
            self._queues[waiter.key] = found
        found.add(waiter)

    def remove(self, waiter: WaiterT) -> None:
        """Remove a waiter that was added and not removed since."""
        found = self._queues[waiter.key]
        if isinstance(found, _Queue) and len(found.all) > 1:
            found.remove(waiter)
        else:
            del self._queues[waiter.key]

    def passing(
        self, key: Hashable, tags_code: int | None, properties: bytes | None
    ) -> list[WaiterT]:
        """The waiters whose filters a message passes (:func:`passes`), in the order of arrival."""
        found = self._queues.get(key)
        if found is None:
            return []
        if not isinstance(found, _Queue):
            return [found] if passes(found, tags_code, properties) else []
        if tags_code is None:
            return [waiter for waiter in found.all if passes(waiter, None, properties)]
        groups = list(_passing_groups(found, tags_code, properties))
        if len(groups) == 1:
            return list(groups[0])
        waiters = {waiter: None for group in groups for waiter in group}
        return sorted(waiters, key=_order)

    def first_passing(
        self, key: Hashable, tags_code: int | None, properties: bytes | None
    ) -> WaiterT | None:
        """The waiter of :meth:`passing` that came first; None if there is none."""
        found = self._queues.get(key)
        if found is None:
            return None
        if not isinstance(found, _Queue):
            return found if passes(found, tags_code, properties) else None
        if tags_code is None:
            return next((each for each in found.all if passes(each, None, properties)), None)
        firsts = (next(iter(group)) for group in _passing_groups(found, tags_code, properties))
        return min(firsts, key=_order, default=None)


def _passing_groups(
    queue: _Queue[WaiterT], tags_code: int, properties: bytes | None
) -> Iterator[_Group[WaiterT]]:
    for code in {None, tags_code, low_int(tags_code)}:
        for common, group in queue.by_code.get(code, {}).items():
            # One without a filter passes; for the others the first waiter of the group answers.
            if common is None or passes(next(iter(group)), tags_code, properties):
                yield group


def _place(waiter: Waiter) -> tuple[frozenset[int] | tuple[None], _Common]:
    """The hashes under which a waiter stands, and its group there."""
    codes = None if waiter.tags is None else waiter.tags.codes
    text = None if waiter.sql is None else waiter.sql.text
    if codes is None:
        return (None,), text
    if len(codes) > CODES_MAX:
        return (None,), (text, codes)
    return codes, text


def _order(waiter: Waiter) -> int:
    return waiter.order
