"""When the members of a group hear that the group has changed, without drowning large groups.

Each change of a group is news for each of its members (request 40), and every member that hears it
asks for the list of members and divides the queues anew. If a thousand consumers join at once and
every join is told to everybody, half a million notices go out, each answered by a list of a
thousand names. So:

* A group of up to :data:`SMALL_GROUP_SIZE` members is told at once, every time, as Java does.
* A larger group is told at once after a quiet time; changes in quick succession are saved up and
  told together. The shortest time between two rounds is one millisecond per member and never more
  than :data:`DELAY_MS_MAX`. A large group thus gets about one notice per millisecond, however fast
  it changes, and nobody waits for news longer than that.
* With ``realTimeNotifyConsumerChange=false`` all changes are saved up for ``batch_ms``.

This class decides only *when*; who is in the group at that time is known to the caller. The clock
may be set back at any time: what then seems to lie further ahead than any wait allows is due.
"""

from __future__ import annotations

import heapq
from typing import Final

SMALL_GROUP_SIZE: Final = 32
DELAY_MS_MAX: Final = 1_000
#: Java's fixed period where notices are not sent in real time.
BATCH_MS: Final = 15_000


class ChangeNotices:
    """The saved-up news of all groups."""

    def __init__(self, *, batch_ms: int = 0) -> None:
        self.batch_ms = batch_ms
        self._told_ms: dict[str, int] = {}  # the last round of each large group
        self._due_ms: dict[str, int] = {}  # groups that have saved-up news
        self._heap: list[tuple[int, str]] = []  # entries that differ from _due_ms are void

    @property
    def _delay_ms_max(self) -> int:
        return max(self.batch_ms, DELAY_MS_MAX)

    def changed(self, group: str, member_count: int, now_ms: int) -> bool:
        """Take note of a change; whether everybody is to be told now."""
        if self.batch_ms:
            self._save(group, now_ms + self.batch_ms)
            return False
        if member_count <= SMALL_GROUP_SIZE:
            self.forget(group)  # this round tells what was saved up as well
            return True
        if group in self._due_ms:
            return False
        told_ms = self._told_ms.get(group)
        pause_ms = min(member_count, DELAY_MS_MAX)
        if told_ms is None or not 0 <= now_ms - told_ms < pause_ms:
            self._told_ms[group] = now_ms
            return True
        self._save(group, told_ms + pause_ms)
        return False

    def _save(self, group: str, due_ms: int) -> None:
        if group not in self._due_ms:
            self._due_ms[group] = due_ms
            heapq.heappush(self._heap, (due_ms, group))

    def forget(self, group: str) -> None:
        """Drop saved-up news, for example because nobody is left to be told."""
        self._due_ms.pop(group, None)
        self._told_ms.pop(group, None)

    def next_due(self, now_ms: int) -> int | None:
        """When :meth:`take_due` will next have something; None while nothing is saved up."""
        self._drop_void()
        return min(self._heap[0][0], now_ms + self._delay_ms_max) if self._heap else None

    def take_due(self, now_ms: int) -> list[str]:
        """The groups that are to be told now."""
        groups = []
        self._drop_void()
        while self._heap and not now_ms < self._heap[0][0] <= now_ms + self._delay_ms_max:
            _, group = heapq.heappop(self._heap)
            del self._due_ms[group]
            if not self.batch_ms:
                self._told_ms[group] = now_ms
            groups.append(group)
            self._drop_void()
        return groups

    def _drop_void(self) -> None:
        while self._heap and self._due_ms.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
