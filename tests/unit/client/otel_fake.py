"""As much of OpenTelemetry as clients use: to be put in the place of the package, or beside it.

``RecordingProvider(trace)`` keeps the spans that are made with it, whether ``trace`` is the real
module or the one of :func:`fake_modules`.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any


class RecordedSpan:
    """What was said to a span."""

    def __init__(self, name: str, context: Any, parent: Any, **given: Any) -> None:
        self.name = name
        self.parent = parent  #: the context of the span above, or None
        self.kind = given["kind"]
        self.attributes: dict[str, Any] = dict(given["attributes"] or {})
        self.links: list[Any] = list(given.get("links") or ())
        self.errors: list[BaseException] = []
        self.status: Any = None
        self.ended = 0
        self._context = context

    def get_span_context(self) -> Any:
        return self._context

    def set_attribute(self, name: str, value: Any) -> None:
        self.attributes[name] = value

    def record_exception(self, error: BaseException) -> None:
        self.errors.append(error)

    def set_status(self, status: Any) -> None:
        self.status = status

    def is_recording(self) -> bool:
        return not self.ended

    def end(self, end_time: int | None = None) -> None:
        self.ended += 1

    def set_attributes(self, attributes: Any) -> None:
        raise NotImplementedError

    def add_event(self, *given: Any, **more: Any) -> None:
        raise NotImplementedError

    def update_name(self, name: str) -> None:
        raise NotImplementedError


class RecordingProvider:
    """A tracer provider, and its only tracer."""

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        # Only objects of its own class are spans to the package.
        self._span_type: Any = type("Span", (RecordedSpan, trace.Span), {})
        self._numbers = itertools.count(1)
        self.name = ""
        self.spans: list[RecordedSpan] = []

    def get_tracer(self, name: str) -> RecordingProvider:
        self.name = name
        return self

    def start_span(self, name: str, context: Any = None, **given: Any) -> RecordedSpan:
        above = self._trace.get_current_span(context).get_span_context()
        number = next(self._numbers)
        trace_id = above.trace_id if above.is_valid else 0xABC0 + number
        own = self._trace.SpanContext(
            trace_id, number, is_remote=False, trace_flags=self._trace.TraceFlags(1)
        )
        span: RecordedSpan = self._span_type(name, own, above if above.is_valid else None, **given)
        self.spans.append(span)
        return span

    @contextmanager
    def start_as_current_span(
        self,
        name: str,
        *,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        **given: Any,
    ) -> Iterator[RecordedSpan]:
        assert not record_exception
        assert not set_status_on_exception
        span = self.start_span(name, **given)
        try:
            with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        finally:
            span.end()


# ---- the package ---------------------------------------------------------------------------------


class _SpanContext:
    def __init__(
        self, trace_id: int, span_id: int, is_remote: bool = False, trace_flags: int = 0
    ) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.is_remote = is_remote
        self.trace_flags = trace_flags

    @property
    def is_valid(self) -> bool:
        return bool(self.trace_id and self.span_id)


class _Remote:
    def __init__(self, context: _SpanContext) -> None:
        self._context = context

    def get_span_context(self) -> _SpanContext:
        return self._context


class _SpanKind(enum.Enum):
    PRODUCER = 3
    CONSUMER = 4


class _StatusCode(enum.Enum):
    ERROR = 2


class _Status:
    def __init__(self, status_code: _StatusCode, description: str) -> None:
        self.status_code = status_code
        self.description = description


class _Link:
    def __init__(self, context: _SpanContext, attributes: Mapping[str, Any]) -> None:
        self.context = context
        self.attributes = attributes


class ProxyTracerProvider:
    """What is there while no provider was set."""

    def get_tracer(self, name: str) -> str:
        return name


def fake_modules() -> dict[str, ModuleType]:
    """For ``sys.modules``: opentelemetry and two of its modules."""
    nothing = _Remote(_SpanContext(0, 0))
    current: ContextVar[Any] = ContextVar("span")
    package = ModuleType("opentelemetry")
    trace: Any = ModuleType("opentelemetry.trace")
    propagate: Any = ModuleType("opentelemetry.propagate")
    trace.SpanContext, trace.TraceFlags = _SpanContext, int
    trace.SpanKind, trace.Status, trace.StatusCode = _SpanKind, _Status, _StatusCode
    trace.Link, trace.Span = _Link, object
    trace.get_tracer_provider = ProxyTracerProvider
    trace.set_span_in_context = lambda span: {"span": span}
    trace.get_current_span = lambda context=None: (
        current.get(nothing) if context is None else context.get("span", nothing)
    )

    @contextmanager
    def use_span(span: Any, **_: Any) -> Iterator[None]:
        token = current.set(span)
        try:
            yield
        finally:
            current.reset(token)

    def inject(carrier: dict[str, str], context: Any) -> None:
        own = context["span"].get_span_context()
        carrier["traceparent"] = f"00-{own.trace_id:032x}-{own.span_id:016x}-01"

    def extract(carrier: Mapping[str, str]) -> Any:
        text = carrier.get("traceparent")
        if text is None:
            return {}
        _, trace_id, span_id, _ = text.split("-")
        return {"span": _Remote(_SpanContext(int(trace_id, 16), int(span_id, 16), True))}

    trace.use_span = use_span
    propagate.inject, propagate.extract = inject, extract
    return {
        "opentelemetry": package,
        "opentelemetry.trace": trace,
        "opentelemetry.propagate": propagate,
    }
