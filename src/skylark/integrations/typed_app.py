"""Typed subscribers: functions that take and return values instead of messages.

::

    app = TypedApp("billing")

    @app.subscriber("orders", publish="invoices")
    async def bill(order: Order) -> Invoice:
        return Invoice(number=order.number)

    app.run()

The annotation of the first parameter says how the body is read: a Pydantic model by itself,
``bytes`` and ``str`` as they are, and everything else (structs, dataclasses, dicts, ``list[int]``,
...) as JSON by msgspec. A second parameter annotated with ``MessageExt`` gets the message. A value
that the function returns is sent to ``publish``, as JSON.

**Guarantees** are those of a push consumer: the message is done when the function has returned and
its result is stored, so that both may happen twice after a crash, and neither is lost. An exception
is a retry. A body that does not fit the annotation can never be handled: it becomes a dead letter
at once, with the reason in the log.

Pydantic is not imported here: a model is recognised by its methods. This layer exists because the
base classes of FastStream's brokers are private (``faststream._internal``) and change with its
minor versions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, Self, TypeVar, Unpack, get_type_hints, runtime_checkable

import msgspec

from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.consumer.push.push_settings import PushKeywords
from skylark.client.core.client_message import DeadLetter, Message, MessageExt, SendResult
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.producer import Producer
from skylark.client.producer.send_options import SendKeywords
from skylark.core.errors import ConfigError

logger = logging.getLogger(__name__)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[Any]])
Decode = Callable[[bytes], Any]
_REASON_LENGTH_MAX: Final = 300


@runtime_checkable
class _Model(Protocol):
    """A Pydantic model."""

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> Any: ...

    def model_dump_json(self) -> str: ...


def decoder_for(annotation: Any) -> Decode:
    """A function that reads a body as a value of this type; it raises ValueError."""
    if annotation is bytes:
        return bytes
    if annotation is str:
        return bytes.decode
    if isinstance(annotation, type) and issubclass(annotation, _Model):
        return annotation.model_validate_json
    hint = "use a Pydantic model, a msgspec.Struct, a dataclass, bytes or str"
    try:
        is_unknown = isinstance(msgspec.inspect.type_info(annotation), msgspec.inspect.CustomType)
        decode: Decode = msgspec.json.Decoder(annotation).decode
    except TypeError as error:
        raise ConfigError(f"messages cannot be read as {annotation}: {error}", hint=hint) from error
    if is_unknown:
        raise ConfigError(f"messages cannot be read as {annotation}", hint=hint)
    return decode


def encode(value: Any) -> bytes:
    """A value as the body of a message."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, _Model):
        return value.model_dump_json().encode()
    return msgspec.json.encode(value)


class TypedApp:
    """Subscribers of one consumer group, with one producer, for ``async with``."""

    def __init__(
        self, group: str, options: ClientOptions | None = None, **settings: Unpack[PushKeywords]
    ) -> None:
        """Create the consumer with ``settings`` and the producer; ``start()`` connects them."""
        self.consumer = PushConsumer(group, options, **settings)
        self.producer = Producer(f"{group}-publisher", options)

    def subscriber(
        self, topic: str, *, publish: str | None = None, tags: str | None = None,
        sql: str | None = None, orderly: bool = False,
    ) -> Callable[[FunctionT], FunctionT]:  # fmt: skip
        """Return a decorator: its function gets the value of each message of a topic.

        ``tags``, ``sql`` and ``orderly`` are those of ``PushConsumer.subscribe``. Raises
        ConfigError for a function that cannot be called so.
        """

        def add(function: FunctionT) -> FunctionT:
            handler = self._handler(function, publish)
            self.consumer.subscribe(topic, handler, tags=tags, sql=sql, orderly=orderly)
            return function

        return add

    async def publish(
        self, topic: str, value: Any, *, tag: str | None = None, **how: Unpack[SendKeywords]
    ) -> SendResult:
        """Send a value; ``how`` has the options of ``Producer.send``."""
        return await self.producer.send(Message(topic, encode(value), tag=tag), **how)

    async def start(self) -> None:
        """Start the producer, then the consumer."""
        await self.producer.start()
        try:
            await self.consumer.start()
        except BaseException:
            await self.producer.stop()
            raise

    async def stop(self) -> None:
        """Stop the consumer, whose functions may still publish, then the producer."""
        try:
            await self.consumer.stop()
        finally:
            await self.producer.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def run(self) -> None:
        """Consume until SIGTERM or Ctrl-C: the main function of a service."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        await self.producer.start()
        try:
            await self.consumer.run()
        finally:
            await self.producer.stop()

    def _handler(
        self, function: Callable[..., Awaitable[Any]], publish: str | None
    ) -> Callable[[MessageExt], Awaitable[None]]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"{_name(function)} is not a coroutine function", hint="async def")
        decode, wants_message = _reading(function)

        async def handle(message: MessageExt) -> None:
            try:
                value = message if decode is None else decode(message.body)
            except ValueError as error:  # msgspec's, Pydantic's and Unicode's errors are such
                reason = str(error)[:_REASON_LENGTH_MAX]
                logger.warning(
                    "%s of %s is a dead letter: %s", message.msg_id, message.topic, reason
                )
                raise DeadLetter(reason) from error
            result = await (function(value, message) if wants_message else function(value))
            if publish is not None and result is not None:
                await self.publish(publish, result)

        handle.__qualname__ = _name(function)
        return handle


def _reading(function: Callable[..., Any]) -> tuple[Decode | None, bool]:
    """How a function wants its message: a decoder, or None for the message itself, and whether it
    wants the message too."""
    parameters = list(inspect.signature(function).parameters)
    hints = get_type_hints(function)
    if not 1 <= len(parameters) <= 2:
        raise ConfigError(
            f"{_name(function)} takes {len(parameters)} arguments",
            hint="one for the value, and if wanted one annotated with MessageExt",
        )
    if parameters[0] not in hints:
        raise ConfigError(
            f"the parameter {parameters[0]} of {_name(function)} has no annotation",
            hint="it says how messages are read, such as order: Order",
        )
    if len(parameters) == 2 and hints.get(parameters[1]) is not MessageExt:
        raise ConfigError(
            f"the parameter {parameters[1]} of {_name(function)} must be a MessageExt"
        )
    annotation = hints[parameters[0]]
    decode = None if annotation is MessageExt else decoder_for(annotation)
    return decode, len(parameters) == 2


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))
