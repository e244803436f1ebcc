"""Attributes of topics and groups, and the text by which administrators change them.

A change is ``+key=value,-key``: ``+`` adds or replaces, ``-`` removes. In request bodies a change
is a map, ``{"+key": "value", "-key": ""}``. Stored attributes have keys without signs.

===============  =============================================================  =========
topics           values (the first is what an absent key means)                 change
===============  =============================================================  =========
queue.type       SimpleCQ, BatchCQ                                              creation
cleanup.policy   DELETE, COMPACTION                                             creation
message.type     NORMAL, UNSPECIFIED, FIFO, DELAY, TRANSACTION, PRIORITY,       any time
                 LITE, MIXED
reserve.time     -1 to the largest long (only a tiered store reads it)          any time
===============  =============================================================  =========

COMPACTION is known, because a store of Java may have such topics, but the topic table refuses to
create one: there is no compaction. A topic may have the type LITE, and is used like any other; the
attributes ``lite.*``, which 5.5 knows too, are refused by name, because the broker has no lite
topics within a topic. Groups have ``priority.factor`` (0 to 100, any time).

Errors are those of Java: code 1, with its texts. Counterpart of Java's ``AttributeParser``,
``AttributeUtil``, ``TopicAttributes`` and ``SubscriptionGroupAttributes``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from skylark.core.errors import BrokerError

QUEUE_TYPE: Final = "queue.type"
CLEANUP_POLICY: Final = "cleanup.policy"
COMPACTION: Final = "COMPACTION"
MESSAGE_TYPE: Final = "message.type"
MIXED: Final = "MIXED"

_LONG_MAX: Final = (1 << 63) - 1
_is_long = re.compile(r"[+-]?[0-9]{1,19}").fullmatch


class Attribute(msgspec.Struct, frozen=True, kw_only=True):
    """One attribute: a choice of values, or a range of numbers."""

    changeable: bool
    values: tuple[str, ...] = ()  # in the order in which Java's error text lists them
    minimum: int = 0
    maximum: int = 0

    def check(self, value: str) -> None:
        """Raise BrokerError unless the attribute can have this value."""
        if self.values:
            if value not in self.values:
                raise BrokerError(f"value is not in set: [{', '.join(self.values)}]")
        elif not _is_long(value):
            raise BrokerError(f'For input string: "{value:.100}"')
        elif not self.minimum <= int(value) <= self.maximum:
            raise BrokerError(f"value is not in range({self.minimum}, {self.maximum})")


TOPIC_ATTRIBUTES: Final = {
    QUEUE_TYPE: Attribute(changeable=False, values=("BatchCQ", "SimpleCQ")),
    CLEANUP_POLICY: Attribute(changeable=False, values=("DELETE", COMPACTION)),
    MESSAGE_TYPE: Attribute(
        changeable=True,
        values=("UNSPECIFIED", MIXED, "TRANSACTION", "PRIORITY", "FIFO", "DELAY", "LITE", "NORMAL"),
    ),
    "reserve.time": Attribute(changeable=True, minimum=-1, maximum=_LONG_MAX),
}
GROUP_ATTRIBUTES: Final = {
    "priority.factor": Attribute(changeable=True, minimum=0, maximum=100),
}


def parse_changes(text: str | None) -> dict[str, str]:
    """Read ``+key=value,-key`` as a map of signed keys."""
    changes: dict[str, str] = {}
    items = (text or "").split(",")
    while items and not items[-1]:
        items.pop()  # Java drops what is empty at the end, but not elsewhere
    for item in items:
        key, has_value, rest = item.partition("=")
        value = rest.split("=")[0]
        if has_value and ("+" not in key or not value):
            raise BrokerError(f"add/alter attribute format is wrong: {key}")
        if not has_value and "-" not in key:
            raise BrokerError(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise BrokerError(f"key duplication: {key}")
        changes[key] = value
    return changes


def altered(
    known: Mapping[str, Attribute],
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
) -> dict[str, str]:
    """The attributes after the changes; ``current`` is None when topic or group is new."""
    result = dict(current or {})
    seen: set[str] = set()
    for signed_key, value in changes.items():
        sign, key = signed_key[:1], signed_key[1:]
        if not key or "+" in key or "-" in key:
            raise BrokerError("kv string format wrong.")
        if key in seen:
            raise BrokerError(f"alter duplication key. key: {key}")
        seen.add(key)
        _check_sign(sign, key, current)
        attribute = known.get(key)
        if attribute is None:
            hint = "this broker has no lite topics yet" if key.startswith("lite.") else None
            raise BrokerError(f"unsupported key: {key}", hint=hint)
        if current is not None and not attribute.changeable:
            raise BrokerError(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "+":
            attribute.check(value)
            result[key] = value
        else:
            del result[key]
    return result


def _check_sign(sign: str, key: str, current: Mapping[str, str] | None) -> None:
    if current is None:
        if sign != "+":
            raise BrokerError(f"only add attribute is supported while creating topic. key: {key}")
    elif sign == "-":
        if key not in current:
            raise BrokerError(f"attempt to delete a nonexistent key: {key}")
    elif sign != "+":
        raise BrokerError(f"wrong format key: {key}")
