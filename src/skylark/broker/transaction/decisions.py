"""Which half messages are decided, and how: what makes a decision count once.

A byte for each queue offset of the half queue says what became of the copy that stands there
(:class:`Fate`), in blocks of 65,536. A decision is entered for every copy of the message that may
be asked for or met again: the one it named, the first one (its identity) and the newest one. Then
whoever repeats a decision, names another copy, or comes upon one in the queue, finds it.

A copy that is not the newest of its message any more is marked as well: the queue holds nothing to
be done there. So the first offset without a mark is where the next round of checks begins.

**What is known.** From ``floor`` on everything is: a copy without mark is undecided. Below,
everything is decided or given up, except messages that have a newer copy (``copies``), but how may
be forgotten: :meth:`Resolved.fate` then returns None, and the log is asked
(:mod:`skylark.broker.transaction.evicted`).

**Memory.** One byte for each half message since the oldest undecided one, and of those before at
most :data:`OLD_BLOCKS_MAX` blocks (16 MiB); some 100 bytes for each undecided message that was
asked about (``copies``).

Pure. After a crash it is rebuilt from the log.
"""

from __future__ import annotations

import enum
from typing import Final

BLOCK_SIZE: Final = 1 << 16
OLD_BLOCKS_MAX: Final = 256


class Fate(enum.IntEnum):
    """What became of a half message."""

    OPEN = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    #: One of the two: an op message, which says no more, is all that is left of the decision.
    DECIDED = 3
    #: Nobody decided in time. A decision still counts when it comes.
    GIVEN_UP = 4
    #: Of a copy: undecided, and a newer one stands for the message. Never the answer of ``fate``.
    MOVED = 5


_FATES: Final = tuple(Fate)
_OPEN: Final = bytes([Fate.OPEN])
_UNDECIDED: Final = (Fate.OPEN, Fate.MOVED)


class Resolved:
    """The fates of half messages."""

    def __init__(self, floor: int = 0) -> None:
        #: Everything from this queue offset on is known.
        self.floor = floor
        self._blocks: dict[int, bytearray] = {}
        #: First copy -> newest copy of undecided messages that have more than one.
        self.copies: dict[int, int] = {}

    # --- questions --------------------------------------------------------------------------------

    def at(self, offset: int) -> Fate:
        """What is noted for one copy."""
        block = self._blocks.get(offset // BLOCK_SIZE)
        return Fate.OPEN if block is None else _FATES[block[offset % BLOCK_SIZE]]

    def fate(self, offset: int, first_offset: int) -> Fate | None:
        """What became of a message, given one of its copies; None: too long ago to know."""
        for each in (first_offset, offset):
            fate = self.at(each)
            if fate not in _UNDECIDED:
                return fate
        return Fate.OPEN if offset >= self.floor or first_offset in self.copies else None

    def is_open_alone(self, offset: int) -> bool:
        """Whether a message is surely undecided, and this is its only copy."""
        block = self._blocks.get(offset // BLOCK_SIZE)
        return (
            (block is None or not block[offset % BLOCK_SIZE])
            and offset >= self.floor
            and offset not in self.copies
        )

    def next_open(self, offset: int, stop: int) -> int:
        """The first copy from ``offset`` on for which nothing is noted; ``stop`` if there is none.

        A hundred thousand decided messages are passed over in microseconds.
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

    def decide(self, offset: int, first_offset: int, fate: Fate) -> list[int]:
        """A message was decided or given up; the copies of it that an op message must name."""
        if offset == first_offset and first_offset not in self.copies:  # nearly always
            self._set(offset, fate)
            return [offset]
        offsets = {offset: None, first_offset: None}
        newest = self.copies.pop(first_offset, None)
        if newest is not None:
            offsets[newest] = None
        for each in offsets:
            self._set(each, fate)
        return list(offsets)

    def copied(self, first_offset: int, offset: int) -> None:
        """An undecided message has a further copy, which stands for it from now on."""
        before = self.copies.get(first_offset, first_offset)
        if before >= self.floor:
            self._set(before, Fate.MOVED)
        self.copies[first_offset] = offset

    def reopen(self, first_offset: int, offset: int) -> None:
        """A message that was given up is to be decided after all; it has a copy at ``offset``."""
        self._set(first_offset, Fate.MOVED)
        self.copied(first_offset, offset)

    def pass_over(self, offset: int) -> None:
        """What stands there is no half message, or no longer there: nothing is to be done."""
        self._set(offset, Fate.MOVED)

    def forget_below(self, floor: int) -> None:
        """Nothing before ``floor`` is undecided: forget what takes too much memory."""
        last = floor // BLOCK_SIZE  # the first block that is not old
        for number in sorted(number for number in self._blocks if number < last)[:-OLD_BLOCKS_MAX]:
            del self._blocks[number]
            self.floor = max(self.floor, (number + 1) * BLOCK_SIZE)

    # --- what is read from the log ----------------------------------------------------------------

    def read_op(self, offset: int) -> None:
        """An op message names a copy."""
        if not self.at(offset):
            self._set(offset, Fate.DECIDED)

    def read_final(self, offset: int, first_offset: int) -> bool:
        """A final message was made of a copy; whether no op message says so."""
        is_new = not (self.at(offset) or self.at(first_offset))
        self._set(offset, Fate.COMMITTED)
        self._set(first_offset, Fate.COMMITTED)
        return is_new

    def read_copy(self, offset: int, first_offset: int) -> None:
        """The queue has a copy, in order of offsets; decisions have been read before."""
        if offset == first_offset:
            return
        fate = self.fate(offset, first_offset)
        if fate:
            self.decide(offset, first_offset, fate)
        else:
            self.copied(first_offset, offset)

    def _set(self, offset: int, fate: Fate) -> None:
        number, position = divmod(offset, BLOCK_SIZE)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = bytearray(BLOCK_SIZE)
        block[position] = fate
