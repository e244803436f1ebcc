"""Hooks: objects of an application whose methods a client calls at sends, pulls and requests.

======================  ================================================================
:class:`RpcHook`        before and after every request, of both planes
:class:`SendHook`       before and after every attempt to send a message
:class:`EndTransactionHook`  after the outcome of a transaction was sent
:class:`ForbiddenHook`  before a send; may raise to stop it
:class:`ConsumeHook`    before and after a handler gets messages
:class:`FilterHook`     takes out of what was pulled what no handler shall get
======================  ================================================================

A hook is any object; methods that it does not have are not called. What a hook raises is logged and
ignored, except by RpcHook.before and ForbiddenHook, whose errors reach the caller. RPC hooks run on
both planes, so they may be called from two threads.

Other than Java's client, which runs ``after_send`` of an asynchronous send twice (once without a
result), each hook runs once, with the outcome. Counterpart of Java's ``RPCHook``,
``SendMessageHook``, ``EndTransactionHook``, ``CheckForbiddenHook`` and ``ConsumeMessageHook``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from skylark.client.core.client_message import Message, MessageExt, SendResult, TxState
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.command import Command

log = logging.getLogger(__name__)


class RpcHook(Protocol):
    """Sees every request; ``request`` may be changed before it is signed and sent."""

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
    """Sees every attempt to send."""

    def before_send(self, context: SendContext) -> None:
        """The request is about to leave."""

    def after_send(self, context: SendContext) -> None:
        """It has its result or its error."""


class EndTransactionContext(msgspec.Struct, kw_only=True):
    """The outcome of a transaction, sent to ``broker_address``."""

    group: str
    message: Message | MessageExt
    msg_id: str
    transaction_id: str | None
    broker_address: str
    state: TxState
    from_check: bool


class EndTransactionHook(Protocol):
    """Sees how transactions end."""

    def end_transaction(self, context: EndTransactionContext) -> None:
        """The outcome was sent."""


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
    status: str | None = None  #: what the handler's end amounts to
    return_type: str | None = None  #: SUCCESS, TIME_OUT, EXCEPTION, RETURNNULL or FAILED
    values: dict[str, object] = msgspec.field(default_factory=dict)  #: free for the hook


class ConsumeHook(Protocol):
    """Sees every call of a handler."""

    def before_consume(self, context: ConsumeContext) -> None:
        """The handler is about to be called."""

    def after_consume(self, context: ConsumeContext) -> None:
        """It has ended."""


class FilterHook(Protocol):
    """Sees what was pulled before handlers do."""

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
    """Call all of them; what one raises is logged, and the others are called nevertheless."""
    for method in methods:
        try:
            method(*args)
        except Exception:
            log.exception("hook %r failed", method)
