"""Binary headers that look like one that came before are read in one step.

A client sends the same fields in the same order again and again; most values keep their length, and
many stay the same altogether: the group, the topic, flags. So where the values stand is learned
from a header that was walked entry by entry, and kept under its code and size::

    fixed part | ext size, "a", length, value, "b", length | value | "c", length, value, "d", ...
                 ^ must be the same                          ^ was seen to change

The next header of that code and size is cut at these places by one ``unpack``. If everything but
the values that change is what it was, the walk would find the same boundaries: what was cut out is
right, whatever it is. If not, the header is walked. Either it has the same boundaries, then more of
its values change than was known; or its layout is learned as another one.

Headers whose entries do not make a map one by one (a name twice, a null) are never learned.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

#: Layouts of headers with the same code and size; with more, the one learned first is forgotten.
ALIKE_MAX: Final = 4
#: Codes and sizes in all; with more, everything is forgotten.
KEYS_MAX: Final = 1_024
#: Headers with more entries, or longer ones, are rare enough to be walked.
ENTRIES_MAX: Final = 32
HEADER_SIZE_MAX: Final = 4_096

#: Start and end of each value in a header, by its name, in order.
Places: TypeAlias = dict[str, tuple[int, int]]

_EXT_SIZE_AT: Final = 17
_decode = bytes.decode


class Layout:
    """Where the values of a header stand, which of them change, and all that does not."""

    __slots__ = ("_changing", "_cut", "_ext", "_same", "names", "places", "readers", "size")

    def __init__(self, header: bytes, ext: dict[str, str], places: Places) -> None:
        self.places = places
        self.size = len(header)
        #: Ways to read headers of this layout, by type of the custom header: whoever has found one
        #: keeps it here.
        self.readers: dict[type, Any] = {}
        self._ext = ext
        self._changing: frozenset[str] = frozenset()
        self._prepare(header)

    def _prepare(self, header: bytes) -> None:
        pieces = []
        position = _EXT_SIZE_AT
        for name, (start, end) in self.places.items():
            if name in self._changing:
                pieces.append(f"{start - position}s{end - start}s")
                position = end
        pieces.append(f"{len(header) - position}s")
        self._cut = struct.Struct(f">{_EXT_SIZE_AT}x{''.join(pieces)}").unpack
        self._same = self._cut(header)[::2]
        #: Names of the values that change, in their order.
        self.names = [name for name in self.places if name in self._changing]

    def read(self, header: bytes) -> tuple[str, ...] | None:
        """The values of ``names`` in a header of the same size; None if more of it is different.

        Raises UnicodeDecodeError.
        """
        pieces = self._cut(header)
        if pieces[::2] != self._same:
            return None
        return tuple(map(_decode, pieces[1::2]))

    def ext(self, values: Sequence[str]) -> dict[str, str]:
        """The ext map of a header with these values of ``names``."""
        ext = self._ext.copy()
        ext.update(zip(self.names, values, strict=True))
        return ext

    def changed(self, header: bytes, ext: dict[str, str]) -> Layout:
        """What this one and a header with the same boundaries have in common."""
        layout = Layout(header, ext, self.places)
        layout._changing = self._changing | {
            name for name, value in ext.items() if self._ext[name] != value
        }
        layout._prepare(header)
        return layout


class Layouts:
    """What was learned so far, from all connections of the process."""

    def __init__(self) -> None:
        self._by_key: dict[int, tuple[Layout, ...]] = {}

    def read(self, header: bytes, code: int) -> tuple[Layout, tuple[str, ...]] | None:
        """The layout of a header without a remark and the values of its names, if it is known."""
        for layout in self._by_key.get(len(header) << 16 | code & 0xFFFF, ()):
            values = layout.read(header)
            if values is not None:
                return layout, values
        return None

    def learn(self, header: bytes, code: int, ext_at: int, ext: dict[str, str]) -> None:
        """A header was walked: its entries fill it from ``ext_at`` on, and are those of ``ext``."""
        if len(header) > HEADER_SIZE_MAX or len(ext) > ENTRIES_MAX:
            return
        places: Places = {}
        position = ext_at
        for name, value in ext.items():
            start = position + 6 + len(name.encode())
            position = start + len(value.encode())
            places[name] = (start, position)
        if position != len(header):
            return
        key = len(header) << 16 | code & 0xFFFF
        if len(self._by_key) >= KEYS_MAX and key not in self._by_key:
            self._by_key.clear()
        known = self._by_key.get(key, ())
        for layout in known:
            if layout.places == places:  # and so are the names: they fill what is between
                others = tuple(each for each in known if each is not layout)
                self._by_key[key] = (layout.changed(header, ext.copy()), *others)
                return
        self._by_key[key] = (*known[1 - ALIKE_MAX :], Layout(header, ext.copy(), places))
