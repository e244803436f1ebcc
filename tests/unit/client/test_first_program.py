"""A first program that says nowhere where the name server is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import skylark
from skylark.core.names import NAMESRV_VARIABLES

SYNC = """
from skylark import Message
from skylark.sync import Producer

with Producer("orders") as producer:
    producer.send(Message("T", b"hello"))
"""
AIO = """
import asyncio
from skylark.aio import PushConsumer

async def main():
    consumer = PushConsumer("orders")
    consumer.subscribe("T", print)
    async with consumer:
        pass

asyncio.run(main())
"""


@pytest.mark.parametrize("program", [SYNC, AIO], ids=["sync", "aio"])
def test_a_program_without_an_address_ends_with_what_is_missing(
    program: str, tmp_path: Path
) -> None:
    file = tmp_path / "first.py"
    file.write_text(program)
    environ = {name: value for name, value in os.environ.items() if name not in NAMESRV_VARIABLES}
    done = subprocess.run(
        [sys.executable, str(file)], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[-1].endswith(
        "ConfigError: no name server is given:"
        ' pass ClientOptions(namesrv="127.0.0.1:9876"), or set SKYLARK_NAMESRV or NAMESRV_ADDR'
    )
    ours = Path(skylark.__file__).parent
    assert sum(f'File "{ours}' in line for line in lines) <= 2, done.stderr
