"""What the views should hold of the records of a slice, worked out from the records alone.

The checker compares views with this. It shares the rule for tags codes with the store
(:class:`skylark.store.reput.TagsCodes`), but takes the keys of the index from the text of the
properties in the plainest way, and not from the store's quick one: a mistake there must not hide
itself.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from skylark.core.hashing import index_key_hash, java_hash, java_hash_continue
from skylark.core.names import SCHEDULE_TOPIC
from skylark.store.reput import TagsCodes
from skylark.wire.layout import FLAG_TRANSACTION_MASK, FLAG_TRANSACTION_ROLLBACK
from skylark.wire.property_scan import scan_properties
from skylark.wire.record_scan import RecordColumns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class RecordTexts:
    """Topics, tags and keys of the records of a slice, one element for each record."""

    def __init__(self, columns: RecordColumns, tags_codes: TagsCodes) -> None:
        import numpy as np

        self.columns = columns
        self._tags_codes = tags_codes
        self._items = scan_properties(columns)
        names: dict[bytes, int] = {}
        starts = columns.topic_start.tolist()
        ends = (columns.topic_start + columns.topic_size).tolist()
        buffer = columns.buffer
        self.topic_numbers = np.array(
            [
                names.setdefault(bytes(buffer[start:end]), len(names))
                for start, end in zip(starts, ends, strict=True)
            ],
            np.int64,
        )
        #: The topic of each number.
        self.names = [name.decode("utf-8", "replace") for name in names]

    def values(self, name: str) -> list[bytes | None]:
        """A property of each record; None where it has none."""
        start, size = self._items.column(name)
        buffer = self.columns.buffer
        spans = zip(start.tolist(), (start + size).tolist(), strict=True)
        return [bytes(buffer[first:last]) if last > first else None for first, last in spans]

    def properties(self, row: int) -> bytes:
        """The property string of one record."""
        start = int(self.columns.properties_start[row])
        return bytes(self.columns.buffer[start : start + int(self.columns.properties_size[row])])

    @cached_property
    def tags(self) -> list[bytes | None]:
        """The property TAGS of each record."""
        return self.values("TAGS")

    @cached_property
    def tags_codes(self) -> npt.NDArray[np.int64]:
        """What the queue entry of each record has as its tags code."""
        import numpy as np

        codes = self._tags_codes.of_tags(self.tags)
        if SCHEDULE_TOPIC in self.names:
            delayed = self.topic_numbers == self.names.index(SCHEDULE_TOPIC)
            for row in np.flatnonzero(delayed).tolist():
                stored = int(self.columns.store_timestamp[row])
                codes[row] = self._tags_codes.of(
                    SCHEDULE_TOPIC, self.tags[row], self.properties(row), stored
                )
        return np.array(codes, np.int64)

    def key_hashes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """All index entries in their order: the row of the record, and the hash of the key."""
        import numpy as np

        kinds = (self.columns.sys_flag & FLAG_TRANSACTION_MASK).tolist()
        prefixes = [java_hash(f"{name}#") for name in self.names]
        texts = zip(
            kinds,
            self.topic_numbers.tolist(),
            self.values("UNIQ_KEY"),
            self.values("KEYS"),
            self.tags,
            strict=True,
        )
        rows: list[int] = []
        hashes: list[int] = []
        tag_hashes: dict[tuple[int, bytes], int] = {}  # the same few all the time
        for row, (kind, topic_number, unique_id, keys, tag) in enumerate(texts):
            if kind == FLAG_TRANSACTION_ROLLBACK:
                continue
            words = [] if unique_id is None else [unique_id.decode("utf-8", "replace")]
            if keys is not None:
                words += [word for word in keys.decode("utf-8", "replace").split(" ") if word]
            prefix = prefixes[topic_number]
            hashes += [index_key_hash(java_hash_continue(prefix, word)) for word in words]
            if tag is not None:
                tag_hash = tag_hashes.get((topic_number, tag))
                if tag_hash is None:
                    text = "T#" + tag.decode("utf-8", "replace")
                    tag_hash = index_key_hash(java_hash_continue(prefix, text))
                    tag_hashes[topic_number, tag] = tag_hash
                hashes.append(tag_hash)
            rows += [row] * (len(words) + (tag is not None))
        return np.array(rows, np.int64), np.array(hashes, np.int64)
