"""The services of a broker, as an endpoint sees them: the only broker module an endpoint imports.

An *endpoint* (remoting, in process, later gRPC) turns bytes into typed requests and results into
bytes; it knows frames and no messages. A *service* knows messages and no frames::

    endpoint   bytes -> Peer + typed request
    service    calls the interceptors; checks; reads or stores
    endpoint   typed result -> bytes

Requests and results are the structs below and the headers and bodies of :mod:`skylark.wire`; their
fields are those of RocketMQ's protocol for every endpoint. A service refuses by raising
:class:`~skylark.core.errors.BrokerError`, which has the response code, or, where many requests are
handled together, by returning one in the place of the refused request.

**Now or later.** A send may have to wait for the disk or for replicas, a pull for messages. Then
the service returns a :class:`Pending`, which calls back with the result. A coroutine waits for it
with :func:`result_of`.

**Interceptors** (access control, quotas, metrics, faults) see the peer, the operation and the
resources of each request. The services call them (:mod:`skylark.broker.service_interception`), so
no endpoint can forget to. An endpoint calls them itself only for operations that no service has,
such as the administration requests of remoting (:meth:`InterceptorChain.admit`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, overload

import msgspec

from skylark.core.errors import BrokerError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.bodies.heartbeat import HeartbeatData, SubscriptionData
from skylark.wire.bodies.pop_body import BatchAckMessageRequestBody
from skylark.wire.codes import CURRENT_VERSION, ResponseCode
from skylark.wire.command import Command
from skylark.wire.headers import pop as pop_headers
from skylark.wire.headers.client_header import HeartbeatResponseHeader
from skylark.wire.headers.pull import PullMessageRequestHeader
from skylark.wire.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    RecallMessageRequestHeader,
    SendHeader,
)
from skylark.wire.headers.txn import EndTransactionRequestHeader

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


# ---- peers ---------------------------------------------------------------------------------------


class Identity(msgspec.Struct, frozen=True):
    """The user that a peer has proven to be."""

    user: str


class Peer(Protocol):
    """A client at the other end of an endpoint.

    Services compare peers with ``is``: a client that connects again is another peer. An endpoint
    whose connections carry requests of several users has a peer for each user of a connection.
    """

    #: The client id in the client's last heartbeat.
    client_id: str | None
    #: None until the endpoint has authenticated the client.
    identity: Identity | None

    @property
    def remote_address(self) -> tuple[str, int]:
        """Host and port of the client's end."""

    @property
    def born_host(self) -> bytes:
        """The address as records hold it (see ``pack_host``)."""

    @property
    def is_closing(self) -> bool:
        """Whether the client can no longer be reached."""

    @property
    def is_reading(self) -> bool:
        """Whether the client has read most of what was sent to it."""

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call back once, when the client is gone."""

    def call_when_writable(self, callback: Callable[[], None]) -> None:
        """Call back when ``is_reading`` holds, or when the client is gone."""

    def begin_results(self) -> None:
        """Several results for the client come now: keep them until :meth:`end_results`."""

    def end_results(self) -> None:
        """Send the results since :meth:`begin_results` together, now."""

    def oneway(self, request: Command) -> None:
        """Send the client a request without a reply; raises TransportError.

        Such as 39 (check-back), 40 (members have changed), 220 (reset offsets). An endpoint with
        another protocol translates the request, or ignores one that its clients do not have.
        """

    def call(self, request: Command, timeout_s: float) -> Awaitable[Command]:
        """Send the client a request, such as 326, and wait for its reply; raises TransportError."""

    def close(self) -> None:
        """Disconnect the client, after what was sent has been written."""


# ---- operations and resources --------------------------------------------------------------------


class Operation(msgspec.Struct, frozen=True):
    """An operation, with a name and code of the catalogue, such as ``SEND_MESSAGE_V2``.

    One operation may have several request codes: 10, 310 and 320 are all ``SEND_MESSAGE_V2``. The
    row of the code in the catalogue says which actions it needs on each kind of resource.
    """

    name: str
    code: int


class Resource(msgspec.Struct, frozen=True):
    """Something that a request is about: ``topic``, ``group`` or ``cluster``, and its name.

    A group is a consumer group: producer groups need no rights in RocketMQ's access control.
    """

    kind: str
    name: str


class Call(msgspec.Struct, eq=False):
    """One request on its way through the broker; the same object before and after."""

    peer: Peer
    operation: Operation
    resources: Sequence[Resource]
    #: The typed request, where the operation has one.
    request: object = None


class ApiInterceptor(Protocol):
    """Sees every request of every endpoint before the broker acts on it."""

    def before(self, call: Call) -> None:
        """Return to let the request pass; raise BrokerError to refuse it."""

    def after(self, call: Call, code: int | None) -> None:
        """The request has its result, or is refused, with this response code.

        None: it has no result, because its client is gone, or a request failed after which it was
        not to be handled. Called once for each ``before``, also if that has refused the request.
        """


class InterceptorChain:
    """The interceptors of a broker, called in order before a request, in reverse order after it."""

    def __init__(self, interceptors: Iterable[ApiInterceptor] = ()) -> None:
        self._interceptors = tuple(interceptors)

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def admit(self, call: Call) -> None:
        """Call ``before`` of all; raises what refuses the request, which is then finished."""
        for index, interceptor in enumerate(self._interceptors):
            try:
                interceptor.before(call)
            except Exception as error:
                self._finish(call, code_of(error), index + 1)
                raise

    def finish(self, call: Call, code: int | None) -> None:
        """Call ``after`` of all, for a request that was admitted."""
        self._finish(call, code, len(self._interceptors))

    def _finish(self, call: Call, code: int | None, count: int) -> None:
        for interceptor in reversed(self._interceptors[:count]):
            try:
                interceptor.after(call, code)
            except Exception:  # the client gets its result all the same
                logger.exception("an interceptor failed after %s", call.operation.name)


def code_of(outcome: object) -> int | None:
    """The code that interceptors see for an outcome; None if the request has no result."""
    if outcome is None:
        return None
    if isinstance(outcome, BaseException) and not isinstance(outcome, BrokerError):
        return int(ResponseCode.SYSTEM_ERROR)
    return int(getattr(outcome, "code", ResponseCode.SUCCESS))


# ---- results that come later ---------------------------------------------------------------------


class Pending(Generic[ResultT]):
    """A result that is not known yet. It comes once, on the loop of the broker."""

    __slots__ = ("_callback", "_has_result", "_result", "is_cancelled", "on_cancel")

    def __init__(self) -> None:
        self.is_cancelled = False
        #: Called by :meth:`cancel`: the service releases what it holds for the request.
        self.on_cancel: Callable[[], object] | None = None
        self._callback: Callable[[ResultT], object] | None = None
        self._has_result = False
        self._result: ResultT | None = None

    def then(self, callback: Callable[[ResultT], object]) -> None:
        """Call back with the result; at once if it is here already."""
        assert self._callback is None, "one caller waits for a result"
        self._callback = callback
        if self._has_result:
            callback(self._result)  # type: ignore[arg-type]

    def set(self, result: ResultT) -> None:
        """Give the result to the caller that waits for it."""
        assert not self._has_result, "a result comes once"
        if self.is_cancelled:
            return
        self._has_result, self._result = True, result
        if self._callback is not None:
            self._callback(result)

    def cancel(self) -> bool:
        """No longer wait for the result; False if it has come, True if it never will.

        A held pull is not run any more. A message that waits for the disk is stored all the same.
        """
        if not self._has_result and not self.is_cancelled:
            self.is_cancelled = True
            if self.on_cancel is not None:
                self.on_cancel()
        return self.is_cancelled


@overload
async def result_of(outcome: Pending[ResultT]) -> ResultT: ...


@overload
async def result_of(outcome: ResultT | Pending[ResultT] | BaseException) -> ResultT: ...


async def result_of(outcome: ResultT | Pending[ResultT] | BaseException) -> ResultT:
    """Wait for a result if it is pending; raises the exception that it may be instead.

    For sends and the other requests of a :class:`PutService`. A caller that is cancelled takes
    nothing back. (A pull that is not wanted any more still has to release its messages.)
    """
    if isinstance(outcome, Pending):
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        outcome.then(lambda result: None if future.done() else future.set_result(result))
        outcome = await future
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


# ---- storing messages ----------------------------------------------------------------------------


class SendRequest(msgspec.Struct, gc=False):
    """A message, or a batch (``header.batch``), that a producer wants to store."""

    header: SendHeader
    body: bytes | None
    #: The protocol version of the client: it decides which header fields count.
    version: int = CURRENT_VERSION


class SendResult(msgspec.Struct, gc=False):
    """Where a message was stored; of a batch, the first one."""

    code: int
    log_offset: int
    queue_id: int
    queue_offset: int
    unique_id: str
    #: The offset ids of a batch's messages, separated by commas; None for a single message.
    message_ids: str | None = None
    batch_unique_id: str | None = None
    recall_handle: str | None = None


class EndTransactionRequest(msgspec.Struct, gc=False):
    """A producer's decision about a half message."""

    header: EndTransactionRequestHeader
    #: The client waits for the result; it then promises no less than that of a send.
    wants_result: bool = True


class EndTransactionResult(msgspec.Struct, gc=False):
    """The decision counts; with ``is_undecided`` the producer did not decide and will be asked."""

    is_undecided: bool = False


class SendBackRequest(msgspec.Struct, gc=False):
    """A consumer gives back a message that it could not process."""

    header: ConsumerSendMsgBackRequestHeader
    version: int = CURRENT_VERSION


class SendBackResult(msgspec.Struct, gc=False):
    """The message need not be processed again by this consumer."""

    #: The retry topic or the dead-letter topic that has a copy. None: the group wants no retries,
    #: or no record can hold a copy.
    copied_to: str | None = None


class ReplyRequest(msgspec.Struct, gc=False):
    """A reply message for the client that its property REPLY_TO_CLIENT names."""

    header: SendHeader
    body: bytes | None


class ReplyResult(msgspec.Struct, gc=False):
    """Whether the requester has the reply, and where the reply is stored."""

    queue_id: int
    #: Why the requester does not have the reply; None if it has.
    failure: BrokerError | None = None
    #: None if the reply is not stored.
    log_offset: int | None = None
    queue_offset: int = 0

    @property
    def code(self) -> int:
        return int(ResponseCode.SUCCESS) if self.failure is None else self.failure.code


class RecallRequest(msgspec.Struct, gc=False):
    """A producer cancels a timed message that is not due yet."""

    header: RecallMessageRequestHeader


class RecallResult(msgspec.Struct, gc=False):
    """The message will not be delivered."""

    unique_id: str


class AckResult(msgspec.Struct, gc=False):
    """The acknowledgement counts, unless it came too late or names nothing that was popped."""

    #: Why it has no effect, if the broker knows; the code is 0 all the same, as by Java.
    remark: str | None = None


#: What stores messages; requests of all these kinds that come together are stored together.
PutRequest: TypeAlias = (
    SendRequest
    | EndTransactionRequest
    | SendBackRequest
    | ReplyRequest
    | RecallRequest
    | pop_headers.AckMessageRequestHeader
    | BatchAckMessageRequestBody
    | pop_headers.ChangeInvisibleTimeRequestHeader
)
PutOutcome: TypeAlias = (
    SendResult
    | EndTransactionResult
    | SendBackResult
    | ReplyResult
    | RecallResult
    | AckResult
    | pop_headers.ChangeInvisibleTimeResponseHeader
)


class PutService(Protocol):
    """Stores what clients send: messages, decisions, retries, replies, recalls, acks."""

    def run(
        self,
        peer: Peer,
        requests: Sequence[Any],
        *,
        stops_at: Callable[[BaseException], bool] | None = None,
    ) -> list[Any]:
        """Handle requests that came together, in their order; alone is a run of one.

        Each outcome stands in the place of its request: a result, a :class:`Pending` one, or the
        exception that refuses the request. An exception among the requests (one that could not be
        read) is its own outcome. Requests after one that is refused with an error for which
        ``stops_at`` holds are not handled: their outcome is None.
        """


# ---- reading messages ----------------------------------------------------------------------------


class PullRequest(msgspec.Struct, gc=False):
    """A consumer asks for the messages of a queue from an offset on."""

    header: PullMessageRequestHeader
    is_lite: bool = False


class LeasedMessages(Protocol):
    """Records as they stand in the log, pinned until they are released."""

    views: Sequence[memoryview]
    size: int

    def release(self) -> None:
        """Unpin the files, when the bytes have been copied or written; again does nothing."""


class PullResult(msgspec.Struct, gc=False):
    """What a pull found, and where its consumer goes on."""

    code: ResponseCode
    remark: str | None
    suggested_broker_id: int
    next_offset: int
    min_offset: int
    max_offset: int
    topic: TopicConfig
    group: SubscriptionGroupConfig
    #: None where nothing was read; the endpoint releases it.
    messages: LeasedMessages | None = None


#: How a pull that waited ends: with a result, with the error that refuses it, or, if its client is
#: gone, with None.
PullOutcome: TypeAlias = PullResult | Exception | None


class PullService(Protocol):
    """Reads queues, and holds pulls that find nothing until there is something."""

    def pull(self, peer: Peer, request: PullRequest) -> PullResult | Pending[PullOutcome]:
        """Read now, or later if nothing is there and the request may wait; raises BrokerError."""


# ---- pop -----------------------------------------------------------------------------------------


class PopResult(msgspec.Struct, gc=False):
    """What a pop found, with what its client needs to make receipt handles."""

    code: ResponseCode
    remark: str | None
    header: pop_headers.PopMessageResponseHeader
    #: None where nothing was found; the endpoint releases it.
    messages: LeasedMessages | None = None


PopOutcome: TypeAlias = PopResult | Exception | None  #: as PullOutcome
NotificationOutcome: TypeAlias = pop_headers.NotificationResponseHeader | Exception | None


class PopService(Protocol):
    """Hands out messages of any queue; acknowledgements are requests of the PutService."""

    def pop(
        self, peer: Peer, header: pop_headers.PopMessageRequestHeader
    ) -> PopResult | Pending[PopOutcome]:
        """Messages now, or later if none are there and the request may wait; raises BrokerError."""

    def peek(self, peer: Peer, header: pop_headers.PeekMessageRequestHeader) -> PopResult:
        """What a pop would get; it stays where it is. Raises BrokerError."""

    def notify(
        self, peer: Peer, header: pop_headers.NotificationRequestHeader
    ) -> pop_headers.NotificationResponseHeader | Pending[NotificationOutcome]:
        """Wait until a pop would find messages; raises BrokerError."""

    def waiting_count(self, peer: Peer, header: pop_headers.PollingInfoRequestHeader) -> int:
        """How many pops of a group wait for messages of a queue; raises BrokerError."""


# ---- groups --------------------------------------------------------------------------------------


class OffsetService(Protocol):
    """Positions in queues: what groups have committed, where queues begin and end."""

    def committed(
        self,
        peer: Peer,
        group: str,
        topic: str,
        queue_id: int,
        *,
        set_zero_if_not_found: bool | None = None,
    ) -> int:
        """The offset that a group has committed; raises BrokerError (22) if there is none."""

    def commit(
        self, peer: Peer, group: str, topic: str, queue_id: int | None, offset: int | None
    ) -> bool:
        """Commit an offset; False if an administrator has reset the group, and this is ignored.

        Raises BrokerError if the group or the topic does not exist, or a number is missing.
        """

    def min_offset(self, peer: Peer, topic: str, queue_id: int) -> int:
        """The first offset that can be read."""

    def max_offset(self, peer: Peer, topic: str, queue_id: int) -> int:
        """The offset after the last message that can be read."""

    def offset_by_time(
        self, peer: Peer, topic: str, queue_id: int, time_ms: int, *, is_upper: bool = False
    ) -> int:
        """The offset of the first message stored at or after a time; ``is_upper``: of the last one
        stored at or before it."""

    def earliest_store_time(self, peer: Peer, topic: str, queue_id: int) -> int:
        """When the first message of a queue was stored; -1 for an empty queue."""


class LockService(Protocol):
    """Locks on queues for consumption in order."""

    def lock(
        self, peer: Peer, group: str, client_id: str, queues: Sequence[MessageQueue]
    ) -> list[MessageQueue]:
        """Lock or renew; the queues that the client holds now."""

    def unlock(
        self, peer: Peer, group: str, client_id: str, queues: Sequence[MessageQueue]
    ) -> None:
        """Give locks back."""


class ClientService(Protocol):
    """Clients as members of producer and consumer groups."""

    def heartbeat(
        self, peer: Peer, heartbeat: HeartbeatData, *, language: str | int | None, version: int
    ) -> HeartbeatResponseHeader:
        """Register or renew the groups of a client, until it leaves or is gone.

        Sets ``client_id`` of the peer.
        """

    def unregister(
        self, peer: Peer, *, producer_group: str | None, consumer_group: str | None
    ) -> None:
        """A client leaves a producer group, a consumer group, or both."""

    def consumer_ids(self, peer: Peer, group: str) -> list[str]:
        """The members of a consumer group; raises BrokerError if it has none."""

    def check_filter(self, peer: Peer, group: str, subscription: SubscriptionData | None) -> None:
        """Raise FilterSyntaxError for an invalid filter, BrokerError if only tags are enabled."""


class TopicService(Protocol):
    """The topics of the broker: a look-up for endpoints, which no interceptor sees."""

    def get(self, topic: str) -> TopicConfig | None:
        """The topic as configured; None if the broker does not have it."""


class GroupService(Protocol):
    """The consumer groups of the broker: a look-up for endpoints, which no interceptor sees."""

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group as configured; None if there is none. Creates no group."""


class BrokerServices(msgspec.Struct, frozen=True):
    """Everything that an endpoint may use."""

    puts: PutService
    pulls: PullService
    pops: PopService
    offsets: OffsetService
    locks: LockService
    clients: ClientService
    topics: TopicService
    groups: GroupService
    #: Called by the services; by an endpoint only for operations that no service has.
    interceptors: InterceptorChain = InterceptorChain()
