"""What an application can say about a single send, and the properties that follow from it.

The client only sets the properties; when a message is delivered is the broker's business. A *level*
is one of the broker's fixed delays (by default 18 of them, from 1 s to 2 h); any other time needs a
broker with a timer wheel (5.x).
"""

from __future__ import annotations

import base64
import binascii
import math
from datetime import datetime
from typing import Any, Final, TypedDict

from skylark.client.options import Duration, seconds
from skylark.client.queue_choice import Selector, ShardKey
from skylark.core.errors import ClientError, InvalidMessageError
from skylark.wire import properties as names
from skylark.wire.bodies.common import MessageQueue

_HANDLE_ITEMS_MIN: Final = 5


class SendKeywords(TypedDict, total=False):
    """What can be said about a single send."""

    queue: MessageQueue | None  #: exactly there: one attempt
    selector: Selector | None  #: chooses the queue: one attempt
    selector_arg: Any  #: the third argument of the selector
    shard: ShardKey | None  #: equal keys have the same queue: one attempt
    delay: Duration | None  #: deliver so much later
    delay_level: int | None  #: deliver later by one of the broker's 18 levels
    deliver_at: datetime | None  #: deliver at this time
    timeout: Duration | None  #: for all attempts together


_KNOWN: Final = SendKeywords.__annotations__.keys()


def check_keywords(how: SendKeywords) -> None:
    """Raise TypeError for a keyword that is none: a misspelt delay must not be sent at once."""
    for name in how.keys() - _KNOWN:
        raise TypeError(f"got an unexpected keyword argument {name!r}")


def with_shard(properties: dict[str, str] | None, shard: str | None) -> dict[str, str] | None:
    """The properties with the sharding key, if there is one."""
    if shard is None:
        return properties
    return {**(properties or {}), names.PROPERTY_SHARDING_KEY: shard}


def delay_properties(how: SendKeywords) -> dict[str, str] | None:
    """Properties that say when to deliver; None for at once."""
    delay, level, at = how.get("delay"), how.get("delay_level"), how.get("deliver_at")
    if (delay is not None) + (level is not None) + (at is not None) > 1:
        raise InvalidMessageError("give one of delay, delay_level and deliver_at")
    if delay is not None:
        if not 0 <= seconds(delay) < math.inf:
            raise InvalidMessageError(f"a delay of {delay} is in the past, or never ends")
        return {names.PROPERTY_TIMER_DELAY_MS: str(round(seconds(delay) * 1000))}
    if level is not None:
        if level < 1:
            raise InvalidMessageError(f"delay levels begin with 1, not {level}")
        return {names.PROPERTY_DELAY: str(level)}
    if at is not None:
        return {names.PROPERTY_TIMER_DELIVER_MS: str(round(at.timestamp() * 1000))}
    return None


def broker_of_handle(handle: str) -> str:
    """The broker that keeps the message; raises ClientError for what is no handle."""
    try:
        text = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode()
    except (ValueError, binascii.Error):
        text = ""
    items = text.split(" ")
    if len(items) < _HANDLE_ITEMS_MIN or items[0] != "v1" or not items[2]:
        raise ClientError("recall handle is invalid")
    return items[2]
