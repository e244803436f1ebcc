"""Encodes large JSON objects in chunks, so that the event loop can do other work in between.

A broker with ten thousand topics has answers of many megabytes. They are encoded a few hundred
entries at a time, so that messages do not wait for them::

    table = ObjectPieces(clock)
    for queue in queues:
        await table.put(queue, offsets_of(queue))       # yields every PER_TURN entries
    body = b'{"offsetTable":' + table.encode() + b"}"

A caller that reads a table of the broker meanwhile iterates over a copy of its keys: the table may
change at each turn, and deleted entries are skipped.
"""

from __future__ import annotations

from typing import Any, Final

from skylark.core.clock import Clock
from skylark.wire.fastjson import encode_body

#: Entries per turn of the event loop: about a millisecond of work.
PER_TURN: Final = 256


class ObjectPieces:
    """One JSON object; the values must not change after ``put``."""

    def __init__(self, clock: Clock, *, per_turn: int = PER_TURN) -> None:
        self._clock = clock
        self._per_turn = per_turn
        self._entries: dict[Any, Any] = {}  # put, not encoded yet
        self._pieces: list[bytes] = []

    async def put(self, key: Any, value: Any) -> None:
        """Add an entry; keys may be text, numbers or queues, as in all bodies."""
        self._entries[key] = value
        if len(self._entries) >= self._per_turn:
            self._encode_entries()
            await self._clock.sleep(0)

    def encode(self) -> bytes:
        """The whole object."""
        self._encode_entries()
        return b"{" + b",".join(self._pieces) + b"}"

    def _encode_entries(self) -> None:
        if self._entries:
            self._pieces.append(encode_body(self._entries)[1:-1])
            self._entries = {}
