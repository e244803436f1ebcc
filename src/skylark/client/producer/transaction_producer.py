"""Transactional messages: visible to consumers only after a commit.

::

    half message sent  ->  local transaction  ->  commit / rollback (37)  ->  visible / deleted
                           no decision sent   <-  check-back of the broker (39), repeatedly

The broker stores the half message, invisible to consumers. The client sends the decision one-way:
if it is lost, or if it is *unknown*, the broker sends a check-back to any producer of the group,
and the checker returns how the transaction ended. So a checker must be registered before the first
transaction. Check-backs arrive on the control loop and run on the producer's loop, one after the
other; plain functions run in a thread. At most 2,000 wait; the broker repeats those that were
dropped.

A half message that is stored with a status other than SEND_OK is rolled back, and the local
transaction does not run.

Counterpart of Java's ``TransactionMQProducer``, ``TransactionListener`` and
``checkTransactionState``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar

import msgspec

from skylark.client.core.argument_checks import shown
from skylark.client.core.broker_request_handlers import TransactionCheck
from skylark.client.core.client_message import Message, MessageExt, SendResult, SendStatus, TxState
from skylark.client.core.control_loop import Handover
from skylark.client.core.hooks import EndTransactionContext, call_hooks, hook_methods
from skylark.client.core.threads import call_in_thread
from skylark.client.producer.send_retry import SendMode
from skylark.client.producer.sender import Sender
from skylark.client.telemetry import Telemetry
from skylark.core.clock import Clock
from skylark.core.errors import (
    ClientError,
    ClientStateError,
    ConfigError,
    SendFailedError,
    SkylarkError,
)
from skylark.core.hashing import decode_offset_id
from skylark.core.lifecycle import Tasks
from skylark.wire import properties as names
from skylark.wire.headers.txn import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    TRANSACTION_UNKNOWN,
    EndTransactionRequestHeader,
)

logger = logging.getLogger(__name__)

CHECKS_WAITING_MAX: Final = 2_000
_REMARK_LENGTH_MAX: Final = 1_000
_COMMIT_OR_ROLLBACK: Final = {
    TxState.COMMIT: TRANSACTION_COMMIT,
    TxState.ROLLBACK: TRANSACTION_ROLLBACK,
    TxState.UNKNOWN: TRANSACTION_UNKNOWN,
}

Outcome: TypeAlias = TxState | None
#: Returns how the transaction of a message ended; None counts as unknown.
Checker: TypeAlias = Callable[[MessageExt], Outcome | Awaitable[Outcome]]


ListenerT = TypeVar("ListenerT")


class TransactionListener(Protocol):
    """The local transactions of an application; both methods may be coroutines."""

    def execute(self, message: Message, arg: Any) -> Outcome | Awaitable[Outcome]:
        """Run the local transaction; ``message.properties["UNIQ_KEY"]`` is its id."""

    def check(self, message: MessageExt) -> Outcome | Awaitable[Outcome]:
        """Return how the transaction ended; ``message.transaction_id`` is its id."""


def checked_listener(listener: ListenerT) -> ListenerT:
    """The listener, if it has both methods; raises ConfigError."""
    for name in ("execute", "check"):
        if not callable(getattr(listener, name, None)):
            raise ConfigError(
                f"transaction_listener {shown(listener)} has no method {name}",
                hint="it must be an object with execute(message, arg) and check(message)",
            )
    return listener


class TransactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was sent in a transaction."""

    sent: SendResult
    state: TxState  #: how the local transaction ended


class Transactions:
    """The transactions of one producer, on its loop."""

    def __init__(
        self,
        sender: Sender,
        clock: Clock,
        tasks: Tasks,
        hooks: Sequence[object] = (),
    ) -> None:
        self._sender = sender
        self._clock = clock
        self._tasks = tasks
        self._hooks = hook_methods(hooks, "end_transaction")
        self._handover = Handover(asyncio.get_running_loop())
        self._checks: deque[TransactionCheck] = deque()
        self._checking = False
        self.checker: Checker | None = None
        self.spans: Telemetry | None = None

    # ---- half messages --------------------------------------------------------------------------

    async def send_half(self, message: Message, timeout_s: float, delay: Mapping[str, str]) -> Half:
        """Store a half message; raises ClientError, with the cause, if that fails.

        ``delay`` has the properties of a delayed delivery.
        """
        if self.checker is None:
            raise ClientError(
                "there is no transaction listener or checker to answer check-backs",
                hint="register a checker first: @producer.transaction_checker",
            )
        if self.spans is None:
            return await self._send_half(message, timeout_s, delay)
        with self.spans.sending(message) as sending:
            half = await self._send_half(sending.message, timeout_s, delay)
            sending.done(half.sent)
            return half

    async def _send_half(
        self, message: Message, timeout_s: float, delay: Mapping[str, str]
    ) -> Half:
        began = self._clock.monotonic()
        state = self._sender.checked(message)
        extra = {
            **delay,
            names.PROPERTY_TRAN_MSG: "true",
            names.PROPERTY_PGROUP: self._sender.group,
        }
        try:
            await self._sender.introduce(state)
            parcel = await self._sender.parcel(message, extra)
            sent = await self._sender.send(state, parcel, SendMode.SYNC, timeout_s, began)
        except SkylarkError as error:
            raise SendFailedError(
                f"send message Exception: {error}",
                response_code=getattr(error, "response_code", None),
            ) from error
        return Half(message=message, topic=state.topic, sent=sent)

    async def run(
        self, message: Message, arg: object, execute: Callable[..., Any], timeout_s: float
    ) -> TransactionResult:
        """Send the half message, run the local transaction, and send its outcome."""
        half = await self.send_half(message, timeout_s, {})
        if half.sent.status is not SendStatus.SEND_OK:
            await self.end(half, TxState.ROLLBACK)
            return TransactionResult(sent=half.sent, state=TxState.ROLLBACK)
        remark: str | None = None
        try:
            outcome = await call_user(execute, half.listened(), arg)
            state = outcome if isinstance(outcome, TxState) else TxState.UNKNOWN
        except Exception as error:
            logger.exception("a local transaction of group %s failed", self._sender.group)
            state = TxState.UNKNOWN
            remark = _remark("executeLocalTransactionBranch exception", error)
        await self.end(half, state, remark)
        return TransactionResult(sent=half.sent, state=state)

    # ---- the outcome -----------------------------------------------------------------------------

    async def end(self, half: Half, state: TxState, remark: str | None = None) -> None:
        """Send the decision to the broker; if that fails, a check-back follows."""
        sent = half.sent
        try:
            queue = self._sender.namespace.wrap_queue(sent.queue)
            address = await self._sender.link.lookup.master_of(queue)
            header = EndTransactionRequestHeader(
                topic=half.topic,
                producer_group=self._sender.group,
                tran_state_table_offset=sent.queue_offset,
                commit_log_offset=decode_offset_id(sent.offset_msg_id or sent.msg_id).log_offset,
                commit_or_rollback=_COMMIT_OR_ROLLBACK[state],
                msg_id=sent.msg_id,
                transaction_id=sent.transaction_id,
            )
            await self._sender.link.calls.end_transaction(
                address, header, queue.broker_name, remark=remark
            )
        except SkylarkError as error:
            logger.warning(
                "cannot send the %s of transaction %s, a check-back will follow: %s",
                state.value,
                sent.msg_id,
                error,
            )
            return
        self._call_hooks(half.message, sent.msg_id, sent.transaction_id, address, state, False)

    def _call_hooks(
        self,
        message: Message | MessageExt,
        msg_id: str,
        transaction_id: str | None,
        address: str,
        state: TxState,
        from_check: bool,
    ) -> None:
        if self._hooks:
            context = EndTransactionContext(
                group=self._sender.namespace.unwrap(self._sender.group),
                message=message,
                msg_id=msg_id,
                transaction_id=transaction_id,
                broker_address=address,
                state=state,
                from_check=from_check,
            )
            call_hooks(self._hooks, context)

    # ---- checks ----------------------------------------------------------------------------------

    def check_transaction(self, check: TransactionCheck) -> None:
        """Queue a check-back of a broker; called on the control loop."""
        if len(self._checks) >= CHECKS_WAITING_MAX:
            logger.warning("%d check-backs wait: one more is dropped", len(self._checks))
            return
        self._checks.append(check)
        self._handover.post(self._begin_checks)

    def _begin_checks(self) -> None:
        if self._checks and not self._checking and not self._tasks.closed:
            self._checking = True
            self._tasks.spawn(self._run_checks(), name="transaction checks")

    async def _run_checks(self) -> None:
        try:
            while self._checks:
                try:
                    await self._answer(self._checks.popleft())
                except Exception:  # such as an error of a hook
                    logger.exception("a check-back failed, the broker will repeat it")
        finally:
            self._checking = False

    async def _answer(self, check: TransactionCheck) -> None:
        checker = self.checker
        if checker is None:
            logger.warning("group %s has no checker to answer a check-back", self._sender.group)
            return
        record = check.record
        message = MessageExt(
            record, check.broker_name or "", self._sender.namespace.unwrap(record.topic)
        )
        remark: str | None = None
        try:
            outcome = await call_user(checker, message)
            state = outcome if isinstance(outcome, TxState) else TxState.UNKNOWN
        except Exception as error:
            logger.exception("the checker of group %s failed", self._sender.group)
            state = TxState.UNKNOWN
            remark = _remark("checkLocalTransactionState Exception", error)
        asked = check.header
        header = EndTransactionRequestHeader(
            topic=asked.topic,
            producer_group=self._sender.group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=_COMMIT_OR_ROLLBACK[state],
            from_transaction_check=True,
            msg_id=record.properties.get(names.PROPERTY_UNIQ_KEY) or asked.msg_id or "",
            transaction_id=asked.transaction_id,
        )
        try:
            await self._sender.link.calls.end_transaction(
                check.address, header, check.broker_name or "", remark=remark
            )
        except SkylarkError as error:
            logger.warning("cannot send the answer to a check-back of %s: %s", check.address, error)
            return
        self._call_hooks(message, header.msg_id, asked.transaction_id, check.address, state, True)


class Half(msgspec.Struct, frozen=True, kw_only=True):
    """A stored half message."""

    message: Message
    topic: str  #: as brokers know it
    sent: SendResult

    def listened(self) -> Message:
        """The message with its ids, for the listener."""
        properties = {**self.message.properties, names.PROPERTY_UNIQ_KEY: self.sent.msg_id}
        if self.sent.transaction_id is not None:
            properties[names.PROPERTY_TRANSACTION_ID] = self.sent.transaction_id
        return msgspec.structs.replace(self.message, properties=properties)


class Transaction:
    """``async with producer.transaction(message) as tx``: committed at the end of the block.

    An exception in the block rolls back. ``tx.rollback()`` and ``tx.unknown()`` decide otherwise;
    after ``unknown`` the broker sends a check-back.
    """

    def __init__(
        self,
        transactions: Transactions,
        message: Message,
        timeout_s: float,
        delay: Mapping[str, str] | None = None,
    ) -> None:
        self._transactions = transactions
        self._message = message
        self._timeout_s = timeout_s
        self._delay = delay or {}
        self._half: Half | None = None
        self._state: TxState | None = None
        self._ended = False

    @property
    def sent(self) -> SendResult:
        """The result of the half message."""
        if self._half is None:
            raise ClientError("the transaction has not begun", hint="use it by `async with`")
        return self._half.sent

    @property
    def id(self) -> str:
        """The id that the checker gets in ``message.transaction_id``."""
        return self.sent.msg_id

    @property
    def state(self) -> TxState | None:
        """The decision; None while it is open."""
        return self._state

    def rollback(self) -> None:
        """Roll the message back at the end of the block; raises ClientStateError after it."""
        self._decide(TxState.ROLLBACK)

    def unknown(self) -> None:
        """Decide nothing at the end of the block: the broker will send a check-back.

        Raises ClientStateError after the block.
        """
        self._decide(TxState.UNKNOWN)

    def _decide(self, state: TxState) -> None:
        if self._ended and self._state is not None:
            raise ClientStateError(
                f"the transaction has ended with {self._state.name}: it cannot be changed",
                hint="decide inside the block",
            )
        self._state = state

    async def __aenter__(self) -> Self:
        if self._half is not None:
            raise ClientError("a transaction can be used once")
        half = await self._transactions.send_half(self._message, self._timeout_s, self._delay)
        self._half = half
        if half.sent.status is not SendStatus.SEND_OK:
            self._state, self._ended = TxState.ROLLBACK, True
            await self._transactions.end(half, TxState.ROLLBACK)
            raise SendFailedError(
                f"the half message is stored with {half.sent.status.value}: rolled back",
                hint="nothing was done: the transaction can be repeated",
            )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._half is not None
        remark = None
        if exc is not None:
            remark = _remark("executeLocalTransactionBranch exception", exc)
        if self._state is None:
            self._state = TxState.COMMIT if exc is None else TxState.ROLLBACK
        self._ended = True
        await self._transactions.end(self._half, self._state, remark)


async def call_user(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the application: a coroutine here, a plain one in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    result = await call_in_thread(function, *args)
    return await result if inspect.isawaitable(result) else result


def _remark(what: str, error: BaseException) -> str:
    return f"{what}: {error!r}"[:_REMARK_LENGTH_MAX]
