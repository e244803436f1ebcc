"""Shapes that several requests share: one name and nothing else.

Java has a class of its own for each of these requests; the fields are the same, so here one class
serves them all. The catalogue has the codes of each.

Rules that hold for every module of this package. A field without default is one that Java marks
as required *and* keeps in an object: without it the request fails. A Java primitive can never be
missing: it has the default that Java gives it and is always written. Everything else is ``None``
when absent. The fields that all 5.x requests inherit (``ns``, ``nsd``, ``bname``, ``oway``,
``lo``) are not declared: nothing reads them, and unknown entries are ignored.
"""

from __future__ import annotations

from skylark.wire.fields import Header


class TopicRequestHeader(Header, kw_only=True, rename="camel"):
    """Requests about one topic."""

    topic: str


class GroupRequestHeader(Header, kw_only=True, rename="camel"):
    """Requests about one consumer group that call the field ``group``."""

    group: str


class ConsumerGroupRequestHeader(Header, kw_only=True, rename="camel"):
    """Requests about one consumer group that call the field ``consumerGroup``."""

    consumer_group: str
