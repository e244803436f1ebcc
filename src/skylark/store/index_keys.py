"""Reads the properties that the derived files need from property strings: TAGS, UNIQ_KEY and KEYS.

Messages that arrive together usually come from one producer, and their property strings differ only
in the last digits of the unique id::

    TAGS 1 TagA 2 UNIQ_KEY 1 7F0000010A2B18B4AAC2A4D2AEFD | 70115 | 2 WAIT 1 true 2
    =============================== head ==================|ending|==== foot =======

(``1`` and ``2`` are the bytes between a name and its value and after an item.) Then it is enough
to read one of them: :func:`alike_ids` checks for this case. An ending without a byte 2 cannot begin
an item, so every item of one string is an item of all.

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


#: TAGS, UNIQ_KEY and KEYS of one record; None where there is no such property, or an empty one.
#: Not a class: one is made for every message.
IndexedValues: TypeAlias = tuple[bytes | None, bytes | None, bytes | None]


class AlikeIds(NamedTuple):
    """The unique ids of records whose property strings are otherwise equal."""

    common: bytes  # common prefix
    endings: bytes  # joined; the last ID_ENDING_SIZE characters of each, all of them ASCII


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
    """The unique ids, if the strings differ only in the last characters of these."""
    first = property_strings[0]
    start = (_SEPARATOR + first).rfind(_UNIQ_KEY) - 1 + len(_UNIQ_KEY)
    end = first.find(_SEPARATOR, start)
    if end < 0:
        end = len(first)
    cut = end - ID_ENDING_SIZE
    if start < len(_UNIQ_KEY) - 1 or cut < start:
        return None
    head, foot, common = first[:cut], first[end:], first[start:cut]
    endings = [properties[cut:end] for properties in property_strings]
    if len(set(map(len, property_strings))) > 1 or head + (foot + head).join(
        endings
    ) + foot != b"".join(property_strings):
        return None
    joined = b"".join(endings)
    if _SEPARATOR in joined or not joined.isascii() or not common.isascii():
        return None
    return AlikeIds(common, joined)
