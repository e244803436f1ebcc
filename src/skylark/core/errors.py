"""The exception tree: everything Skylark raises on purpose derives from :class:`SkylarkError`.

``retriable`` says whether the same call may succeed later without any change by the caller.
``hint`` is one sentence for a person: what to do about it. ``remark`` is what a server said about
it, if one did. ``str(error)`` holds the message and the hint.

What Java's client throws, and what is raised here instead:

==============================  ======  =========================================================
``MQClientException``           -1      :class:`ClientError` and its subclasses
- no name server                10004   :class:`NoNameServerError`
- no route of a topic           10005   :class:`NoRouteError`
- ``RequestTimeoutException``   10006   :class:`RequestReplyTimeoutError`
- a reply cannot be built       10007   :class:`CannotReplyError`
- illegal message               13      :class:`InvalidMessageError`
- "Send [n] times, still failed"        :class:`SendFailedError`, with 10001 (connect), 10002
                                        (timeout), 10003 (client error) or the broker's code
- wrong state, group twice      -1      :class:`ClientStateError`
``MQBrokerException``                   :class:`BrokerError`, with the code and the address
``OffsetNotFoundException``     22      :class:`QueryNotFoundError`
``RemotingConnectException``            :class:`ConnectError`
``RemotingSendRequestException``        :class:`ConnectionClosedError`
``RemotingTimeoutException``            :class:`RequestTimeoutError`
``RemotingTooMuchRequestException``     :class:`TooManyRequestsError`, :class:`SendTimeoutError`
``RemotingCommandException``            :class:`RemoteProtocolError`
==============================  ======  =========================================================

All timeouts are also a ``TimeoutError``.

Data of peers and of the disk never raise anything outside this tree; a ``KeyError`` or
``struct.error`` that escapes from a decoder is a defect.
"""

from __future__ import annotations

from typing import ClassVar


class SkylarkError(Exception):
    """Base of all errors raised by Skylark."""

    retriable: ClassVar[bool] = False
    remark: str | None = None  #: what the server said about it, if it did

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}" if self.hint else self.message


class ConfigError(SkylarkError):
    """A setting, argument or input file is invalid, or a library that it needs is missing."""


class ProtocolError(SkylarkError):
    """Bytes or calls that break the protocol."""


class LocalProtocolError(ProtocolError):
    """Our own code tried to send something that cannot be represented: a bug on this side."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that cannot be understood; the connection is of no further use."""


class HeaderFieldError(RemoteProtocolError):
    """A custom header lacks a required field, or a field holds the wrong type.

    The frame itself is sound: the request is answered with code 1 and the connection stays.
    """

    def __init__(self, field: str, message: str | None = None) -> None:
        super().__init__(message or f"the custom field <{field}> is null")
        self.field = field


class TransportError(SkylarkError):
    """A call failed below the protocol: connect, write, wait or close."""

    retriable: ClassVar[bool] = True


class ConnectError(TransportError):
    """No connection could be made."""


class ConnectionClosedError(TransportError):
    """The connection ended before the answer came."""


class RequestTimeoutError(TransportError, TimeoutError):
    """No answer within the caller's timeout."""


class TooManyRequestsError(TransportError):
    """No permit for a further outstanding call was free ("invoke too fast")."""


class SendTimeoutError(TooManyRequestsError, TimeoutError):
    """The time for a send was used up; it may be stored nevertheless, if an answer got lost."""


class BrokerError(SkylarkError):
    """A request was answered with a code other than success.

    It travels both ways: a handler raises it to answer with ``code`` and ``remark``, a client
    raises it when such an answer arrives. :func:`broker_error` picks the subclass by code. At the
    client ``broker_address`` says who answered, and the text is that of Java's client.
    """

    code: int = 1

    def __init__(
        self,
        remark: str,
        *,
        code: int | None = None,
        hint: str | None = None,
        broker_address: str | None = None,
    ) -> None:
        super().__init__(remark, hint=hint)
        self.remark: str = remark
        self.broker_address = broker_address
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        if self.broker_address is None:
            return super().__str__()
        text = f"CODE: {self.code}  DESC: {self.remark} BROKER: {self.broker_address}"
        return f"{text}: {self.hint}" if self.hint else text

    @property
    def response_code(self) -> int:
        """The code, by the name that client errors have for it."""
        return self.code


class SystemBusyError(BrokerError):
    """The server sheds load; the same request may succeed a little later."""

    code = 2
    retriable: ClassVar[bool] = True


class RequestNotSupportedError(BrokerError):
    """The server does not know this request code."""

    code = 3


class MessageIllegalError(BrokerError):
    """A message breaks a limit or a rule of its topic."""

    code = 13


class ServiceNotAvailableError(BrokerError):
    """The server cannot serve now: shutting down, disk full, or a slave."""

    code = 14
    retriable: ClassVar[bool] = True


class NoPermissionError(BrokerError):
    """Access was refused by permission bits, configuration or access control."""

    code = 16


class TopicNotExistError(BrokerError):
    """The topic has no route, or does not exist on this broker."""

    code = 17


class QueryNotFoundError(BrokerError):
    """What was asked for does not exist."""

    code = 22


class SubscriptionGroupNotExistError(BrokerError):
    """The consumer group does not exist."""

    code = 26


class InvalidParameterError(BrokerError):
    """A field of the request holds a value that is not allowed."""

    code = 29


class ConsumerNotOnlineError(BrokerError):
    """No member of the group is connected."""

    code = 206


class GoAwayError(BrokerError):
    """The server shuts down; connect again and repeat."""

    code = 1500
    retriable: ClassVar[bool] = True


def _by_code(base: type[BrokerError]) -> dict[int, type[BrokerError]]:
    table: dict[int, type[BrokerError]] = {}
    for subclass in base.__subclasses__():
        if subclass.code in table:
            raise TypeError(f"two error classes for code {subclass.code}")
        table[subclass.code] = subclass
    return table


_BROKER_ERRORS = _by_code(BrokerError)


def broker_error(
    code: int, remark: str, *, hint: str | None = None, broker_address: str | None = None
) -> BrokerError:
    """The error for a response code; codes without a class of their own give the base class."""
    error_class = _BROKER_ERRORS.get(code, BrokerError)
    return error_class(remark, code=code, hint=hint, broker_address=broker_address)


class ClientError(SkylarkError):
    """The client cannot do what was asked: wrong use, no route, no name server."""

    response_code: int = -1

    def __init__(
        self, message: str, *, response_code: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        if response_code is not None:
            self.response_code = response_code


class ClientStateError(ClientError):
    """Used before its start, after its end, twice, or in a forked child process."""


class InvalidMessageError(ClientError):
    """A message that no broker would take; nothing was sent."""

    response_code = 13


class SendFailedError(ClientError):
    """All attempts to send a message failed; ``__cause__`` is the error of the last one.

    It may be stored nevertheless, if an answer got lost.
    """

    retriable: ClassVar[bool] = True


class NoNameServerError(ClientError):
    """No name server answers."""

    response_code = 10004
    retriable: ClassVar[bool] = True


class NoRouteError(ClientError):
    """The name servers know no broker that has this topic."""

    response_code = 10005
    retriable: ClassVar[bool] = True


class RequestReplyTimeoutError(ClientError, TimeoutError):
    """A request was sent, and no reply came in time."""

    response_code = 10006
    retriable: ClassVar[bool] = True


class CannotReplyError(ClientError):
    """The message is not a request, so it cannot be replied to."""

    response_code = 10007


class StoreError(SkylarkError):
    """The message store could not do what was asked."""


class CorruptLogError(StoreError):
    """A stored file holds something that cannot be a record; nothing was deleted."""

    def __init__(self, message: str, *, file: str, offset: int, hint: str | None = None) -> None:
        super().__init__(f"{file} at offset {offset}: {message}", hint=hint)
        self.file = file
        self.offset = offset
