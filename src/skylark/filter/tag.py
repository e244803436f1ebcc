"""Filters by tag: ``TagA || TagB``, or ``*`` for every message.

A broker filters by the 32-bit hash of the tag in the consume queue. A message whose tag has the
same hash as one of the subscription passes; the consumer compares the tags themselves
(:meth:`TagFilter.matches_tag`).

The field of the queue has 64 bits. Java compares the lower 32, and so do we: the queue of delayed
messages has a delivery time there instead of a hash, which may be any number.

Counterpart of Java's ``FilterAPI`` and ``ExpressionMessageFilter.isMatchedByConsumeQueue``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
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
    """The tags of a subscription; ``codes`` is ``None`` if it takes all messages."""

    __slots__ = ("_sorted_codes", "codes", "tags")

    def __init__(self, codes: Iterable[int] | None, tags: Iterable[str] = ()) -> None:
        self.codes = None if codes is None else frozenset(codes)
        self.tags = tuple(dict.fromkeys(tags))  # in the order given, without repetitions
        self._sorted_codes: NDArray[np.int32] | None = None

    def __repr__(self) -> str:
        return f"<TagFilter {'*' if self.codes is None else sorted(self.codes)}>"

    @classmethod
    def of_subscription(cls, sub_string: str, code_set: Iterable[int]) -> TagFilter:
        """The filter of a subscription in a heartbeat, with the hashes that the client computed."""
        return cls(None if sub_string == SUBSCRIBE_ALL else code_set)

    def matches(self, tags_code: int) -> bool:
        """Whether the queue entry with this tags code passes."""
        codes = self.codes
        return codes is None or tags_code in codes or low_int(tags_code) in codes

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
        """Whether a message with this tag passes: the consumer's check, without collisions."""
        return not self.tags or tag in self.tags


@lru_cache(maxsize=1024)  # applications use few tags, and send many messages with each
def is_selectable(tag: str) -> bool:
    """Whether a subscription can name this tag: :func:`parse_tags` would leave it as it is."""
    return bool(tag) and _SEPARATOR not in tag and tag == tag.strip(_TRIMMED)


def parse_tags(expression: str | None) -> TagFilter:
    """The filter of a tag expression; None, an empty one and ``*`` match all messages.

    Raises :class:`FilterSyntaxError` for separators only; blanks between separators match nothing.
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


def low_int(number: int) -> int:
    """``(int) number`` of Java."""
    return ((number + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000
