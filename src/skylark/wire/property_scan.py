"""The properties of many records at once: the vectorised form of ``parse_properties``.

:func:`scan_properties` finds every property of every record of a scan
(:mod:`skylark.wire.record_scan`), block by block:

- Records of one producer mostly have the same form: the same size, the same names, the separators
  at the same places. If all records of a block have, only the first is parsed
  (:func:`_by_pattern`), and its positions are those of all others. Every byte of each record is
  compared for this.
- Else the property strings are joined by 0x02, so that one search finds every separator and no item
  crosses into the next record (:func:`_by_search`).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
import numpy as np

from skylark.wire.message import ReadBuffer
from skylark.wire.record_scan import Bools, Int64s, RecordColumns, gather, windows

Items: TypeAlias = tuple[Int64s, Int64s, Int64s, Int64s, Int64s]

# Records are taken in blocks whose separators and masks stay in the processor's cache.
_BLOCK: Final = 2048
_PADDING: Final = bytes(8)  # so that a word may be read anywhere in a joined string
# Equal names are looked for by comparing each item with so many neighbours.
_NEIGHBOURS_MAX: Final = 16
# Fewer records, or larger property strings, are not checked for being all of one form.
_PATTERN_COUNT_MIN: Final = 16
_PATTERN_SIZE_MAX: Final = 512


class PropertyItems(msgspec.Struct):
    """All properties of all records, in order; of equal names in a record only the last one.

    Names are compared as bytes: two different malformed names stay two, even if both decode to the
    same U+FFFD.
    """

    buffer: ReadBuffer
    record_count: int
    record: Int64s  # index of the record in its columns; never decreases
    name_start: Int64s
    name_size: Int64s
    value_start: Int64s
    value_size: Int64s

    def __len__(self) -> int:
        return len(self.record)

    def column(self, name: str) -> tuple[Int64s, Int64s]:
        """Start and size of the value of ``name`` for each record; size 0 where it has none."""
        raw = name.encode()
        start = np.zeros(self.record_count, np.int64)
        size = np.zeros(self.record_count, np.int64)
        found = np.flatnonzero(self.name_size == len(raw))
        names = windows(self.buffer, f"S{len(raw)}")[self.name_start[found]]
        found = found[names == raw]
        start[self.record[found]] = self.value_start[found]
        size[self.record[found]] = self.value_size[found]
        return start, size


def scan_properties(columns: RecordColumns) -> PropertyItems:
    """Find every property of every record, by the rules of :func:`parse_properties`."""
    count = len(columns)
    blocks = [_property_block(columns, first) for first in range(0, count, _BLOCK)]
    merged = [np.concatenate(parts) for parts in zip(*blocks, strict=True)]
    if not merged:
        merged = [np.empty(0, np.int64)] * 5
    return PropertyItems(columns.buffer, count, *merged)


def _property_block(columns: RecordColumns, first: int) -> Items:
    """The columns of :class:`PropertyItems` for the records from ``first`` on."""
    starts = columns.properties_start[first : first + _BLOCK].astype(np.int64, copy=False)
    sizes = columns.properties_size[first : first + _BLOCK].astype(np.int64, copy=False)
    found = _by_pattern(columns.buffer, starts, sizes) or _by_search(columns.buffer, starts, sizes)
    return (found[0] + first, *found[1:])


def _by_pattern(buffer: ReadBuffer, starts: Int64s, sizes: Int64s) -> Items | None:
    """The items of records that all have the form of the first; None if one has not."""
    count, size = len(starts), int(sizes[0])
    if count < _PATTERN_COUNT_MIN or not 0 < size <= _PATTERN_SIZE_MAX or (sizes != size).any():
        return None
    texts = gather(buffer, starts, size)
    pattern = texts[0]
    is_separator = pattern - 1 < 2
    _, name_start, name_size, value_start, value_size = _by_search(buffer, starts[:1], sizes[:1])
    # Outside the values every byte must be that of the first, and inside them every separator.
    fixed = np.full(size, 0xFF, np.uint8)
    for begin, length in zip((value_start - starts[0]).tolist(), value_size.tolist(), strict=True):
        fixed[begin : begin + length] = 0
    fixed[is_separator] = 0xFF
    if ((texts ^ pattern) & fixed).any() or ((texts - 1 < 2) != is_separator).any():
        return None
    record = np.repeat(np.arange(count), len(name_start))
    shift = starts - starts[0]
    return (
        record,
        np.add.outer(shift, name_start).ravel(),
        np.tile(name_size, count),
        np.add.outer(shift, value_start).ravel(),
        np.tile(value_size, count),
    )


def _by_search(buffer: ReadBuffer, starts: Int64s, sizes: Int64s) -> Items:
    """The items of any records."""
    ends = starts + sizes
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    joined = b"\x02".join([*[buffer[start:end] for start, end in spans], _PADDING])
    text = np.frombuffer(joined, np.uint8, len(joined) - len(_PADDING))

    separators = np.flatnonzero((text - 1) < 2)
    closes = text[separators] == 2  # 0x02 ends an item, 0x01 a name
    # A name ends at the first 0x01 after an 0x02; further ones belong to the value.
    opens = np.empty(len(separators), np.bool_)
    opens[0] = True
    opens[1:] = closes[:-1]
    index = np.flatnonzero(opens & ~closes)
    name_end = separators[index]
    name_start = separators[index - 1] + 1
    name_start[:1] *= index[:1] > 0  # nothing stands before the very first item
    value_end = separators[index + 1]
    if not closes[index + 1].all():  # a value with 0x01 in it: count the ends before it instead
        value_end = separators[closes][np.cumsum(closes)[index]]
    whole = (name_end > name_start) & (value_end > name_end + 1)
    if not whole.all():
        name_start, name_end, value_end = name_start[whole], name_end[whole], value_end[whole]

    joined_ends = np.cumsum(sizes + 1)
    counts = np.diff(np.searchsorted(name_end, joined_ends), prepend=0)
    record = np.repeat(np.arange(len(starts)), counts)
    kept = _last_of_equals(joined, record, counts, name_start, name_end)
    shift = np.repeat(ends + 1 - joined_ends, counts)  # from the joined string to the buffer
    items = (
        record,
        name_start + shift,
        name_end - name_start,
        name_end + 1 + shift,
        value_end - name_end - 1,
    )
    if kept is None:
        return items
    record, name_start, name_size, value_start, value_size = (item[kept] for item in items)
    return record, name_start, name_size, value_start, value_size


def _last_of_equals(
    joined: bytes, record: Int64s, counts: Int64s, name_start: Int64s, name_end: Int64s
) -> Bools | None:
    """Mask of the items that no later item of the same record and name replaces; None: all."""
    kept = np.ones(len(record), np.bool_)
    neighbours = int(counts.max(initial=0))
    if neighbours > _NEIGHBOURS_MAX:
        neighbours = _NEIGHBOURS_MAX
        _drop_in_long_records(joined, counts, name_start, name_end, kept)
    size = name_end - name_start
    # Size and four bytes of the name tell most names of a record apart.
    word = windows(joined, ">u4")[name_start].astype(np.int64)
    if neighbours and size.min() < 4:
        word >>= 8 * np.maximum(4 - size, 0)
    key = (record << 48) ^ (size << 32) ^ word
    for distance in range(1, neighbours):
        earlier = np.flatnonzero(key[:-distance] == key[distance:])
        if len(earlier):
            later = earlier + distance
            equal = _equal_names(joined, name_start[earlier], name_start[later], size[earlier])
            kept[earlier[equal & (size[earlier] == size[later])]] = False
    return None if kept.all() else kept


def _equal_names(joined: bytes, one: Int64s, other: Int64s, size: Int64s) -> Bools:
    """Whether ``size`` bytes from ``one`` and from ``other`` are the same, pair by pair."""
    words = windows(joined, ">u8")
    equal = np.ones(len(size), np.bool_)
    open_pairs = np.arange(len(size))
    offset = 0
    while len(open_pairs):
        beyond = np.maximum(8 - (size[open_pairs] - offset), 0).astype(np.uint64) * np.uint64(8)
        same = (words[one[open_pairs] + offset] ^ words[other[open_pairs] + offset]) >> beyond == 0
        equal[open_pairs[~same]] = False
        offset += 8
        open_pairs = open_pairs[same & (size[open_pairs] > offset)]
    return equal


def _drop_in_long_records(
    joined: bytes, counts: Int64s, name_start: Int64s, name_end: Int64s, kept: Bools
) -> None:
    ends = np.cumsum(counts)
    for index in np.flatnonzero(counts > _NEIGHBOURS_MAX).tolist():
        last: dict[bytes, int] = {}
        for item in range(int(ends[index] - counts[index]), int(ends[index])):
            name = joined[name_start[item] : name_end[item]]
            if name in last:
                kept[last[name]] = False
            last[name] = item
