"""Interrupts while an event loop is being made."""

import asyncio
import signal
import subprocess
import sys

import pytest

from skylark.core.interrupts import run_whole

# The interrupt comes in the middle of making the loop, wherever that is.
PROGRAM = """
import asyncio, os, signal
from skylark.core.interrupts import run_whole

class Interrupted(asyncio.SelectorEventLoop):
    def __init__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
        super().__init__()

class Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = Interrupted

asyncio.set_event_loop_policy(Policy())

async def work():
    print("worked")

try:
    run_whole(work)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_it_runs_a_coroutine() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert run_whole(work) == 7


def test_errors_pass() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_whole(work)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_an_interrupt_finds_no_half_loop() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
