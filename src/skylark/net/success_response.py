"""Answers that name server and broker give alike."""

from __future__ import annotations

from typing import Final

from skylark.wire.bodies.common_body import Body
from skylark.wire.codes import ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from skylark.wire.fields import Header, encode_ext

#: The remark of a Java answer whose handler forgot to clear it.
UNSET_REMARK: Final = "not set any response code"
#: What Java adds to remarks that its FAQ explains.
FAQ_HINT: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def success(
    request: Command,
    *,
    header: Header | None = None,
    body: Body | None = None,
    remark: str | None = None,
) -> Command:
    """The request was done; with a typed header and a JSON body, where it has them."""
    return response_to(
        request,
        ResponseCode.SUCCESS,
        remark,
        ext=None if header is None else encode_ext(header),
        body=None if body is None else encode_body(body),
    )
