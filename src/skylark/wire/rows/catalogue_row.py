"""The row of the catalogue for one request code: parties, headers, bodies, access.

Parties are written as letters: C client, B broker, S slave broker, N name server, A admin tool, K
controller. ``C->B`` is a request from client to broker, ``SA->B`` has two kinds of senders, and in
``A->B->C`` the broker passes the request on to a client.

Access follows RocketMQ's ACL 2.0: a request needs *each* of its :class:`Access` entries, and for an
entry any *one* of its actions suffices. A retry topic belongs to its group: where an entry asks for
the topic and the name is a ``%RETRY%`` one, the group's ``Sub`` is required instead (or nothing, if
another entry requires the group anyway). Java does not check requests without a header class, such
as UPDATE_BROKER_CONFIG; here the row of every request that reads or changes something has its
access entries.

Two JSON bodies need more than :func:`~skylark.wire.fastjson.decode_body`: a request 103 is read by
:func:`~skylark.wire.bodies.register.decode_register_body`, and a 220 to a client in C++ carries
:class:`~skylark.wire.bodies.admin_body.ResetOffsetBodyForC`. The binary body of a response 60 is a
:class:`~skylark.wire.bodies.slave_sync_body.TimerCheckpoint`.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from types import GenericAlias
from typing import Literal, TypeAlias

import msgspec

from skylark.wire.codes import RequestCode
from skylark.wire.fields import Header

Resource = Literal["Topic", "Group", "Cluster"]
Action = Literal["Pub", "Sub", "Create", "Update", "Delete", "Get", "List"]


class Oneway(StrEnum):
    """Whether Java sends the request without waiting for an answer."""

    NEVER = "never"
    SOMETIMES = "sometimes"
    ALWAYS = "always"


#: The type of a JSON body: a struct, or a list of structs or strings such as ``list[str]``.
BodyType: TypeAlias = type | GenericAlias


class BodyKind(StrEnum):
    """What a body that is not JSON holds."""

    NONE = "none"
    #: The body of one message as the application gave it, or a batch of messages.
    MESSAGE = "message"
    #: Messages in commit-log encoding, one after the other.
    RECORDS = "records"
    #: Java properties: ``key=value`` lines.
    PROPERTIES = "properties"
    TEXT = "text"
    BINARY = "binary"


class Access(msgspec.Struct, frozen=True):
    """One thing a caller must be allowed to do."""

    resource: Resource
    actions: tuple[Action, ...]
    #: The ext entry that names the resource. None: the names are in the body, or it is the cluster.
    field: str | None = None
    #: The entry holds several names, joined by this.
    separator: str | None = None


def topic(*actions: Action, field: str | None = "topic", separator: str | None = None) -> Access:
    """Access to the topic named by an ext entry, or (``field=None``) by the body."""
    return Access("Topic", actions, field, separator)


def group(
    *actions: Action, field: str | None = "consumerGroup", separator: str | None = None
) -> Access:
    """Access to the consumer group named by an ext entry, or (``field=None``) by the body."""
    return Access("Group", actions, field, separator)


CLUSTER_GET = (Access("Cluster", ("Get",)),)
CLUSTER_UPDATE = (Access("Cluster", ("Update",)),)


class Row(msgspec.Struct, frozen=True):
    """One request code."""

    code: RequestCode
    request_header: type[Header] | None = None
    response_header: type[Header] | None = None
    #: See the docstring of this module. Empty: Java defines the code, but never sends it.
    direction: str = ""
    #: A type stands for a JSON body of this type.
    request_body: BodyKind | BodyType = BodyKind.NONE
    response_body: BodyKind | BodyType = BodyKind.NONE
    oneway: Oneway = Oneway.NEVER
    access: tuple[Access, ...] = ()
    #: What may be answered besides 0 (success), 1 (any exception), 2 (busy) and 3 (not supported).
    response_codes: tuple[int, ...] = ()
    #: The response codes that come with the response header.
    header_codes: tuple[int, ...] = (0,)
    #: Skylark's own addition to this request; None: exactly as Apache.
    extension: str | None = None

    @property
    def name(self) -> str:
        """Java's name of the code."""
        return self.code.name

    @property
    def request_body_type(self) -> BodyType | None:
        """The type of a JSON body of the request, None for other bodies."""
        return None if isinstance(self.request_body, BodyKind) else self.request_body

    @property
    def response_body_type(self) -> BodyType | None:
        """The type of a JSON body of a successful response, None for other bodies."""
        return None if isinstance(self.response_body, BodyKind) else self.response_body

    def header_of_response(self, response_code: int) -> type[Header] | None:
        """The header type of a response with this code, None where it has no header."""
        return self.response_header if response_code in self.header_codes else None

    @property
    def senders(self) -> frozenset[str]:
        """The letters of the parties that send this request."""
        return frozenset("".join(self.direction.split("->")[:-1]))

    @property
    def receivers(self) -> frozenset[str]:
        """The letters of the parties that must handle or refuse this request."""
        return frozenset("".join(self.direction.split("->")[1:]))


# The usual senders and receivers. ``read_`` and ``change_`` are administration that needs access to
# the cluster as a whole.
client_to_broker = partial(Row, direction="C->B")
broker_to_client = partial(Row, direction="B->C")
admin_to_broker = partial(Row, direction="A->B")
read_broker = partial(admin_to_broker, access=CLUSTER_GET)
change_broker = partial(admin_to_broker, access=CLUSTER_UPDATE)
read_namesrv = partial(Row, direction="A->N", access=CLUSTER_GET)
change_namesrv = partial(Row, direction="A->N", access=CLUSTER_UPDATE)
