"""OpenTelemetry across languages: spans of the Java agent and of our client are one trace.

The agent (``opentelemetry-javaagent`` from Maven Central) instruments Apache's client and prints
its spans; both sides put the context into the property ``traceparent`` of the message.
"""

from __future__ import annotations

import queue
import re
from pathlib import Path
from typing import Final

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from skylark import ClientOptions, ConsumeFromWhere, Message, MessageExt
from skylark.sync import Admin, Producer, PushConsumer
from tests.interop.java import JavaProgram
from tests.interop.toolchain import filled, maven_copy
from tests.support.up import cluster

pytestmark = pytest.mark.interop

AGENT: Final = "opentelemetry-javaagent"
AGENT_VERSION: Final = "2.10.0"
COUNT: Final = 3
#: 'Topic publish' : <trace id> <span id> PRODUCER [...]
SPAN: Final = re.compile(r"'(\S+) (\w+)' : ([0-9a-f]{32}) ([0-9a-f]{16}) (\w+)")


class Instrumented(JavaProgram):
    """A Java program with the agent, which prints its spans."""

    def command(self) -> list[str]:
        artifact = f"io.opentelemetry.javaagent:{AGENT}:{AGENT_VERSION}"
        folder = filled(f"{AGENT}-{AGENT_VERSION}", lambda target: maven_copy(artifact, target))
        java, *rest = super().command()
        settings = {
            "otel.traces.exporter": "logging",
            "otel.metrics.exporter": "none",
            "otel.logs.exporter": "none",
            "otel.service.name": "java",
        }
        flags = [f"-D{name}={value}" for name, value in settings.items()]
        return [java, f"-javaagent:{folder / f'{AGENT}-{AGENT_VERSION}.jar'}", *flags, *rest]

    def spans(self) -> list[tuple[str, str, str]]:
        """(operation, trace id, span id) of all spans so far."""
        text = "".join(path.read_text() for path in self.log_files() if path.exists())
        return [(found[2], found[3], found[4]) for found in SPAN.finditer(text)]


def test_a_trace_goes_from_java_to_python_and_back(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    seen: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with cluster(tmp_path) as namesrv:
        options = ClientOptions(namesrv=namesrv, telemetry=provider)
        with Admin(options) as admin:
            admin.topics.create("FromJava")
            admin.topics.create("FromPython")

        # Java sends, Python handles: our span is a child of the agent's.
        sending = {"namesrv": namesrv, "topic": "FromJava", "group": "java-side"}
        numbers = {"send": COUNT, "consume": 0, "deadline_s": 60}
        with Instrumented("SendAndConsume", {**sending, **numbers}) as java:
            java.finish(120)
            sent = {
                trace: span for operation, trace, span in java.spans() if operation == "publish"
            }
        assert len(sent) == COUNT
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        consumer = PushConsumer("python-side", options, consume_from_where=first)

        @consumer.subscribe("FromJava")
        def take(message: MessageExt) -> None:
            seen.put(message.body)

        with consumer:
            for _ in range(COUNT):
                seen.get(timeout=60)
        handled = {}
        for span in exporter.get_finished_spans():
            assert span.context is not None
            assert span.parent is not None
            handled[f"{span.context.trace_id:032x}"] = f"{span.parent.span_id:016x}"
        assert handled == sent

        # Python sends, Java handles: the agent's span is in our trace.
        exporter.clear()
        with Producer("python-producer", options) as producer:
            for number in range(COUNT):
                producer.send(Message("FromPython", b"message %d" % number))
        ours = set()
        for span in exporter.get_finished_spans():
            assert span.context is not None
            ours.add(f"{span.context.trace_id:032x}")
        assert len(ours) == COUNT
        receiving = {"namesrv": namesrv, "topic": "FromPython", "group": "java-receivers"}
        numbers = {"send": 0, "consume": COUNT, "deadline_s": 60}
        with Instrumented("SendAndConsume", {**receiving, **numbers}) as java:
            java.finish(120)
            assert {trace for operation, trace, _ in java.spans() if operation == "process"} == ours
