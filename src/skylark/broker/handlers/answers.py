"""Answers that many handlers give."""

from __future__ import annotations

from typing import Any, Final

from skylark.broker.persist import SavedTable
from skylark.core.errors import BrokerError, StoreError
from skylark.wire.bodies.common import Body
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


async def until_saved(*tables: SavedTable[Any]) -> None:
    """Hold an answer until the disk has what it acknowledges; raises BrokerError if it cannot."""
    try:
        for table in tables:
            await table.written()
    except StoreError as error:
        raise not_saved(error) from error


def not_saved(error: StoreError) -> BrokerError:
    """The answer to a change that was made in memory only; the cause is logged by whoever saves."""
    return BrokerError(f"the change holds until restart, it could not be saved: {error}")
