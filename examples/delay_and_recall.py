"""Send a message that arrives later, and take another one back before it does.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/delay_and_recall.py
"""

import queue
from datetime import UTC, datetime, timedelta

from skylark import Message, MessageExt
from skylark.sync import Producer, PushConsumer

consumer = PushConsumer("example-reminders")
arrived: queue.SimpleQueue[MessageExt] = queue.SimpleQueue()


@consumer.subscribe("ExampleReminders")
def on_reminder(message: MessageExt) -> None:
    arrived.put(message)


def main() -> None:
    with Producer("example-calendar") as producer:
        tea = Message("ExampleReminders", b"drink the tea")
        sent = producer.send(tea, delay=timedelta(seconds=2))  # any time; or delay_level=1 to 18
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        meeting = producer.send(Message("ExampleReminders", b"meeting"), deliver_at=tomorrow)

        assert meeting.recall_handle is not None  # delayed messages have one
        taken_back = producer.recall("ExampleReminders", meeting.recall_handle)
        print(f"recalled the meeting: {taken_back == meeting.msg_id}")

    with consumer:
        message = arrived.get(timeout=60)
        waited = datetime.now(UTC) - message.born_time
    print(f"{message.body.decode()}: {message.msg_id == sent.msg_id}")
    print(f"after {round(waited.total_seconds())} seconds")


if __name__ == "__main__":
    main()
