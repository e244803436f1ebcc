"""One remoting command: a request or a response, as bit 0 of ``flag`` says.

The same class serves both header encodings. ``ext`` is the ``extFields`` map in its original order.
A binary header may hold what a map cannot (a key twice, a zero-length value); then ``ext_entries``
keeps the entries as they came, so that an unchanged command encodes to the bytes it was decoded
from. Counterpart of Java's ``RemotingCommand``.
"""

from __future__ import annotations

import enum

import msgspec

from skylark.wire.codes import CURRENT_VERSION
from skylark.wire.fields import HeaderT, Int32, decode_ext

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

SERIALIZE_JSON = 0
SERIALIZE_BINARY = 1


class SerializeType(enum.Enum):
    """The setting ``rocketmq.serialize.type``: header encoding of responses; both are read."""

    JSON = SERIALIZE_JSON
    ROCKETMQ = SERIALIZE_BINARY


class Command(msgspec.Struct, kw_only=True, gc=False):
    """A decoded frame. Field order is the order of the JSON header, which Java sorts by name."""

    code: Int32 = 0
    ext: dict[str, str] | None = msgspec.field(default=None, name="extFields")
    flag: Int32 = 0
    #: Name (``JAVA``); a number where the binary code has no name; None where JSON has no text
    language: str | int | None = "JAVA"
    opaque: Int32 = 0
    remark: str | None = None
    #: What the sender wrote into the JSON header; informative only, the type byte decides.
    serialize_label: str | None = msgspec.field(default=None, name="serializeTypeCurrentRPC")
    version: Int32 = 0

    # Not part of the JSON header. No regular client sends members of these names, and the decoder
    # overwrites what another one puts there.
    body: bytes | None = msgspec.field(default=None, name="(body)")
    serialize_type: int = msgspec.field(default=SERIALIZE_JSON, name="(serialize_type)")
    ext_entries: list[tuple[str | None, str | None]] | None = msgspec.field(
        default=None, name="(ext_entries)"
    )

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    def header(self, header_type: type[HeaderT]) -> HeaderT:
        """The custom header in ``ext``; raises HeaderFieldError as ``decode_ext`` does."""
        return decode_ext(header_type, self.ext)

    @property
    def memory_size(self) -> int:
        """About how many bytes of memory the command takes: body, remark and ext fields."""
        size = len(self.body or b"") + len(self.remark or "")
        if self.ext:
            size += sum(map(len, self.ext)) + sum(map(len, self.ext.values()))
        return size


def response_to(
    request: Command,
    code: int,
    remark: str | None = None,
    *,
    ext: dict[str, str] | None = None,
    body: bytes | None = None,
) -> Command:
    """A response that carries the request's ``opaque``."""
    return Command(
        code=code,
        flag=FLAG_RESPONSE,
        opaque=request.opaque,
        remark=remark,
        ext=ext,
        body=body,
        version=CURRENT_VERSION,
    )
