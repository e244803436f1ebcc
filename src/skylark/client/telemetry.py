"""OpenTelemetry spans around sends and handlers, where the application uses OpenTelemetry.

============  =========================  ======================================================
span          kind                       begins and ends
============  =========================  ======================================================
``send T``    PRODUCER                   with a send of any form, until it has its outcome
``process T`` CONSUMER                   with the call of a handler, which sees it as current
============  =========================  ======================================================

The context of a send travels in the properties ``traceparent`` and ``tracestate`` of the message
(W3C, or the propagator that the application has set). A handler of single messages continues that
trace; a handler of lists has a new span with a link to each message. Pull consumers
have no handler: :func:`context_of` gives the context of a message for a span of the application.

``ClientOptions(telemetry=...)``: None, the default, enables spans if the application has set a
tracer provider before the client starts; otherwise it costs nothing, not even an import. True
requires the package and raises ConfigError without it (``pip install "skylark-mq[otel]"``). A
tracer provider is used instead of the global one. False disables spans.

Attributes follow the semantic conventions for messaging (``messaging.system`` is ``rocketmq``).
OpenTelemetry logs errors of spans; a send or a handler never fails because of them. Counterpart of
Java's ``SendMessageOpenTracingHookImpl`` and ``ConsumeMessageOpenTracingHookImpl``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from skylark.client.consumer.push.message_handlers import Binding, Handler
from skylark.client.core.client_message import KEY_SEPARATOR, Message, MessageExt, SendResult
from skylark.core.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, TracerProvider

INSTRUMENTATION: Final = "skylark"
SYSTEM: Final = "rocketmq"
_CLIENT_NAMES: Final = {
    "client_id": "messaging.client.id",
    "group": "messaging.consumer.group.name",
    "namespace": "messaging.rocketmq.namespace",
}


def find_telemetry(option: object, **client: str | None) -> Telemetry | None:
    """The telemetry for ``ClientOptions.telemetry``; raises ConfigError.

    ``client`` has attributes of all spans: ``client_id``, ``namespace``, ``group`` of a consumer.
    """
    if option is False:
        return None
    if option is None:
        loaded = sys.modules.get("opentelemetry.trace")
        if loaded is None:  # no provider can be set
            return None
        provider = loaded.get_tracer_provider()
        if type(provider).__name__ in ("ProxyTracerProvider", "NoOpTracerProvider"):
            return None
        return Telemetry(provider, client)
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ConfigError(
            "telemetry needs the package opentelemetry-api",
            hint='pip install "skylark-mq[otel]"',
        ) from error
    if option is True:
        return Telemetry(trace.get_tracer_provider(), client)
    return Telemetry(cast("TracerProvider", option), client)


def context_of(message: MessageExt) -> Context:
    """The OpenTelemetry context that a message was sent in, for spans of the application.

    Raises ImportError without the package.
    """
    from opentelemetry import propagate

    return propagate.extract(message.properties)


class Telemetry:
    """Spans of one producer or consumer."""

    def __init__(self, provider: TracerProvider, client: Mapping[str, str | None]) -> None:
        self._tracer = provider.get_tracer(INSTRUMENTATION)
        self._client: dict[str, Any] = {"messaging.system": SYSTEM}
        self._client |= {_CLIENT_NAMES[name]: value for name, value in client.items() if value}

    # ---- sends -----------------------------------------------------------------------------------

    @contextmanager
    def sending(self, *messages: Message) -> Iterator[Sending]:
        """A span around a send; ``sending.messages`` have the context in their properties."""
        sending = self.begin(*messages)
        try:
            yield sending
        except BaseException as error:
            sending.failed(error)
            raise
        finally:
            sending.end()

    def begin(self, *messages: Message) -> Sending:
        """Start the span of a send, or of a batch with several messages; the caller ends it."""
        from opentelemetry import propagate, trace

        topic = messages[0].topic
        attributes: dict[str, Any] = {
            **self._client,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.message.body.size": sum(len(message.body) for message in messages),
        }
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes |= _message_attributes(messages[0].tag, messages[0].keys)
        kind = trace.SpanKind.PRODUCER
        span = self._tracer.start_span(f"send {topic}", kind=kind, attributes=attributes)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, context=trace.set_span_in_context(span))
        carried = [
            msgspec.structs.replace(each, properties={**each.properties, **carrier})
            for each in messages
        ]
        return Sending(span, carried)

    # ---- handlers --------------------------------------------------------------------------------

    def bindings(self, bindings: Mapping[str, Binding]) -> Mapping[str, Binding]:
        """The same handlers, each call with a span; ``bindings`` may still grow."""
        return _Spanned(bindings, self._spanned)

    def _spanned(self, binding: Binding) -> Binding:
        handler = binding.handler
        call: Handler
        if binding.is_async:

            async def call_async(received: Any) -> Any:
                with self._processing(binding.topic, received):
                    return await handler(received)

            call = call_async
        else:

            def call_plain(received: Any) -> Any:
                with self._processing(binding.topic, received):
                    return handler(received)

            call = call_plain
        call.__qualname__ = binding.name
        return msgspec.structs.replace(binding, handler=call)

    @contextmanager
    def _processing(self, topic: str, received: Any) -> Iterator[None]:
        from opentelemetry.trace import SpanKind

        messages: list[MessageExt] = received if isinstance(received, list) else [received]
        attributes: dict[str, Any] = {
            **self._client,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": topic,
        }
        parent, links = None, []
        if isinstance(received, list):
            attributes["messaging.batch.message_count"] = len(messages)
            links = list(self._links(messages))
        else:
            message = messages[0]
            parent = context_of(message)
            attributes |= {
                **_message_attributes(message.tag, message.keys),
                "messaging.message.id": message.msg_id,
                "messaging.message.body.size": len(message.record.body),
                "messaging.destination.partition.id": str(message.queue_id),
            }
        with self._tracer.start_as_current_span(
            f"process {topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                record_error(span, error)
                raise

    def _links(self, messages: Sequence[MessageExt]) -> Iterator[Link]:
        from opentelemetry import trace

        for message in messages:
            sent = trace.get_current_span(context_of(message)).get_span_context()
            if sent.is_valid:
                yield trace.Link(sent, {"messaging.message.id": message.msg_id})


class Sending:
    """The span of a send in flight."""

    def __init__(self, span: Span, messages: list[Message]) -> None:
        self._span = span
        self.messages = messages  #: the messages to send, with the context in their properties

    @property
    def message(self) -> Message:
        """The only one."""
        return self.messages[0]

    def done(self, result: SendResult) -> None:
        """Record the result; does not end the span."""
        self._span.set_attribute("messaging.message.id", result.msg_id)
        self._span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))

    def failed(self, error: BaseException) -> None:
        """Record the error; does not end the span."""
        record_error(self._span, error)

    def end(self) -> None:
        self._span.end()

    def settle(self, future: asyncio.Future[SendResult]) -> None:
        """End the span with the result of a future; a done callback."""
        if future.cancelled():
            self.failed(asyncio.CancelledError())
        elif (error := future.exception()) is not None:
            self.failed(error)
        else:
            self.done(future.result())
        self.end()


class _Spanned(Mapping[str, Binding]):
    """A view of bindings, each wrapped once by a function."""

    def __init__(self, bindings: Mapping[str, Binding], wrap: Callable[[Binding], Binding]) -> None:
        self._bindings = bindings
        self._wrap = wrap
        self._wrapped: dict[str, tuple[Binding, Binding]] = {}

    def __getitem__(self, topic: str) -> Binding:
        binding = self._bindings[topic]
        known = self._wrapped.get(topic)
        if known is None or known[0] is not binding:  # subscribed again
            known = self._wrapped[topic] = (binding, self._wrap(binding))
        return known[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bindings)

    def __len__(self) -> int:
        return len(self._bindings)


def record_error(span: Span, error: BaseException) -> None:
    """Record an error in a span."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", type(error).__qualname__)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error) or type(error).__qualname__))


def _message_attributes(tag: str | None, keys: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if tag is not None:
        found["messaging.rocketmq.message.tag"] = tag
    if keys:
        found["messaging.rocketmq.message.keys"] = (
            keys.split(KEY_SEPARATOR) if isinstance(keys, str) else list(keys)
        )
    return found
