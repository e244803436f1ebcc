"""A broker whose processor other processes want: it is slow, and refuses nothing for that."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skylark.broker.overload.processor_wait import TASKS
from skylark.core.clock import LoopClock
from tests.support.raw_client import RawClient, send_message

HOGS = 4
NICENESS = 10  # the broker gets less than a thirtieth of the processor
SLOW_S = 0.3  # longer than a send may wait
SLOW_COUNT = 4
LIMIT_S = 40.0
CLIENTS = 8
SENDS = 8

pytestmark = pytest.mark.skipif(
    not TASKS.exists() or not hasattr(os, "sched_setaffinity"),
    reason="the kernel does not say for how long a thread waited for a processor",
)


@contextmanager
def hogs(processor: int) -> Iterator[None]:
    """Processes that never sleep, all on one processor."""
    code = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    children = [subprocess.Popen([sys.executable, "-c", code, str(processor)]) for _ in range(HOGS)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


@contextmanager
def broker_process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.starved_broker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def hold_back(pid: int, processor: int) -> None:
    """Let all threads of a process run on one processor, after others."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {processor})
        os.setpriority(os.PRIO_PROCESS, int(thread.name), NICENESS)


async def send_until_slow(port: int) -> tuple[int, int]:
    """Send on several connections; how many rounds were slow, and how many sends were refused."""
    clock = LoopClock()
    deadline = clock.monotonic() + LIMIT_S
    clients = [RawClient(("127.0.0.1", port)) for _ in range(CLIENTS)]
    slow_count = refused_count = 0
    try:
        while slow_count < SLOW_COUNT and clock.monotonic() < deadline:
            began = clock.monotonic()
            for client in clients:
                client.send(*[send_message(bytes(1_000))] * SENDS)
            for client in clients:
                answers = [await client.answer(timeout_s=LIMIT_S) for _ in range(SENDS)]
                refused_count += sum(answer.code == 2 for answer in answers)
            slow_count += clock.monotonic() - began > SLOW_S
            await asyncio.sleep(0.01)
    finally:
        for client in clients:
            client.close()
    return slow_count, refused_count


async def test_a_broker_that_waits_for_the_processor_refuses_no_send() -> None:
    processor = max(os.sched_getaffinity(0))
    with broker_process() as child:
        assert child.stdin is not None
        assert child.stdout is not None
        port = json.loads(child.stdout.readline())["port"]
        hold_back(child.pid, processor)
        with hogs(processor):
            slow_count, refused_count = await send_until_slow(port)
        child.stdin.close()
        found = json.loads(child.stdout.readline())
        child.wait()
    if slow_count < SLOW_COUNT:
        pytest.skip("the other processes did not slow the broker down")
    assert (refused_count, found["refused"]) == (0, 0)
    assert found["waited_s"] > SLOW_S
