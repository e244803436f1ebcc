"""Celery: tasks are messages of a topic, and the broker keeps those that are for later.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/celery_tasks.py

A service starts its workers with `celery -A celery_tasks worker` in the folder of this file.
"""

import queue
import time

import celery
from celery.contrib.testing.worker import start_worker

import skylark.integrations.kombu  # noqa: F401 - registers skylark+rocketmq://

app = celery.Celery("examples", broker="skylark+rocketmq://")  # at NAMESRV_ADDR
app.conf.task_default_queue = "ExampleTasks"
app.conf.task_ignore_result = True
done: queue.Queue[str] = queue.Queue()


@app.task
def resize(picture: str) -> None:
    done.put(picture)


@app.task(bind=True)
def publish(self: celery.Task, picture: str) -> None:
    if not self.request.retries:
        raise self.retry(countdown=1)  # a message of its own, in a second
    done.put(f"{picture} at attempt {self.request.retries + 1}")


def main() -> None:
    begun = time.monotonic()
    resize.apply_async(["later.png"], countdown=2)
    resize.delay("cat.png")
    with start_worker(app, pool="threads", perform_ping_check=False):
        print("resized", done.get(timeout=30))
        print("resized", done.get(timeout=30), "later:", time.monotonic() - begun >= 2)
        publish.delay("dog.png")
        print("published", done.get(timeout=30))


if __name__ == "__main__":
    main()
