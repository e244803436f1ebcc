"""Look after a cluster from Python: topics, the lag of a group, and resetting it.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/admin_tasks.py
"""

from skylark import Message
from skylark.sync import Admin, LitePullConsumer, Producer

TOPIC, GROUP = "ExampleInvoices", "example-accounting"


def main() -> None:
    with Admin() as admin:
        admin.topics.create(TOPIC, queue_count=2)  # one that exists stays as it is
        print(f"{TOPIC} exists: {TOPIC in admin.topics.names()}")

        with Producer("example-office") as producer:
            for number in range(10):
                producer.send(Message(TOPIC, b"invoice %d" % number))
        with LitePullConsumer(GROUP, auto_commit=False).subscribe(TOPIC) as consumer:
            seen = 0
            while seen < 10:
                seen += len(consumer.poll(timeout=30))
            consumer.commit(persist=True)
        print(f"lag after consuming: {admin.groups.progress(GROUP).lag}")

        # Look before you leap: the plan says where each queue would go, and changes nothing.
        plan = admin.offsets.plan_reset(GROUP, TOPIC, to="earliest")
        for queue in plan.queues:
            print(f"queue {queue.queue.queue_id}: {queue.step:+} messages")
        admin.offsets.apply(plan)
        print(f"lag after the reset: {admin.groups.progress(GROUP).lag}")

        admin.topics.delete(TOPIC)
        admin.groups.delete(GROUP)


if __name__ == "__main__":
    main()
