"""Table of the outcomes of half messages, by which each decision is applied once.

One byte per queue offset of the half queue holds the outcome of the copy at that offset
(:class:`HalfOutcome`), in blocks of 65,536. A decision is recorded for every copy of the message
that may be named or scanned again: the one that the request names, the first one (its identity) and
the newest one. So a repeated decision, or one that names another copy, finds the outcome.

A copy that is not the newest of its message is marked as moved: nothing is to be done there. So the
first offset without a mark is where the next round of check-backs begins.

**What is known.** From ``floor`` on all outcomes are known: a copy without mark is undecided. Below
``floor`` every message is decided or given up, except those with a newer copy (``copies``), but the
outcome may be evicted: :meth:`Decisions.outcome` then returns None, and
:mod:`skylark.broker.transaction.evicted` looks it up in the log.

**Memory.** One byte for each half message since the oldest undecided one, at most
:data:`OLD_BLOCKS_MAX` blocks (16 MiB) before that, and some 100 bytes for each undecided message
with several copies (``copies``).

Pure. After a crash it is rebuilt from the log.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

BLOCK_SIZE: Final = 1 << 16
OLD_BLOCKS_MAX: Final = 256


class HalfOutcome(enum.IntEnum):
    """Outcome of a half message, or of one of its copies."""

    OPEN = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    #: Committed or rolled back: only the op message is left, which does not say which of the two.
    DECIDED = 3
    #: No decision came in time. A later decision still counts.
    GIVEN_UP = 4
    #: Of a copy: the message is undecided and has a newer copy. Never returned by ``outcome``.
    MOVED = 5


_OUTCOMES: Final = tuple(HalfOutcome)
_OPEN: Final = bytes([HalfOutcome.OPEN])
_COMMITTED: Final = bytes([HalfOutcome.COMMITTED])
_UNDECIDED: Final = (HalfOutcome.OPEN, HalfOutcome.MOVED)


class Decisions:
    """Outcomes of half messages, by queue offset."""

    def __init__(self, floor: int = 0) -> None:
        #: All outcomes from this queue offset on are known.
        self.floor = floor
        self._blocks: dict[int, bytearray] = {}
        #: First copy -> newest copy of undecided messages that have more than one.
        self.copies: dict[int, int] = {}

    # --- queries ----------------------------------------------------------------------------------

    def outcome_at(self, offset: int) -> HalfOutcome:
        """The recorded outcome of one copy."""
        block = self._blocks.get(offset // BLOCK_SIZE)
        return HalfOutcome.OPEN if block is None else _OUTCOMES[block[offset % BLOCK_SIZE]]

    def outcome(self, offset: int, first_offset: int) -> HalfOutcome | None:
        """The outcome of a message, given one of its copies; None if it was evicted."""
        for each in (first_offset, offset):
            outcome = self.outcome_at(each)
            if outcome not in _UNDECIDED:
                return outcome
        return HalfOutcome.OPEN if offset >= self.floor or first_offset in self.copies else None

    def is_sole_undecided(self, offset: int) -> bool:
        """Whether a message is known to be undecided, and this is its only copy."""
        block = self._blocks.get(offset // BLOCK_SIZE)
        return (
            (block is None or not block[offset % BLOCK_SIZE])
            and offset >= self.floor
            and offset not in self.copies
        )

    def are_sole_undecided(self, first: int, count: int) -> bool:
        """:meth:`is_sole_undecided` for each of ``count`` neighbours."""
        return (
            first >= self.floor
            and not any(
                any(self._blocks.get(number, b"")[start:end])
                for number, start, end in _parts(first, first + count)
            )
            and self.copies.keys().isdisjoint(range(first, first + count))
        )

    def next_undecided(self, offset: int, stop: int) -> int:
        """The first copy from ``offset`` on without an outcome; ``stop`` if there is none.

        Skips a hundred thousand decided messages in microseconds.
        """
        while offset < stop:
            number, position = divmod(offset, BLOCK_SIZE)
            block = self._blocks.get(number)
            if block is None:
                return offset
            found = block.find(_OPEN, position)
            if found >= 0:
                return min(stop, number * BLOCK_SIZE + found)
            offset = (number + 1) * BLOCK_SIZE
        return stop

    # --- events -----------------------------------------------------------------------------------

    def decide(self, offset: int, first_offset: int, outcome: HalfOutcome) -> list[int]:
        """Record an outcome; returns the copies of the message that an op message must name."""
        if offset == first_offset and first_offset not in self.copies:  # nearly always
            self._set(offset, outcome)
            return [offset]
        offsets = {offset: None, first_offset: None}
        newest = self.copies.pop(first_offset, None)
        if newest is not None:
            offsets[newest] = None
        for each in offsets:
            self._set(each, outcome)
        return list(offsets)

    def commit_run(self, first: int, count: int) -> None:
        """Record the commits of neighbours that have no copies."""
        for number, start, end in _parts(first, first + count):
            self._block(number)[start:end] = _COMMITTED * (end - start)

    def copied(self, first_offset: int, offset: int) -> None:
        """Record a new copy of an undecided message."""
        before = self.copies.get(first_offset, first_offset)
        if before >= self.floor:
            self._set(before, HalfOutcome.MOVED)
        self.copies[first_offset] = offset

    def reopen(self, first_offset: int, offset: int) -> None:
        """Make a message undecided that was given up; its new copy is at ``offset``."""
        self._set(first_offset, HalfOutcome.MOVED)
        self.copied(first_offset, offset)

    def pass_over(self, offset: int) -> None:
        """Mark an offset whose half message is invalid or was copied: later rounds skip it."""
        self._set(offset, HalfOutcome.MOVED)

    def forget_below(self, floor: int) -> None:
        """Evict outcomes beyond the memory limit; no message before ``floor`` is undecided."""
        last = floor // BLOCK_SIZE  # the first block that is not old
        for number in sorted(number for number in self._blocks if number < last)[:-OLD_BLOCKS_MAX]:
            del self._blocks[number]
            self.floor = max(self.floor, (number + 1) * BLOCK_SIZE)

    # --- recovery ---------------------------------------------------------------------------------

    def read_op(self, offset: int) -> None:
        """Record that an op message names a copy."""
        if not self.outcome_at(offset):
            self._set(offset, HalfOutcome.DECIDED)

    def read_final(self, offset: int, first_offset: int) -> bool:
        """Record a final message; returns whether neither copy had an outcome before."""
        is_new = not (self.outcome_at(offset) or self.outcome_at(first_offset))
        self._set(offset, HalfOutcome.COMMITTED)
        self._set(first_offset, HalfOutcome.COMMITTED)
        return is_new

    def read_copy(self, offset: int, first_offset: int) -> None:
        """Record a copy of the queue, in order of offsets; call it after the decisions are read."""
        if offset == first_offset:
            return
        outcome = self.outcome(offset, first_offset)
        if outcome:
            self.decide(offset, first_offset, outcome)
        else:
            self.copied(first_offset, offset)

    def _set(self, offset: int, outcome: HalfOutcome) -> None:
        number, position = divmod(offset, BLOCK_SIZE)
        self._block(number)[position] = outcome

    def _block(self, number: int) -> bytearray:
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = bytearray(BLOCK_SIZE)
        return block


def _parts(first: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The blocks of a range of offsets, with the positions of its part in each."""
    while first < stop:
        number, start = divmod(first, BLOCK_SIZE)
        end = min(BLOCK_SIZE, start + stop - first)
        yield number, start, end
        first += end - start
