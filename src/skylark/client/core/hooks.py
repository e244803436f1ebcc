"""Hooks: objects of an application whose methods a client calls at sends, pulls and requests.

======================  ================================================================
:class:`RpcHook`        before and after every request, of the control and the data plane
:class:`SendHook`       before and after every attempt to send a message
:class:`EndTransactionHook`  after the decision of a transaction was sent
:class:`ForbiddenHook`  before a send; may raise to stop it
:class:`ConsumeHook`    before and after a handler call
:class:`FilterHook`     removes pulled messages before handlers get them
======================  ================================================================

A hook is any object; methods that it lacks are not called. The client logs errors of hooks and
ignores them, except those of RpcHook.before_request and ForbiddenHook, which reach the caller. RPC
hooks may be called from two threads.

Each hook runs once, with the outcome. Java's client runs ``after_send`` of an asynchronous send
twice, once without a result. Counterpart of Java's ``RPCHook``, ``SendMessageHook``,
``EndTransactionHook``, ``CheckForbiddenHook`` and ``ConsumeMessageHook``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from skylark.client.core.client_message import Message, MessageExt, SendResult, TxState
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.command import Command

logger = logging.getLogger(__name__)


class RpcHook(Protocol):
    """Called for every request; may change it before it is signed and sent."""

    def before_request(self, address: str, request: Command) -> None:
        """Called before a request is signed."""

    def after_response(self, address: str, request: Command, response: Command) -> None:
        """Called for every reply, with any code."""


class SendContext(msgspec.Struct, kw_only=True):
    """One attempt to send; the same object before and after."""

    group: str
    message: Message
    queue: MessageQueue | None
    broker_address: str
    mode: str  #: SYNC, ASYNC or ONEWAY
    message_type: str  #: Normal, Trans_Half, Delay or Order, as traces call it
    namespace: str | None = None
    result: SendResult | None = None
    error: BaseException | None = None
    values: dict[str, object] = msgspec.field(default_factory=dict)  #: free for the hook


class SendHook(Protocol):
    """Called for every attempt to send."""

    def before_send(self, context: SendContext) -> None:
        """Called before the request is sent."""

    def after_send(self, context: SendContext) -> None:
        """Called with the result or the error."""


class EndTransactionContext(msgspec.Struct, kw_only=True):
    """The decision of a transaction, sent to ``broker_address``."""

    group: str
    message: Message | MessageExt
    msg_id: str
    transaction_id: str | None
    broker_address: str
    state: TxState
    from_check: bool


class EndTransactionHook(Protocol):
    """Called for decisions of transactions."""

    def end_transaction(self, context: EndTransactionContext) -> None:
        """Called after the decision was sent."""


class ForbiddenHook(Protocol):
    """Decides whether a message may be sent."""

    def check_forbidden(self, context: SendContext) -> None:
        """Raise to stop the send; the caller gets what is raised."""


class ConsumeContext(msgspec.Struct, kw_only=True):
    """One call of a handler; the same object before and after."""

    group: str
    messages: Sequence[MessageExt]
    queue: MessageQueue
    client_id: str
    namespace: str | None = None
    success: bool = False
    status: str | None = None  #: the result of the handler
    return_type: str | None = None  #: SUCCESS, TIME_OUT, EXCEPTION, RETURNNULL or FAILED
    values: dict[str, object] = msgspec.field(default_factory=dict)  #: free for the hook


class ConsumeHook(Protocol):
    """Called for every handler call."""

    def before_consume(self, context: ConsumeContext) -> None:
        """Called before the handler."""

    def after_consume(self, context: ConsumeContext) -> None:
        """Called after the handler."""


class FilterHook(Protocol):
    """Filters pulled messages before handlers get them."""

    def filter_messages(self, queue: MessageQueue, messages: list[MessageExt]) -> None:
        """Remove unwanted messages from the list; they count as consumed."""


class ConsumeHooks:
    """All consume hooks of a consumer."""

    def __init__(self, hooks: Sequence[object]) -> None:
        self._before = hook_methods(hooks, "before_consume")
        self._after = hook_methods(hooks, "after_consume")
        self.any = bool(self._before or self._after)

    def before(self, context: ConsumeContext) -> None:
        call_hooks(self._before, context)

    def after(self, context: ConsumeContext) -> None:
        call_hooks(self._after, context)


def hook_methods(hooks: Iterable[object], method: str) -> tuple[Callable[..., Any], ...]:
    """The methods of this name that the hooks have, in their order."""
    found = (getattr(hook, method, None) for hook in hooks)
    return tuple(each for each in found if callable(each))


def call_hooks(methods: Sequence[Callable[..., Any]], *args: object) -> None:
    """Call all hooks; logs the error of one and continues with the others."""
    for method in methods:
        try:
            method(*args)
        except Exception:
            logger.exception("hook %r failed", method)
