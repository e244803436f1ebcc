"""Builds the responses that name server, broker and client share: success, with header and body."""

from __future__ import annotations

from typing import Final

from skylark.wire.bodies.common_body import Body
from skylark.wire.codes import ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from skylark.wire.fields import Header, encode_ext

#: Remark of some successful responses of Java: its handlers do not clear the initial value.
UNSET_REMARK: Final = "not set any response code"
#: Java appends this to remarks that its FAQ explains.
FAQ_HINT: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def success(
    request: Command,
    *,
    header: Header | None = None,
    body: Body | None = None,
    remark: str | None = None,
) -> Command:
    """A response with code SUCCESS, an optional typed header and an optional JSON body."""
    return response_to(
        request,
        ResponseCode.SUCCESS,
        remark,
        ext=None if header is None else encode_ext(header),
        body=None if body is None else encode_body(body),
    )
