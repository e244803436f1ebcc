"""Frames that differ in a few values: what is the same in all of them is encoded once.

Hot. The answers to sends and pulls are most of what a broker writes. Encoding a header field by
field costs more than everything else that is done to word them. So an example is encoded with marks
in place of the values, and from then on the values are formatted into its bytes::

    template = FrameTemplate(example, {"<offset>": "%d"})
    frame = template.frame((17,), b"body")

Only values whose JSON needs no escape may be put in: numbers, and texts of letters and digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skylark.core.errors import LocalProtocolError
from skylark.wire.command import Command
from skylark.wire.frame import FRAME_SIZE_MAX, PREFIX
from skylark.wire.header_json import encode_json_header

#: The ``opaque`` of an example: it is the last value of each template.
OPAQUE_MARK: Final = 1 << 30
_pack_prefix = PREFIX.pack


class FrameTemplate:
    """A frame with a JSON header in which some values are yet to come."""

    __slots__ = ("_form",)

    def __init__(self, example: Command, forms: Mapping[str, str]) -> None:
        """``example``, which gets another ``opaque``: marks stand for values, in their order.

        ``forms`` tells for each mark how its value is to be formatted, as ``bytes % values`` does.
        """
        example.opaque = OPAQUE_MARK
        text = encode_json_header(example).decode().replace("%", "%%")
        end = len(text)
        # From behind: what comes first in an example may be somebody's text that looks like a mark.
        for mark, form in reversed((*forms.items(), (str(OPAQUE_MARK), "%d"))):
            end, mark_end = text.rfind(mark, 0, end), end
            if end < 0:
                raise ValueError(f"{mark} is not in {text[:mark_end]}")
            text = text[:end] + form + text[end + len(mark) :]
        self._form = text.encode()

    def frame(self, values: tuple[int | bytes, ...], body: bytes | memoryview = b"") -> bytes:
        """The frame with these values, of which the last is the ``opaque``."""
        header = self._form % values
        header_size = len(header)
        size = 4 + header_size + len(body)
        if size + 4 > FRAME_SIZE_MAX:
            raise LocalProtocolError(f"a frame of {size + 4} bytes exceeds {FRAME_SIZE_MAX}")
        return b"".join((_pack_prefix(size, header_size), header, body))
