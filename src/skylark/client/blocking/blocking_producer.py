"""The blocking producer, and its transactions.

::

    with Producer("orders", options) as producer:
        result = producer.send(Message("T", b"hello"))
        futures = [producer.submit(message) for message in messages]

        @producer.transaction_checker
        def check(message: MessageExt) -> TxState: ...

        with producer.transaction(message) as tx:
            ...                                    # an exception rolls back

Any number of threads may share one: small messages that they send at the same time share a request.
``submit`` is fast for a single thread: it does not wait for responses, only for a permit while too
many messages are in flight.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Never, Protocol, Self, TypeAlias, TypeVar, Unpack

from skylark.client.blocking.blocking_client import BlockingClient, LoopFacade, waiting
from skylark.client.blocking.caller_errors import ABOUT_SERVERS, without_frames
from skylark.client.blocking.event_loop_thread import EventLoopThread
from skylark.client.core.client_message import Message, MessageExt, SendResult, TxState
from skylark.client.core.client_options import ClientOptions, Duration, seconds
from skylark.client.core.service_state import require_running
from skylark.client.core.validation import too_many_arguments
from skylark.client.producer import producer as aio
from skylark.client.producer.producer_settings import ProducerKeywords, ProducerSettings
from skylark.client.producer.queue_selector import apply_selector
from skylark.client.producer.send_options import SendKeywords
from skylark.client.producer.transaction_producer import Transaction as AsyncTransaction
from skylark.client.producer.transaction_producer import checked_listener
from skylark.core.errors import ClientError, ClientStateError

#: Returns how the transaction of a message ended; None counts as unknown.
Checker: TypeAlias = Callable[[MessageExt], TxState | None]
CheckerT = TypeVar("CheckerT", bound=Checker)


class TransactionListener(Protocol):
    """The local transactions of an application."""

    def execute(self, message: Message, arg: Any) -> TxState | None:
        """Run the local transaction; ``message.properties["UNIQ_KEY"]`` is its id."""

    def check(self, message: MessageExt) -> TxState | None:
        """Return how the transaction ended; ``message.transaction_id`` is its id."""


class Producer(BlockingClient[aio.Producer]):
    """The blocking producer; see :class:`skylark.aio.Producer` for its methods."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        transaction_listener: TransactionListener | None = None,
        **settings: Unpack[ProducerKeywords],
    ) -> None:
        """Nothing is sent before :meth:`start`; ``settings``: see ProducerSettings."""
        if transaction_listener is not None:
            checked_listener(transaction_listener)
            refuse_coroutine(transaction_listener.execute)
            refuse_coroutine(transaction_listener.check)
        super().__init__(
            aio.Producer(
                group, options, hooks=hooks, transaction_listener=transaction_listener, **settings
            )
        )
        self._submitting: set[asyncio.Task[None]] = set()  # on the loop

    @property
    def settings(self) -> ProducerSettings:
        return self._client.settings

    # ---- sending ---------------------------------------------------------------------------------

    def send(self, message: Message, *more: Never, **how: Unpack[SendKeywords]) -> SendResult:
        """Send and wait until it is stored."""
        if more:
            raise too_many_arguments(message)
        message = self._client._serialized(message)
        if how:
            how = self._select(message, how)
        return self._run(self._client.send(message, **how))

    def submit(self, message: Message, **how: Unpack[SendKeywords]) -> Future[SendResult]:
        """Send without waiting for the response: the future has the result or the error.

        Waits only while too many messages are in flight (``pending_max``, ``pending_bytes_max``);
        raises TooManyRequestsError if that lasts longer than the timeout. The future cannot be
        cancelled: cancelling would not undo the send.
        """
        loop_thread, parts = self._started(), self._client._parts
        if parts is None:
            raise ClientStateError(f"producer {self.group} was stopped")
        began = parts.clock.monotonic()
        message = self._client._serialized(message)
        if how:
            how = self._select(message, how)
        timeout = how.get("timeout")
        body: object = message.body
        size = len(body) if isinstance(body, (bytes, bytearray, memoryview)) else 0
        timeout_s = self.settings.send_timeout if timeout is None else seconds(timeout)
        if not parts.permits.try_take(size):
            parts.permits.take_blocking(size, timeout_s - (parts.clock.monotonic() - began))
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()
        submit = partial(self._client._submit_in_span, parts, message, how, began, size)
        loop_thread.post(self._begin_submit, submit, future)
        return future

    def _begin_submit(
        self,
        submit: Callable[[], Coroutine[Any, Any, asyncio.Future[SendResult]]],
        future: Future[SendResult],
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._submit(submit, future))
        self._submitting.add(task)
        task.add_done_callback(self._submitting.discard)

    async def _submit(
        self,
        submit: Callable[[], Coroutine[Any, Any, asyncio.Future[SendResult]]],
        future: Future[SendResult],
    ) -> None:
        sent: asyncio.Future[SendResult]
        try:
            sent = await submit()
        except Exception as error:  # noqa: BLE001 - any error belongs into the future
            sent = asyncio.get_running_loop().create_future()
            sent.set_exception(error)
        sent.add_done_callback(partial(self._settle, future))

    def _settle(self, future: Future[SendResult], sent: asyncio.Future[Any]) -> None:
        if sent.cancelled():
            future.set_exception(ClientStateError("the producer was stopped meanwhile"))
        elif (error := sent.exception()) is not None:
            if isinstance(error, ABOUT_SERVERS):
                error = without_frames(error)
            future.set_exception(error)
        else:
            future.set_result(sent.result())

    def send_batch(
        self, messages: Sequence[Message], **how: Unpack[SendKeywords]
    ) -> list[SendResult]:
        """Send messages of one topic in one request to one queue; returns their results."""
        messages = tuple(map(self._client._serialized, messages))
        if messages:
            how = self._select(messages[0], how)
        return self._run(self._client.send_batch(messages, **how))

    def send_oneway(self, message: Message, **how: Unpack[SendKeywords]) -> None:
        """Send a message without a response; returns when a connection has accepted it."""
        message = self._client._serialized(message)
        self._run(self._client.send_oneway(message, **self._select(message, how)))

    def flush(self) -> None:
        """Send waiting batches; wait until no batch and no submitted message is in flight."""
        self._run(self._flush())

    async def _flush(self) -> None:
        while self._submitting:
            await asyncio.wait(tuple(self._submitting))
        await self._client.flush()

    queues = waiting(aio.Producer.queues)
    recall = waiting(aio.Producer.recall)

    def _select(self, message: Message, how: SendKeywords) -> SendKeywords:
        """Call a selector in this thread, because it may block."""
        selector = how.get("selector")
        if selector is None or how.get("queue") is not None or how.get("shard") is not None:
            return how  # nothing to select, or an error that the asyncio producer raises
        chosen = apply_selector(
            selector, self.queues(message.topic), message, how.get("selector_arg")
        )
        return {**how, "selector": None, "queue": chosen}

    def _started(self) -> EventLoopThread:
        require_running(self.state, f"producer {self.group}")
        assert self._started_on is not None
        self._started_on.check()
        return self._started_on

    # ---- transactions ----------------------------------------------------------------------------

    def transaction_checker(self, checker: CheckerT) -> CheckerT:
        """Decorator: registers the function that returns how a transaction ended."""
        refuse_coroutine(checker)
        self._do(self._client.transaction_checker, checker)
        return checker

    def transaction(
        self,
        message: Message,
        *,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> Transaction:
        """``with``: commits the message if the block does not raise; see Transaction."""
        loop_thread, message = self._started(), self._client._serialized(message)
        begin = partial(
            self._client.transaction, message, delay=delay, deliver_at=deliver_at, timeout=timeout
        )
        return Transaction(loop_thread.call_plain(begin), loop_thread)

    send_in_transaction = waiting(aio.Producer.send_in_transaction)
    request = waiting(aio.Producer.request)
    reply = waiting(aio.Producer.reply)


class Transaction(LoopFacade[AsyncTransaction]):
    """``with producer.transaction(message) as tx``: committed at the end of the block.

    An exception in the block rolls back. ``tx.rollback()`` and ``tx.unknown()`` decide otherwise;
    after ``unknown`` the broker sends a check-back.
    """

    @property
    def sent(self) -> SendResult:
        """The result of the half message."""
        return self._client.sent

    @property
    def id(self) -> str:
        """The id that the checker finds in ``message.transaction_id``."""
        return self._client.id

    @property
    def state(self) -> TxState | None:
        """The decision; None while it is open."""
        return self._client.state

    def rollback(self) -> None:
        """Roll the message back at the end of the block."""
        self._client.rollback()

    def unknown(self) -> None:
        """Decide nothing at the end of the block: the broker will send a check-back."""
        self._client.unknown()

    def __enter__(self) -> Self:
        self._run(self._client.__aenter__())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._client.__aexit__(exc_type, exc, traceback))


def refuse_coroutine(function: Callable[..., Any]) -> None:
    """Raise ClientError for a coroutine function, which blocking clients cannot run."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    ):
        raise ClientError(
            f"{getattr(function, '__qualname__', function)} is a coroutine function",
            hint="give skylark.sync plain functions, or use skylark.aio",
        )
