"""Objects instead of bytes: a serializer on one side, a deserializer on the other.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/json_values.py
"""

from dataclasses import dataclass
from datetime import date

from skylark import ConsumeFromWhere, Message, json_deserializer, json_serializer
from skylark.sync import LitePullConsumer, Producer

TOPIC = "ExampleBookings"


@dataclass
class Booking:
    guest: str
    arrival: date


bookings = [Booking("Ada", date(2026, 12, 24)), Booking("Grace", date(2026, 12, 31))]
with Producer("example-desk", value_serializer=json_serializer) as desk:
    for booking in bookings:
        desk.send(Message(TOPIC, value=booking, tag="booked"), shard="hotel-1")

consumer = LitePullConsumer(
    "example-hotel",
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    value_deserializer=json_deserializer(Booking),
)
with consumer.subscribe(TOPIC) as hotel:
    for number, message in enumerate(hotel, start=1):
        arrival: Booking = message.value
        print(f"{arrival.guest} arrives on {arrival.arrival:%d %B}")
        print(f"as JSON: {message.json()}")
        if number == len(bookings):
            break
