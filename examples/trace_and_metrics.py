"""See what clients do: metrics for Prometheus, and the life of a single message.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/trace_and_metrics.py

Brokers that were not started by `skylark up` need traceTopicEnable=true for the trace.
"""

import asyncio
import urllib.request

from skylark import ClientOptions, Message
from skylark.aio import Admin, LitePullConsumer, Producer
from skylark.client.metrics import default_registry
from skylark.core.clock import LoopClock
from skylark.net.metrics_http import MetricsServer
from skylark.net.transport import TcpNetwork

TRACED = ClientOptions(trace=True)


async def main() -> None:
    metrics = MetricsServer(default_registry(), network=TcpNetwork(), clock=LoopClock(), port=0)
    await metrics.start()
    async with Producer("example-kitchen", TRACED) as producer:
        sent = await producer.send(Message("ExampleDishes", b"soup"))
    async with LitePullConsumer("example-waiter", TRACED).subscribe("ExampleDishes") as consumer:
        async for message in consumer:
            if message.msg_id == sent.msg_id:
                break

    url = "http://{}:{}/metrics".format(*metrics.address)
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
    for line in text.splitlines():
        if line.startswith(("skylark_client_messages_sent", "skylark_client_messages_received")):
            print(line)
    await metrics.stop()

    async with Admin() as admin:
        trace = await admin.messages.trace(sent.msg_id)
    for send in trace.sends:
        print(f"sent by {send.group} in {send.cost_ms} ms: {send.success}")
    for delivery in trace.deliveries:
        print(f"delivered to {delivery.group}")


if __name__ == "__main__":
    asyncio.run(main())
