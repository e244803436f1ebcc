"""Programs that tests run in an interpreter of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from skylark import ClientOptions, Message
from skylark.sync import Producer

TIMEOUT_S = 30


def environ(namesrv: str) -> dict[str, str]:
    return {**os.environ, "NAMESRV_ADDR": namesrv}


def run_program(program: str, namesrv: str, *topics: str) -> str:
    """What it prints; it must end by itself, well, and complain of nothing.

    ``topics`` exist when it begins: a client logs it when a send has to create one.
    """
    with Producer("programs", ClientOptions(namesrv=namesrv)) as producer:
        for topic in topics:
            producer.send(Message(topic, b"first"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        env=environ(namesrv),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}{done.stderr}"
    return done.stdout
