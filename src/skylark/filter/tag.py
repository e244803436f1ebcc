"""Filters by tag: ``TagA || TagB``, or ``*`` for every message.

A broker knows of a tag only its 32-bit hash, which stands in the consume queue. It lets through
every message whose hash is among those of the subscription, unrelated tags with an equal hash
included; the consumer compares the tags themselves (:meth:`TagFilter.matches_tag`).

The queue's field has 64 bits. Java compares the lower 32, and so do we: in the queue of delayed
messages, where a due time stands instead of a hash, any number may come along.

Answers to Java's ``FilterAPI`` and ``ExpressionMessageFilter.isMatchedByConsumeQueue``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from skylark.core.hashing import java_hash
from skylark.filter.errors import FilterSyntaxError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SUBSCRIBE_ALL: Final = "*"
TAG_EXPRESSION_SIZE_MAX: Final = 64 * 1024  # characters

_SEPARATOR: Final = "||"
_TRIMMED: Final = "".join(map(chr, range(0x21)))  # what String.trim cuts off
_CODES_COMPARED_MAX: Final = 4  # above, one binary search beats comparing with each code


class TagFilter:
    """Which tags a subscription wants; ``codes`` is ``None`` if it wants all messages."""

    __slots__ = ("_sorted_codes", "codes", "tags")

    def __init__(self, codes: Iterable[int] | None, tags: Iterable[str] = ()) -> None:
        self.codes = None if codes is None else frozenset(codes)
        self.tags = tuple(dict.fromkeys(tags))  # in the order given, without repetitions
        self._sorted_codes: NDArray[np.int32] | None = None

    def __repr__(self) -> str:
        return f"<TagFilter {'*' if self.codes is None else sorted(self.codes)}>"

    @classmethod
    def of_subscription(cls, sub_string: str, code_set: Iterable[int]) -> TagFilter:
        """The filter of what a client says in its heartbeat: the hashes are as it computed them."""
        return cls(None if sub_string == SUBSCRIBE_ALL else code_set)

    def matches(self, tags_code: int) -> bool:
        """Whether the queue entry with this tags code passes."""
        codes = self.codes
        return codes is None or tags_code in codes or _low_int(tags_code) in codes

    def mask(self, tags_codes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """:meth:`matches` of many entries at once, in any byte order."""
        import numpy as np

        if self.codes is None:
            return np.ones(len(tags_codes), np.bool_)
        low = tags_codes.astype(np.int32)
        passed: NDArray[np.bool_]
        if len(self.codes) > _CODES_COMPARED_MAX:
            if self._sorted_codes is None:
                self._sorted_codes = np.array(sorted(self.codes), np.int32)
            codes = self._sorted_codes
            passed = codes.take(codes.searchsorted(low), mode="clip") == low
            return passed
        passed = np.zeros(len(low), np.bool_)
        for code in self.codes:
            passed |= low == code
        return passed

    def matches_tag(self, tag: str | None) -> bool:
        """Whether a message with this tag is wanted: the consumer's check, free of collisions."""
        return not self.tags or tag in self.tags


def parse_tags(expression: str | None) -> TagFilter:
    """The filter of a tag expression; nothing, an empty one and ``*`` want all messages.

    Only separators are a :class:`FilterSyntaxError`; only blanks between them want nothing.
    """
    if not expression or expression == SUBSCRIBE_ALL:
        return TagFilter(None)
    if len(expression) > TAG_EXPRESSION_SIZE_MAX:
        raise FilterSyntaxError(
            f"a tag expression of {len(expression)} characters",
            position=TAG_EXPRESSION_SIZE_MAX,
            hint=f"at most {TAG_EXPRESSION_SIZE_MAX} are allowed",
        )
    parts = expression.split(_SEPARATOR)
    if not any(parts):
        raise FilterSyntaxError("no tag", hint="write tags as in TagA || TagB, or * for all")
    tags = [tag for part in parts if (tag := part.strip(_TRIMMED))]
    return TagFilter(map(java_hash, tags), tags)


def _low_int(number: int) -> int:
    """``(int) number`` of Java."""
    return ((number + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000
