"""What the integrations cost: tasks of Celery and of taskiq, and the functions of a ``TypedApp``.

``make bench PART=tasks`` starts ``skylark up``; all that sends, runs and consumes is in this
process. The extras ``celery`` and ``taskiq`` are needed.

``Celery send``          ``apply_async`` of a task, one after the other; nobody runs them
``Celery send and run``  the same with a worker, until the last task has run
``taskiq send``          ``kiq`` of a task, one after the other; nobody runs them
``taskiq send and run``  the same with a worker, until the last task has run
``consume``              a batch of small JSON messages is sent, until the last was handled

Tasks are measured with Skylark and with the queue in memory that the framework itself has: that of
kombu, and ``InMemoryBroker``. Such a queue stores nothing and leaves the process for nobody: the
difference to it is what the client and the broker take together. Sends wait for the broker, which
stores each task before it answers. ``InMemoryBroker`` has no queue at all, it starts a task where
it is sent; ``taskiq send, in memory`` drops tasks instead.

``consume`` compares the typed subscriber with a push consumer whose function decodes the same
messages by itself: the difference is what the typed layer takes. A run is one batch, so that its
send adds little to either.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.harness import Case, compile_package, main
from bench.tasks_load.of_celery import celery_cases
from bench.tasks_load.of_taskiq import RUN, SENT, taskiq_cases
from bench.tasks_load.of_typed_app import PLAIN, TYPED, typed_cases
from skylark import ClientOptions
from skylark.sync import Admin
from tests.support.up import cluster

#: Of one run. A message takes far less time than a task, and a run must not be short.
TASKS: Final = 500
MESSAGES: Final = 5_000


def cases(
    stack: ExitStack, namesrv: str, tasks: int = TASKS, messages: int = MESSAGES
) -> list[Case]:
    """All cases, of so many tasks or messages a run; their workers and consumers run already."""
    with Admin(ClientOptions(namesrv=namesrv)) as admin:
        for topic in (SENT, RUN, PLAIN, TYPED):
            admin.topics.create(topic)
    return [
        *celery_cases(stack, namesrv, tasks),
        *taskiq_cases(stack, namesrv, tasks),
        *typed_cases(stack, namesrv, messages),
    ]


if __name__ == "__main__":
    compile_package()
    with ExitStack() as _stack:
        _home = Path(_stack.enter_context(tempfile.TemporaryDirectory()))
        main("tasks", cases(_stack, _stack.enter_context(cluster(_home))))
