"""An application of Celery whose worker a test starts as a process of its own.

Tasks write a line each to the file that ``TASKS_OUTPUT`` names.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import celery

import skylark.integrations.kombu  # noqa: F401 - registers the URL

app = celery.Celery("tasks", broker=os.environ["TASKS_BROKER"])
app.conf.update(
    broker_transport_options={"visibility_timeout": 3},
    broker_connection_timeout=1.0,
    task_default_queue=os.environ["TASKS_QUEUE"],
    task_ignore_result=True,
)


def write(text: str) -> None:
    with Path(os.environ["TASKS_OUTPUT"]).open("a") as file:
        file.write(f"{text}\n")


def parent(number: int) -> None:
    """Send a task from a process of the pool."""
    app.send_task("child", (number,))


def child(number: int) -> None:
    write(f"child {number}")


def hang_once() -> None:
    """End the whole worker at the first attempt, as a machine that fails would."""
    if "hangs" in Path(os.environ["TASKS_OUTPUT"]).read_text():
        write("came again")
        return
    write("hangs")
    os.killpg(os.getpgrp(), signal.SIGKILL)
    threading.Event().wait()


app.task(name="parent")(parent)
app.task(name="child")(child)
app.task(name="hang_once", acks_late=True)(hang_once)
