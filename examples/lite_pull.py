"""Ask for messages when you want them, and commit when you are done with them.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/lite_pull.py
"""

from skylark import Message
from skylark.sync import LitePullConsumer, Producer

TOPIC = "ExampleReadings"
COUNT = 100


def main() -> None:
    with Producer("example-sensors") as producer:
        for future in [producer.submit(Message(TOPIC, b"%d" % n)) for n in range(COUNT)]:
            future.result()

    consumer = LitePullConsumer("example-loader", auto_commit=False, pull_batch_size=25)
    with consumer.subscribe(TOPIC):
        values: list[int] = []
        for batch in consumer.batches():  # without end; or: for message in consumer
            values += [int(message.body) for message in batch]
            consumer.commit(batch)  # what is not committed comes again after a crash
            if len(values) >= COUNT:
                break
        print(f"loaded {len(values)} readings, the highest is {max(values)}")

        # Go back and look again, without committing.
        queue = batch[-1].queue
        consumer.seek(queue, batch[-1].queue_offset)
        again = consumer.poll(timeout=30)
        print(f"read again: {again[0].body == batch[-1].body}")
        print(f"committed: {consumer.committed(queue) == batch[-1].queue_offset + 1}")


if __name__ == "__main__":
    main()
