"""The configuration of a topic on one broker: reads, validates and sends it.

Permissions are letters in our API and bits on the wire; attributes are sent as changes,
``+key=value`` or ``-key``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skylark.admin.admin_session import Session
from skylark.client.core.broker_calls import make_request
from skylark.core.errors import (
    InvalidParameterError,
    RequestNotSupportedError,
    TopicNotExistError,
)
from skylark.core.names import AUTO_CREATE_TOPIC
from skylark.wire.bodies.config import TopicConfig, TopicFilterType
from skylark.wire.bodies.slave_sync_body import TopicConfigSerializeWrapper
from skylark.wire.codes import Perm, RequestCode
from skylark.wire.headers.admin import CreateTopicRequestHeader, TopicRequestHeader

QUEUE_COUNT_MAX: Final = 65_536
_PERM_LETTERS: Final = ((Perm.READ, "r"), (Perm.WRITE, "w"), (Perm.INHERIT, "x"))


async def topic_config(session: Session, address: str, topic: str) -> TopicConfig:
    """The configuration of a topic on one broker (351); raises TopicNotExistError.

    Brokers before 5.0 do not support this request; then it requests all their topics (21).
    """
    try:
        header = TopicRequestHeader(topic=topic)
        return await session.ask(TopicConfig, address, RequestCode.GET_TOPIC_CONFIG, header)
    except RequestNotSupportedError:
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        table = await session.ask(TopicConfigSerializeWrapper, address, code)
    if topic not in table.topic_config_table:
        raise TopicNotExistError(f"No topic in this broker. topic: {topic}")
    return table.topic_config_table[topic]


async def send_config(
    session: Session, address: str, config: TopicConfig, attributes: Mapping[str, str | None]
) -> None:
    """UPDATE_AND_CREATE_TOPIC (17): replaces all fields; attributes are changes."""
    header = CreateTopicRequestHeader(
        topic=config.topic_name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=(config.topic_filter_type or TopicFilterType.SINGLE_TAG).name,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=attribute_changes(attributes),
    )
    await session.call(address, make_request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))


def parse_perm(perm: str) -> int:
    """``r``, ``w``, ``rw`` (or ``4``, ``2``, ``6``) as bits; raises InvalidParameterError."""
    letters = {letter: int(bit) for bit, letter in _PERM_LETTERS}
    if perm.isascii() and perm.isdigit() and 0 < int(perm) <= 15:
        return int(perm)
    if not perm or set(perm.lower()) - letters.keys():
        raise InvalidParameterError(f"{perm!r} is not a permission: r, w or rw")
    return sum({letters[letter] for letter in perm.lower()})


def format_perm(perm: int) -> str:
    """Bits of a permission as letters, for example ``rw``."""
    return "".join(letter for bit, letter in _PERM_LETTERS if perm & bit)


def changed_only(
    wanted: Mapping[str, str | None], present: Mapping[str, str]
) -> dict[str, str | None]:
    """The attributes that differ; some cannot be set again, not even to the same value."""
    return {key: value for key, value in wanted.items() if present.get(key) != value}


def attribute_changes(attributes: Mapping[str, str | None]) -> str:
    """Changes as they are sent; None removes. Raises InvalidParameterError."""
    for key, value in attributes.items():
        if not key or any(sign in f"{key}{value or ''}" for sign in ",=") or key[0] in "+-":
            raise InvalidParameterError(f"{key}={value} is not a valid attribute")
    return ",".join(f"-{k}" if v is None else f"+{k}={v}" for k, v in attributes.items())


def checked_count(queue_count: int) -> int:
    """A number of queues that a topic may have; raises InvalidParameterError."""
    if not 1 <= queue_count <= QUEUE_COUNT_MAX:
        raise InvalidParameterError(f"a topic has 1 to {QUEUE_COUNT_MAX} queues, not {queue_count}")
    return queue_count
