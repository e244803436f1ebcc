"""Byte layouts of the timer's files. All numbers are big-endian and signed.

``timerwheel``: one file of slots, each for the messages of one precision unit (a second)::

    slot, 32 bytes    time / precision 8 | first position 8 | last position 8 | count 4 | magic 4

The slot of a time is number ``time / precision % SLOT_COUNT``: two weeks of seconds, so that a time
in the past week and one in the next week never share a slot. A slot is valid only for the time that
it contains. Slots are not cleared: the next round of the wheel overwrites them.

``timerlog/``: files of units, one per message, chained from the last one of a slot to the first::

    unit, 52 bytes    size 4 (52) | previous position 8 (-1: none) | magic 4 | write time 8
                      | slot time - write time 4 | log offset 8 | record size 4
                      | hash of the real topic 4 | reserved 8
    end of a file     bytes to the end 4 | 0 (8) | BLANK_MAGIC 4

``config/timercheck``: 4096 bytes, seven longs
(:class:`skylark.wire.bodies.slave_sync_body.TimerCheckpoint`).

Counterpart of the layouts of Java's ``TimerWheel``, ``Slot``, ``TimerLog`` and ``TimerCheckpoint``.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

WHEEL_NAME: Final = "timerwheel"
LOG_DIRECTORY: Final = "timerlog"
CHECKPOINT_NAME: Final = "timercheck"
CHECKPOINT_FILE_SIZE: Final = 4096

SLOT: Final = Struct(">qqqii")  # time in units of the precision, first, last, count, magic
SLOT_SIZE: Final = 32
SLOT_COUNT: Final = 2 * 7 * 86_400
#: Magic of a slot that is done although its time is not over: the clock was set back. Java ignores
#: the magic of slots.
SLOT_DONE: Final = 0x646F6E65

UNIT: Final = Struct(">iqiqiqiiq")  # see above
UNIT_SIZE: Final = 52
BLANK: Final = Struct(">iqi")  # bytes to the end of the file, 0, BLANK_MAGIC
BLANK_SIZE: Final = 16
BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)
NO_POSITION: Final = -1

#: Bits of a unit's magic: always set; roll when due; deletes another message.
MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
MAGIC_DELETE: Final = 4
MAGIC_MASK: Final = 0xF

assert SLOT.size == SLOT_SIZE
assert UNIT.size == UNIT_SIZE
assert BLANK.size == BLANK_SIZE


def last_unit_position(file_size: int) -> int:
    """Position of the last unit of a full file: behind it, no unit with a blank would fit."""
    return (file_size - BLANK_SIZE) // UNIT_SIZE * UNIT_SIZE - UNIT_SIZE


@cache
def slot_dtype() -> np.dtype[Any]:
    """A slot as a numpy record."""
    import numpy as np

    dtype = np.dtype(
        [("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")]
    )
    assert dtype.itemsize == SLOT_SIZE
    return dtype


@cache
def unit_dtype() -> np.dtype[Any]:
    """A unit as a numpy record."""
    import numpy as np

    dtype = np.dtype(
        [
            ("size", ">i4"),
            ("previous", ">i8"),
            ("magic", ">i4"),
            ("write_time", ">i8"),
            ("delay", ">i4"),
            ("log_offset", ">i8"),
            ("record_size", ">i4"),
            ("topic_hash", ">i4"),
            ("reserved", ">i8"),
        ]
    )
    assert dtype.itemsize == UNIT_SIZE
    return dtype
