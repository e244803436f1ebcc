"""Options of a single send, and the message properties that they set.

The client only sets the properties; the broker decides when to deliver. A *delay level* is one of
the broker's fixed delays (by default 18, from 1 s to 2 h); any other time needs a broker with a
timer wheel (5.x).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

from skylark.client.core.argument_checks import describe, refused, unknown_keyword
from skylark.client.core.client_options import Duration, seconds
from skylark.client.producer.queue_selector import Selector, ShardKey
from skylark.core.errors import ClientError, InvalidMessageError
from skylark.wire import properties as names
from skylark.wire.bodies.common_body import MessageQueue

_HANDLE_ITEMS_MIN: Final = 5


class SendKeywords(TypedDict, total=False):
    """The options of a single send."""

    queue: MessageQueue | None  #: send to this queue; one attempt
    selector: Selector | None  #: chooses the queue; one attempt
    selector_arg: Any  #: the third argument of the selector
    shard: ShardKey | None  #: equal keys go to the same queue; one attempt
    delay: Duration | None  #: deliver after this time
    delay_level: int | None  #: deliver after the time of this delay level
    deliver_at: datetime | None  #: deliver at this time
    timeout: Duration | None  #: for all attempts together


#: The types of their values.
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "queue": (MessageQueue,),
    "selector": (object,),
    "selector_arg": (object,),
    "shard": (object,),
    "delay": (int, float, timedelta),
    "delay_level": (int,),
    "deliver_at": (datetime,),
    "timeout": (int, float, timedelta),
}


def check_keywords(how: SendKeywords) -> None:
    """Raise TypeError for an unknown keyword: a misspelt delay must not be ignored.

    Raises ClientError for a value of the wrong type.
    """
    for name, value in how.items():
        kinds = _KINDS.get(name)
        if kinds is None:
            raise unknown_keyword("a send", name, _KINDS)
        if value is not None and not isinstance(value, kinds):
            raise refused(name, value, " or ".join(describe(kind) for kind in kinds))


def with_shard(properties: dict[str, str] | None, shard: str | None) -> dict[str, str] | None:
    """The properties with the sharding key, if there is one."""
    if shard is None:
        return properties
    return {**(properties or {}), names.PROPERTY_SHARDING_KEY: shard}


def delay_properties(how: SendKeywords) -> dict[str, str] | None:
    """The properties of a delayed delivery; None without one."""
    delay, level, at = how.get("delay"), how.get("delay_level"), how.get("deliver_at")
    if (delay is not None) + (level is not None) + (at is not None) > 1:
        raise InvalidMessageError("give one of delay, delay_level and deliver_at")
    if delay is not None:
        if seconds(delay) < 0:
            raise InvalidMessageError(f"a delay of {delay} is in the past")
        return {names.PROPERTY_TIMER_DELAY_MS: str(round(seconds(delay) * 1000))}
    if level is not None:
        if level < 1:
            raise InvalidMessageError(f"delay levels begin with 1, not {level}")
        return {names.PROPERTY_DELAY: str(level)}
    if at is not None:
        return {names.PROPERTY_TIMER_DELIVER_MS: str(round(at.timestamp() * 1000))}
    return None


def broker_of_handle(handle: str) -> str:
    """The broker name in a recall handle; raises ClientError for an invalid handle."""
    try:
        text = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode()
    except (ValueError, binascii.Error):
        text = ""
    items = text.split(" ")
    if len(items) < _HANDLE_ITEMS_MIN or items[0] != "v1" or not items[2]:
        raise ClientError("recall handle is invalid")
    return items[2]
