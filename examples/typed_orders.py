"""Typed subscribers: functions take and return models, and the bodies are JSON.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/typed_orders.py

Needs pip install "skylark-mq[pydantic]"; msgspec.Struct and dataclasses need nothing more.
"""

import asyncio

import pydantic

from skylark.aio import Admin
from skylark.integrations.typed_app import TypedApp


class Order(pydantic.BaseModel):
    number: int
    cents: pydantic.PositiveInt  # an order that costs nothing becomes a dead letter at once


class Invoice(pydantic.BaseModel):
    order: int
    text: str


app = TypedApp("example-billing")
filed: asyncio.Queue[Invoice] = asyncio.Queue()


@app.subscriber("ExampleTypedOrders", publish="ExampleTypedInvoices")
async def bill(order: Order) -> Invoice:
    return Invoice(order=order.number, text=f"please pay {order.cents / 100:.2f}")


@app.subscriber("ExampleTypedInvoices")
async def file(invoice: Invoice) -> None:
    filed.put_nowait(invoice)


async def main() -> None:
    async with Admin() as admin:
        for topic in ("ExampleTypedOrders", "ExampleTypedInvoices"):
            await admin.topics.create(topic)
    async with app:  # a service calls app.run() instead
        await app.publish("ExampleTypedOrders", Order(number=1, cents=250))
        invoice = await asyncio.wait_for(filed.get(), 60)
    print(f"invoice of order {invoice.order}: {invoice.text}")


if __name__ == "__main__":
    asyncio.run(main())
