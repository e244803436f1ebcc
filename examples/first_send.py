"""Send messages, in the four ways there are, and see where they went.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/first_send.py
"""

from skylark import Message, SkylarkError
from skylark.sync import Producer


def main() -> None:
    with Producer("example-shop") as producer:
        # Wait until it is stored. The tag is for consumers to select by, the keys are for people
        # who look for the message later: skylark message query.
        order = Message("ExampleOrders", b'{"order": 1}', tag="new", keys=["order-1"])
        result = producer.send(order)
        print(f"{result.status.name}: {result.msg_id}")
        print(f"at {result.queue_offset} in queue {result.queue.queue_id}")

        # Do not wait: the future will have the result, or the error.
        futures = [producer.submit(Message("ExampleOrders", b"%d" % n)) for n in range(100)]
        print(f"{len({future.result().msg_id for future in futures})} more, side by side")

        # All in one request; or into the blue.
        together = producer.send_batch([Message("ExampleOrders", b"a"), order])
        print(f"{len(together)} in one request")
        producer.send_oneway(Message("ExampleOrders", b"nobody tells whether it arrives"))

        try:
            producer.send(Message("not a name!", b"x"))
        except SkylarkError as error:
            print(f"refused: {type(error).__name__}, retriable: {error.retriable}")


if __name__ == "__main__":
    main()
