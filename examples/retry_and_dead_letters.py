"""A handler that fails: deliver it again later, or put it aside as a dead letter.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/retry_and_dead_letters.py
"""

import threading

from skylark import DeadLetter, Message, MessageExt, RetryLater
from skylark.sync import Admin, Producer, PushConsumer

GROUP = "example-mailer"

consumer = PushConsumer(GROUP, max_reconsume_times=3)
delivered = threading.Event()


@consumer.subscribe("ExampleMails")
def on_mail(message: MessageExt) -> None:
    if b"@" not in message.body:
        raise DeadLetter("no address: trying again would not help")
    print(f"attempt {message.reconsume_times + 1} for {message.body.decode()}")
    if message.reconsume_times == 0:
        raise RetryLater(level=1)  # after the first delay of the broker: 1 s
    # Any other exception counts as RetryLater: after 10 s, 30 s, 1 min and so on, at most
    # max_reconsume_times times; then the message is a dead letter.
    delivered.set()


def main() -> None:
    with Producer("example-mail-form") as producer:
        producer.send(Message("ExampleMails", b"info@example.org"))
        producer.send(Message("ExampleMails", b"nobody"))
    with consumer:
        print(f"delivered: {delivered.wait(30)}")
    with Admin() as admin:
        for letter in admin.dlq.messages(GROUP, limit=10):
            print(f"dead letter: {letter.body.decode()}")


if __name__ == "__main__":
    main()
