"""The dispatcher: calls the handler of a request code, with checks, interceptors and error codes.

A *hot* handler is a plain function, called while the bytes are being read. It must not block. It
returns the response, None for no response, or LATER if ``Connection.answer`` sends the response
later. The response may be a ``ShapedResponse``, which is encoded faster; where the connection takes
frames, it may also be an encoded frame. A hot handler may have a second form for runs, which are
requests that arrived together (``run``).

A *cold* handler is a coroutine function; it runs as a task of the connection, so a slow one does
not delay other requests.

Order of checks for a request, as in Java's ``NettyRemotingAbstract.processRequestCommand``:

1. no handler for the code (nor a default one): code 3, `` request type <code> not supported``;
2. the server is shutting down and the client understands it: 1500 GO_AWAY;
3. too many tasks: code 2, ``[OVERLOAD]...``;
4. interceptors' ``before`` (access control, metrics, faults), the handler, their ``after``.

For a request that reaches step 4, each interceptor's ``after`` is called exactly once, with the
response or None (if all interceptors are ``alike``, it may not be called); after LATER that may be
much later, even after the connection has ended. ``before`` is always called while the bytes are
being read.

If a handler or interceptor raises, the response has code 1 and the cause, and the error is logged
once. A :class:`BrokerError`, or a header or body that cannot be decoded, is the client's error: the
response has its own code, and nothing is logged. One-way requests never get a response.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import msgspec

from skylark.core.errors import BrokerError, LocalProtocolError, RemoteProtocolError
from skylark.net.write_queue import discard
from skylark.wire.codes import V5_3_1, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.command_codec import ShapedResponse, write

if TYPE_CHECKING:
    from skylark.net.connection import Connection

logger = logging.getLogger(__name__)


class Later(enum.Enum):
    """The type of LATER, which a hot handler returns if its response comes later."""

    LATER = enum.auto()


LATER: Final = Later.LATER
#: The result of a hot handler, unless it is encoded.
Answer: TypeAlias = Command | Literal[Later.LATER] | None
#: What ``Connection.answer`` sends: bytes only if the connection takes frames, None for nothing.
LateAnswer: TypeAlias = Command | ShapedResponse | bytes | None

#: May return a frame (bytes) if the connection takes frames.
HotHandler = Callable[["Connection", Command], Answer | ShapedResponse | bytes]
#: The same for a run. An exception is the response to all of its requests.
RunHandler = Callable[["Connection", list[Command]], Sequence[Answer | ShapedResponse | bytes]]
ColdHandler = Callable[["Connection", Command], Awaitable[Command | None]]

#: Remarks repeat names that a client sent, which may have any length; longer ones are cut.
REMARK_LENGTH_MAX = 16_384

OVERLOAD_REMARK = "[OVERLOAD]system busy, start flow control for a while"


class NoAnswerError(Exception):
    """Raised by an interceptor that has taken over the request: no handler runs, no response."""


class Interceptor(Protocol):
    """Runs before every request that has a handler, and after every response.

    An interceptor with a true attribute ``alike`` decides by code, connection and time only, and
    does not need the responses. If all are alike, the decision about the first request of a code in
    a run holds for the others, and ``after`` is not called for encoded responses.
    """

    def before(self, connection: Connection, request: Command) -> Command | None:
        """Return None to continue or a response to send instead; may raise like a handler.

        After NoAnswerError no handler runs and no response is sent.
        """

    def after(
        self, connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        """The response to send in place of ``response``; None sends nothing.

        To keep a ``ViewResponse`` for later, copy its body first: its lease ends after this call.
        """


class Route(msgspec.Struct, frozen=True):
    """The handler of one request code, either hot or cold."""

    hot: HotHandler | None = None
    cold: ColdHandler | None = None


class Dispatcher:
    """Table of request code -> handler, of a server or for the requests a client receives."""

    def __init__(
        self, interceptors: Iterable[Interceptor] = (), *, tasks_max: int = 10_000
    ) -> None:
        self._routes: dict[int, Route] = {}
        #: Run handlers by request code.
        self.runs: dict[int, RunHandler] = {}
        self._default: Route | None = None
        self.interceptors = tuple(interceptors)
        self.shutting_down = False
        #: Called with the number of requests after runs were handled and their responses written.
        self.after_runs: Callable[[int], None] | None = None
        #: Running cold handlers of all connections. They outlive their connection.
        self.tasks: set[asyncio.Task[None]] = set()
        #: At this many tasks a further request gets SYSTEM_BUSY with [OVERLOAD].
        self.tasks_max = tasks_max

    @property
    def interceptors(self) -> tuple[Interceptor, ...]:
        """The interceptors, in the order in which their ``before`` is called."""
        return self._interceptors

    @interceptors.setter
    def interceptors(self, interceptors: Iterable[Interceptor]) -> None:
        self._interceptors = tuple(interceptors)
        #: Whether all interceptors are ``alike``.
        self.judged_alike = all(getattr(each, "alike", False) for each in self._interceptors)

    def add_hot(self, code: int, handler: HotHandler, *, run: RunHandler | None = None) -> None:
        """Add a hot handler; ``run``, if given, is its form for runs."""
        self._add(code, Route(hot=handler))
        if run is not None:
            self.runs[int(code)] = run

    def add_run(self, code: int, run: RunHandler) -> None:
        """Add a run handler that also takes single requests, as runs of one."""

        def alone(connection: Connection, request: Command) -> Answer | ShapedResponse | bytes:
            return run(connection, [request])[0]

        self.add_hot(code, alone, run=run)

    def add_cold(self, code: int, handler: ColdHandler) -> None:
        self._add(code, Route(cold=handler))

    def set_default(self, handler: ColdHandler) -> None:
        """Set the handler of all codes without a handler."""
        self._default = Route(cold=handler)

    def _add(self, code: int, route: Route) -> None:
        if code in self._routes:
            raise ValueError(f"request code {code} has a handler already")
        self._routes[int(code)] = route

    @property
    def codes(self) -> frozenset[int]:
        """The codes that have a handler."""
        return frozenset(self._routes)

    def dispatch(self, connection: Connection, request: Command) -> None:
        """Handle one request; ``connection`` sends the response, if any."""
        route = self._routes.get(request.code, self._default)
        if route is None:
            remark = f" request type {request.code} not supported"
            self._answer(connection, request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        elif self.shutting_down and request.version > V5_3_1:
            self._send_go_away(connection, request)
        elif route.hot is not None:
            self._run_hot(connection, request, route.hot)
        elif len(self.tasks) >= self.tasks_max:
            self._answer(connection, request, ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        elif route.cold is not None and self._is_admitted(connection, request):
            connection.spawn(self._run_cold(connection, request, route.cold), request)

    def _run_hot(self, connection: Connection, request: Command, handler: HotHandler) -> None:
        response: Answer | ShapedResponse | bytes
        try:
            response = self._before(connection, request)
            if response is None:
                response = handler(connection, request)
        except NoAnswerError:
            response = None
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - becomes code 1
            response = error_response(request, error)
        if response is LATER:
            connection.hold(request)
        else:
            self.finish(connection, request, response)

    def dispatch_run(self, connection: Connection, requests: list[Command]) -> None:
        """:meth:`dispatch` for a run: its codes have the same handler in ``runs``."""
        admitted = self._admitted(connection, requests)
        if not admitted:
            return
        answers: Sequence[Answer | ShapedResponse | bytes]
        try:
            answers = self.runs[admitted[0].code](connection, admitted)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as in _run_hot
            answers = [error_response(request, error) for request in admitted]
        for request, response in zip(admitted, answers, strict=True):
            if response is LATER:
                connection.hold(request)
            else:
                self.finish(connection, request, response)

    def _admitted(self, connection: Connection, requests: list[Command]) -> list[Command]:
        """The requests that checks and interceptors admit; decides once per code if possible."""
        if self.shutting_down or not self.judged_alike:
            return [each for each in requests if self._is_admitted(connection, each)]
        if len(requests) == 1:
            return requests if self._is_admitted(connection, requests[0]) else []
        decided: set[int] = set()
        admitted: list[Command] = []
        for index, request in enumerate(requests):
            if request.code not in decided:
                if not self._is_admitted(connection, request):
                    rest = requests[index + 1 :]
                    return admitted + [each for each in rest if self._is_admitted(connection, each)]
                decided.add(request.code)
            admitted.append(request)
        return admitted

    def _is_admitted(self, connection: Connection, request: Command) -> bool:
        """Whether checks and interceptors admit the request; if not, sends the response."""
        if self.shutting_down and request.version > V5_3_1:
            self._send_go_away(connection, request)
            return False
        response: Command | None
        try:
            response = self._before(connection, request)
            if response is None:
                return True
        except NoAnswerError:
            response = None
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as in _run_hot
            response = error_response(request, error)
        self.finish(connection, request, response)
        return False

    async def _run_cold(
        self, connection: Connection, request: Command, handler: ColdHandler
    ) -> None:
        response: Command | None
        try:
            response = await handler(connection, request)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled, but something that the handler awaited was.
            response = error_response(request, error)
        except Exception as error:  # noqa: BLE001 - becomes code 1
            response = error_response(request, error)
        if response is not None and not request.is_oneway:
            await connection.drain()  # a slow reader gets its responses one by one
        self.finish(connection, request, response)

    def _before(self, connection: Connection, request: Command) -> Command | None:
        for interceptor in self._interceptors:
            answer = interceptor.before(connection, request)
            if answer is not None:
                return answer
        return None

    def finish(self, connection: Connection, request: Command, response: LateAnswer) -> None:
        """Pass the response to the interceptors and send it; once for each request.

        A frame (bytes) bypasses the interceptors; it is allowed only if all of them are alike.
        """
        if isinstance(response, ShapedResponse):
            response = _encoded(response) if connection.takes_frames else response.command()
        if isinstance(response, bytes):
            connection.reply_frame(request, response)
            return
        answer = response
        for interceptor in reversed(self._interceptors):
            try:
                answer = interceptor.after(connection, request, answer)
            except Exception as error:  # noqa: BLE001 - as if the handler had raised it
                answer = error_response(request, error)
        if answer is not response:
            discard(response)
        if answer is not None:
            remark = answer.remark
            if remark is not None and len(remark) > REMARK_LENGTH_MAX:
                answer.remark = f"{remark[:REMARK_LENGTH_MAX]}... ({len(remark)} characters)"
            connection.reply(request, answer)

    def _send_go_away(self, connection: Connection, request: Command) -> None:
        remark = "please go away, the server is shutting down: connect again and repeat"
        self._answer(connection, request, ResponseCode.GO_AWAY, remark)

    def _answer(self, connection: Connection, request: Command, code: int, remark: str) -> None:
        connection.reply(request, response_to(request, code, remark))


def _encoded(response: ShapedResponse) -> bytes | Command:
    """The frame, or the command if it cannot be encoded: ``reply`` then sends an error instead."""
    try:
        return write(response)
    except LocalProtocolError:
        return response.command()


def error_response(request: Command, error: BaseException) -> Command:
    """The response to a request whose handler raised ``error``."""
    if isinstance(error, BrokerError):
        return response_to(request, error.code, str(error))
    if isinstance(error, RemoteProtocolError):
        return response_to(request, ResponseCode.SYSTEM_ERROR, str(error))
    logger.error("request %s (opaque %s) failed", request.code, request.opaque, exc_info=error)
    return response_to(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
