"""Pages of large tables, for requests 21 (topics) and 201 (subscription groups).

The caller names the version of the table that it is reading, the number of the first entry it
wants, and how many entries. Entries are numbered in the order of their names. If the table has
another version by now, or the caller names none, the page begins at the first entry: the caller
sees the new version in the reply and starts again. The reply also has the number of all entries.

A caller that gives none of the three gets the whole table, and with ``enableSplitMetadata=false``
every caller does.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from skylark.core.errors import RemoteProtocolError
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.fastjson import decode_body


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a table a caller wants."""

    seq: int | None = None
    data_version: str | None = None  # a DataVersion as JSON, or blank
    count: int | None = None

    @property
    def is_whole(self) -> bool:
        return self.seq is None and self.data_version is None and self.count is None


def page_of(
    names: Collection[str], version: DataVersion, request: PageRequest, *, count_max: int
) -> list[str]:
    """The names on the page, in order."""
    first = max(0, request.seq or 0) if _same_version(request.data_version, version) else 0
    count = count_max if request.count is None else max(0, min(request.count, count_max))
    return sorted(names)[first : first + count]


def _same_version(text: str | None, version: DataVersion) -> bool:
    if text is None or not text.strip():
        return False
    try:
        return decode_body(DataVersion, text.encode("utf-8", "replace")) == version
    except RemoteProtocolError:
        return False  # not a version at all
