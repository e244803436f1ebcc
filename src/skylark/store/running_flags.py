"""Running flags: whether the store is readable and writeable now, and why not.

Bits as in Java's ``RunningFlags``, because admin tools show the number. A store with any bit but
NOT_READABLE and INDEX_ERROR refuses puts; entries of the derived files are still made for records
that are in the log.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class StoreFlag(enum.IntFlag):
    """Reasons not to read or write."""

    NOT_READABLE = 1
    NOT_WRITEABLE = 2
    LOGICS_ERROR = 4  # entries of consume queues cannot be written
    INDEX_ERROR = 8
    DISK_FULL = 16
    FENCED = 32
    LOGIC_DISK_FULL = 64


_BLOCK_WRITES: Final = int(
    StoreFlag.NOT_WRITEABLE
    | StoreFlag.LOGICS_ERROR
    | StoreFlag.DISK_FULL
    | StoreFlag.FENCED
    | StoreFlag.LOGIC_DISK_FULL
)


class RunningFlags(msgspec.Struct):
    """The bits, and the two answers that every message needs."""

    bits: int = 0
    readable: bool = True
    writeable: bool = True

    def set(self, flag: StoreFlag, on: bool = True) -> bool:
        """Set or clear a bit; return whether that changed anything."""
        bits = self.bits | flag if on else self.bits & ~flag
        changed = bits != self.bits
        self.bits = int(bits)
        self.readable = not bits & StoreFlag.NOT_READABLE
        # An index that is behind does not lose messages: it catches up from the log.
        self.writeable = not bits & _BLOCK_WRITES
        return changed

    def has(self, flag: StoreFlag) -> bool:
        return bool(self.bits & flag)
