"""Finds a message by its id alone, and reports brokers that did not respond.

A message may be in its topic, in a topic for delayed or half messages, in a retry topic or a
dead-letter topic, each on several brokers. If a broker does not respond, "not found" is uncertain:
:class:`Copies` therefore lists such brokers, and :func:`find_message` raises different errors for
a message that does not exist and one that may exist on such a broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from skylark.admin.admin_session import Session, masters_of
from skylark.admin.errors import NotFoundError
from skylark.admin.fan_out import few_at_a_time
from skylark.admin.message_lookup import by_offset_id, oldest_first, search_index
from skylark.admin.topic_operations import Topics
from skylark.client.core.client_message import MessageExt
from skylark.core.errors import ClientError, SkylarkError
from skylark.core.names import (
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_dlq_topic,
    is_retry_topic,
)
from skylark.wire import properties as names

#: Topics of messages that are not in their own topic yet.
WAITING_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)
#: Maximum number of topics to search when the topic is not given.
TOPICS_SEARCHED_MAX: Final = 256
TOPICS_AT_ONCE: Final = 16


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """The messages found in a topic, oldest first, and the brokers that did not respond."""

    messages: tuple[MessageExt, ...] = ()
    silent: frozenset[str] = frozenset()


async def copies_in(session: Session, topic: str, unique_id: str) -> Copies:
    """Messages with a unique id in a topic (with namespace); none if it does not exist."""
    route = await session.find_route(topic)
    if route is None:
        return Copies()
    masters = masters_of(route)
    answers = await search_index(session, masters, topic, unique_id, unique=True)
    away = {queues.broker_name for queues in route.queue_datas} - masters.keys()
    return Copies(
        messages=tuple(oldest_first(answers.results.values())),
        silent=frozenset({*answers.errors, *away}),
    )


def silence(silent: Iterable[str]) -> str:
    """A sentence about brokers that did not respond."""
    return f"{', '.join(sorted(silent))} did not respond"


async def find_message(session: Session, message_id: str, topic: str | None = None) -> MessageExt:
    """Find a message by either kind of id; without ``topic`` it searches all topics.

    Also finds delayed messages and half messages. For the id of a retry or dead letter it returns
    the original message while its topic has it. Raises NotFoundError, and ClientError if it was not
    found and some brokers did not respond.
    """
    found = await _find(session, message_id, topic)
    stored = found.record.topic
    if not is_retry_topic(stored) and not is_dlq_topic(stored):
        return found
    origin = found.properties.get(names.PROPERTY_RETRY_TOPIC) or found.properties.get(
        names.PROPERTY_DLQ_ORIGIN_TOPIC
    )
    first = (await copies_in(session, origin, found.msg_id)).messages if origin else ()
    return first[0] if first else found


async def _find(session: Session, message_id: str, topic: str | None) -> MessageExt:
    placed, problem = await _at_its_place(session, message_id)
    wanted = None if topic is None else session.wrap(topic)
    if placed is not None and wanted in (None, placed.record.topic):
        return placed
    if wanted is None:
        topics = (await Topics(session).names())[:TOPICS_SEARCHED_MAX]
        where = f" in {len(topics)} topics" if len(topics) == TOPICS_SEARCHED_MAX else ""
    else:
        await session.route(wanted)  # raises if the topic does not exist
        topics = [wanted]
        where = f" in topic {topic}"

    async def search(name: str) -> Copies:
        return await copies_in(session, name, message_id)

    silent: set[str] = set()
    for copies in await few_at_a_time(topics, search, TOPICS_AT_ONCE):
        if copies.messages:
            return copies.messages[0]
        silent |= copies.silent
    for name in WAITING_TOPICS:
        copies = await search(name)
        if copies.messages:
            return copies.messages[-1]
        silent |= copies.silent
    if silent:
        raise ClientError(f"message {message_id} was not found, but {silence(silent)}")
    if problem is not None:
        raise problem
    raise NotFoundError(
        f"no message {message_id}{where}",
        hint="it has expired, was never stored, or the id is wrong",
    )


async def _at_its_place(
    session: Session, message_id: str
) -> tuple[MessageExt | None, SkylarkError | None]:
    """The message with an offset message id, or why its broker does not return it."""
    try:
        return await by_offset_id(session, message_id), None
    except SkylarkError as error:
        return None, error
