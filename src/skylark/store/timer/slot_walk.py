"""Reading a slot that is due: along its chain, back from the last unit, a piece at a time.

A slot may hold very many messages, and the chain goes against the order in which they came. So the
walk collects positions, eight bytes each, and hands them out the other way round. Marks that delete
come apart, for they must be known before the first message is delivered.

Every step of the walk goes to a smaller position within the timer log, and the unit there must
belong to the slot; otherwise the walk ends. So a damaged chain cannot lead it in a circle.
"""

from __future__ import annotations

import logging
from array import array

from skylark.store.timer.timer_log import TimerLog, Unit
from skylark.store.timer.timer_wheel import Slot

logger = logging.getLogger(__name__)


class SlotWalk:
    """The units of one slot; call :meth:`step` until :attr:`is_complete`."""

    def __init__(self, log: TimerLog, slot: Slot) -> None:
        self._log = log
        self._position = slot.last_position
        self.time_ms = slot.time_ms
        self.message_count = slot.message_count  # as the slot counts: marks make it less
        self._positions = array("q")  # newest first
        self._deletes = array("q")

    @property
    def is_complete(self) -> bool:
        """Whether all units of the slot were found."""
        return self._position < 0

    @property
    def found_count(self) -> int:
        """Units found that were not handed out."""
        return len(self._positions) + len(self._deletes)

    def step(self, count: int) -> None:
        """Go back by at most ``count`` units."""
        for _ in range(count):
            position = self._position
            if position < 0:
                return
            unit = self._log.read(position)
            if unit is None or unit.slot_time_ms != self.time_ms:
                if position >= self._log.min_position:  # else its file has expired
                    logger.warning(
                        "the chain of slot %s breaks at %s of the timer log", self.time_ms, position
                    )
                self._position = -1
                return
            if unit.is_delete and not unit.is_rolled:
                self._deletes.append(position)
            else:
                self._positions.append(position)
            self._position = unit.previous_position if unit.previous_position < position else -1

    def next_delete(self) -> Unit | None:
        """Take out a mark that deletes; None when all are out."""
        unit = self._last(self._deletes)
        if unit is not None:
            self._deletes.pop()
        return unit

    def next(self) -> Unit | None:
        """The next message in the order of arrival, until :meth:`done`; None at the end."""
        return self._last(self._positions)

    def done(self) -> None:
        """The message that :meth:`next` returned is delivered."""
        self._positions.pop()

    def _last(self, positions: array[int]) -> Unit | None:
        """The unit at the last of some positions; those that expired meanwhile are left out."""
        while positions:
            unit = self._log.read(positions[-1])
            if unit is not None:
                return unit
            positions.pop()
        return None
