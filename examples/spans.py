"""OpenTelemetry: a handler continues the trace of whoever sent its message.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/spans.py

Needs pip install "skylark-mq[otel]". To see the spans, install opentelemetry-sdk and set a tracer
provider with an exporter before the clients start; without one, only the context travels.
"""

import asyncio

from opentelemetry import context, propagate, trace

from skylark import ClientOptions, Message, MessageExt
from skylark.aio import Producer, PushConsumer

# As a web framework gets it from a browser or from another service.
HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
OPTIONS = ClientOptions(telemetry=True)  # without this: if a tracer provider is set


async def main() -> None:
    trace_ids: asyncio.Queue[str] = asyncio.Queue()
    consumer = PushConsumer("example-shipping", OPTIONS)

    @consumer.subscribe("ExampleParcels")
    async def on_parcel(message: MessageExt) -> None:
        span = trace.get_current_span()  # "process ExampleParcels"
        span.set_attribute("parcel.size", len(message.body))
        await trace_ids.put(f"{span.get_span_context().trace_id:032x}")

    async with Producer("example-packing", OPTIONS) as producer:
        token = context.attach(propagate.extract(HEADERS))
        sent = await producer.send(Message("ExampleParcels", b"books"))
        context.detach(token)
    print(f"sent {sent.status.name}")
    async with consumer, asyncio.timeout(30):
        print(f"handled in trace {await trace_ids.get()}")


if __name__ == "__main__":
    asyncio.run(main())
