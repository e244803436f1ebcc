"""Layouts of binary headers: reads a header in one step if an earlier one had the same layout.

Part of :mod:`skylark.wire.command_codec`, its only user. A client sends the same fields in the same
order again and again; most values keep their length, and many do not change at all: group, topic,
flags. So a header that was decoded entry by entry leaves a :class:`Layout`, kept by code and size::

    fixed part | ext size, "a", length, value, "b", length | value | "c", length, value, "d", ...
                 ^ must be equal                             ^ was seen to change

The next header of that code and size is split at these positions by one ``unpack``. If everything
except the values that change is equal, an entry-by-entry decoder would find the same boundaries, so
the values are right. If not, the header is decoded entry by entry. Either it has the boundaries of
a known layout, and that layout gets more values that change; or it becomes a layout of its own.

Headers whose entries do not form a map one to one (a name twice, a null) get no layout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

#: Layouts with the same code and size; a further one replaces the oldest.
LAYOUTS_PER_KEY_MAX: Final = 4
#: Pairs of code and size; a further one clears the table.
KEYS_MAX: Final = 1_024
#: Headers with more entries, or longer ones, are rare enough to be decoded entry by entry.
ENTRIES_MAX: Final = 32
HEADER_SIZE_MAX: Final = 4_096

#: Start and end of each value in a header, by name, in order.
Boundaries: TypeAlias = dict[str, tuple[int, int]]

_EXT_SIZE_AT: Final = 17
_EXT_AT: Final = 21
_decode = bytes.decode


class Layout:
    """Where the values of a header are, which of them change, and the bytes that do not."""

    __slots__ = (
        "_changing",
        "_constant",
        "_ext",
        "_split",
        "boundaries",
        "names",
        "readers",
        "size",
    )

    def __init__(self, header: bytes, ext: dict[str, str], boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self.size = len(header)
        #: Cache of the user: how to build a custom header from the values, by its type.
        self.readers: dict[type, Any] = {}
        self._ext = ext
        self._changing: frozenset[str] = frozenset()
        self._prepare(header)

    def _prepare(self, header: bytes) -> None:
        pieces = []
        position = _EXT_SIZE_AT
        for name, (start, end) in self.boundaries.items():
            if name in self._changing:
                pieces.append(f"{start - position}s{end - start}s")
                position = end
        pieces.append(f"{len(header) - position}s")
        self._split = struct.Struct(f">{_EXT_SIZE_AT}x{''.join(pieces)}").unpack
        self._constant = self._split(header)[::2]
        #: Names of the values that change, in their order.
        self.names = [name for name in self.boundaries if name in self._changing]

    def match(self, header: bytes) -> tuple[str, ...] | None:
        """The values of ``names`` in a header of the same size; None if other bytes differ too.

        Raises UnicodeDecodeError.
        """
        pieces = self._split(header)
        if pieces[::2] != self._constant:
            return None
        return tuple(map(_decode, pieces[1::2]))

    def ext(self, values: Sequence[str]) -> dict[str, str]:
        """The ext map of a header with these values of ``names``."""
        ext = self._ext.copy()
        ext.update(zip(self.names, values, strict=True))
        return ext

    def widened(self, header: bytes, ext: dict[str, str]) -> Layout:
        """A layout for this one's headers and for one with the same boundaries."""
        layout = Layout(header, ext, self.boundaries)
        layout._changing = self._changing | {
            name for name, value in ext.items() if self._ext[name] != value
        }
        layout._prepare(header)
        return layout


class LayoutTable:
    """The layouts known to the process, from all its connections."""

    def __init__(self) -> None:
        self._by_key: dict[int, tuple[Layout, ...]] = {}

    def find(self, header: bytes, code: int) -> tuple[Layout, tuple[str, ...]] | None:
        """The layout of a header without a remark and the values of its names, if it is known.

        None also if a value is not UTF-8.
        """
        try:
            for layout in self._by_key.get(len(header) << 16 | code & 0xFFFF, ()):
                values = layout.match(header)
                if values is not None:
                    return layout, values
        except UnicodeDecodeError:
            pass
        return None

    def add(self, header: bytes, code: int, ext: dict[str, str]) -> None:
        """Remember the layout of a header without a remark that was decoded to this map."""
        if len(header) > HEADER_SIZE_MAX or len(ext) > ENTRIES_MAX:
            return
        boundaries: Boundaries = {}
        position = _EXT_AT
        for name, value in ext.items():
            start = position + 6 + len(name.encode())
            position = start + len(value.encode())
            boundaries[name] = (start, position)
        if position != len(header):
            return
        key = len(header) << 16 | code & 0xFFFF
        if len(self._by_key) >= KEYS_MAX and key not in self._by_key:
            self._by_key.clear()
        known = self._by_key.get(key, ())
        for layout in known:
            # Equal boundaries imply equal names: these fill the space between.
            if layout.boundaries == boundaries:
                others = tuple(each for each in known if each is not layout)
                self._by_key[key] = (layout.widened(header, ext.copy()), *others)
                return
        self._by_key[key] = (
            *known[1 - LAYOUTS_PER_KEY_MAX :],
            Layout(header, ext.copy(), boundaries),
        )
