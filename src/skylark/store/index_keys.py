"""Reads the properties that the derived files need from property strings: TAGS, UNIQ_KEY and KEYS.

Messages that arrive together usually come from one producer, and their property strings differ only
in the last digits of the unique id::

    TAGS 1 TagA 2 UNIQ_KEY 1 7F0000010A2B18B4AAC2A4D2AEFD | 70115 | 2 WAIT 1 true 2
    =============================== head ==================|ending|==== foot =======

(``1`` and ``2`` are the bytes between a name and its value and after an item.) Then it is enough
to read one of them: :func:`alike_ids` checks for this case. An ending without a byte 2 cannot begin
an item, so every item of one string is an item of all.

The same holds if other values differ too, but not in size, and are not indexed: half messages and
their final messages have a number and their unique id once more.

Java reads the properties of each record into a map (``CommitLog.checkMessageAndReturnSize``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from skylark.core.hashing import ID_ENDING_SIZE
from skylark.wire.properties import find_by_needle, needle_of

_TAGS: Final = needle_of(b"TAGS")
_KEYS: Final = needle_of(b"KEYS")
_UNIQ_KEY: Final = needle_of(b"UNIQ_KEY")
_SEPARATOR: Final = b"\x02"
_VALUE: Final = b"\x01"
_INDEXED: Final = (b"TAGS", b"UNIQ_KEY", b"KEYS")
_VALUES_COUNT_MIN: Final = 64  # strings from which on their values are compared by column


#: TAGS, UNIQ_KEY and KEYS of one record; None where there is no such property, or an empty one.
#: Not a class: one is made for every message.
IndexedValues: TypeAlias = tuple[bytes | None, bytes | None, bytes | None]


class AlikeIds(NamedTuple):
    """The unique ids of records whose other indexed properties are equal."""

    common: bytes  # common prefix
    endings: bytes  # joined; the last ID_ENDING_SIZE characters of each, all of them ASCII

    def ids(self) -> list[bytes]:
        """The unique ids, in order."""
        starts = range(0, len(self.endings), ID_ENDING_SIZE)
        return [self.common + self.endings[at : at + ID_ENDING_SIZE] for at in starts]


def indexed_values(properties: bytes) -> IndexedValues:
    """The three properties, as :func:`find_by_needle` finds them, but faster.

    The last occurrence of a property counts, unless it is empty: then an earlier one may.
    """
    text = _SEPARATOR + properties  # so that the first item is found like any other
    tags = unique_id = keys = None
    _, found, rest = text.rpartition(_UNIQ_KEY)
    if found:
        unique_id = rest.partition(_SEPARATOR)[0] or find_by_needle(text, _UNIQ_KEY)
    _, found, rest = text.rpartition(_TAGS)
    if found:
        tags = rest.partition(_SEPARATOR)[0] or find_by_needle(text, _TAGS)
    _, found, rest = text.rpartition(_KEYS)
    if found:
        keys = rest.partition(_SEPARATOR)[0] or find_by_needle(text, _KEYS)
    return tags, unique_id, keys


def alike_ids(property_strings: Sequence[bytes]) -> AlikeIds | None:
    """The unique ids, if the strings differ only in the last characters of these.

    Many strings may also differ in values that are not indexed; these are ASCII then, and no string
    has another item than the first.
    """
    first = property_strings[0]
    start = (_SEPARATOR + first).rfind(_UNIQ_KEY) - 1 + len(_UNIQ_KEY)
    end = first.find(_SEPARATOR, start)
    if end < 0:
        end = len(first)
    cut = end - ID_ENDING_SIZE
    if start < len(_UNIQ_KEY) - 1 or cut < start or len(set(map(len, property_strings))) > 1:
        return None
    head, foot, common = first[:cut], first[end:], first[start:cut]
    endings = [properties[cut:end] for properties in property_strings]
    joined, whole = b"".join(endings), b"".join(property_strings)
    if head + (foot + head).join(endings) + foot != whole and (
        len(endings) < _VALUES_COUNT_MIN or not _differ_in_values(first, whole, cut, end)
    ):
        return None
    if _SEPARATOR in joined or not joined.isascii() or not common.isascii():
        return None
    return AlikeIds(common, joined)


def _differ_in_values(first: bytes, whole: bytes, cut: int, end: int) -> bool:
    """Whether strings, joined in ``whole``, differ from the first in values that are not indexed.

    What is between ``cut`` and ``end`` does not count.
    """
    import numpy as np

    fixed = np.ones(len(first), np.bool_)
    position = 0
    for item in first.split(_SEPARATOR):
        name, found, _ = item.partition(_VALUE)
        if found and name not in _INDEXED:
            fixed[position + len(name) + 1 : position + len(item)] = False
        position += len(item) + 1
    strings = np.frombuffer(whole, np.uint8).reshape(-1, len(first))
    differing = (strings != strings[0]).any(axis=0)
    differing[cut:end] = False
    values = strings[:, np.flatnonzero(differing)]
    return not (differing & fixed).any() and bool(((values > _SEPARATOR[0]) & (values < 128)).all())
