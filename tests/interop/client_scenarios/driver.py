"""Our client, told line by line what to do: the twin of ``java/ClientDriver.java``.

Run as ``python -m tests.interop.client_scenarios.driver``, it is one more process for
:class:`tests.interop.driver.Client`. Commands, options and records are those of the Java program;
more options say what only our client has. See ``producers.py`` and ``consumers.py`` here.

Commands run one after the other on the event loop, messages are handled between them. When standard
input ends, so does the process, without the goodbyes of clients that still run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
from typing import Any

from tests.interop.client_scenarios.consumers import Consumers
from tests.interop.client_scenarios.producers import Producers
from tests.interop.client_scenarios.records import Options, emit


class Driver:
    """Everything that runs in this process, by name."""

    def __init__(self) -> None:
        self._producers = Producers()
        self._consumers = Consumers(self._producers)
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, command: str, options: Options) -> Any:
        """Carry out one command; its result is what JSON can write."""
        if command == "stop":
            await self._stop(options["name"])
            return None
        if command == "stop-soon":
            task = asyncio.create_task(self._stop(options["name"]))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            return None
        method = command.replace("-", "_")
        for owner in (self._producers, self._consumers):
            if hasattr(owner, method):
                return await getattr(owner, method)(options)
        raise ValueError(f"no such command: {command}")

    async def _stop(self, name: str) -> None:
        await self._producers.stop(name)
        await self._consumers.stop(name)


async def serve() -> None:
    """Carry out the commands on standard input."""
    loop = asyncio.get_running_loop()
    driver = Driver()
    emit(event="ready")
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command, *words = line.rstrip("\n").split("\t")
        options = dict(word.split("=", 1) for word in words)
        try:
            emit(event="done", result=await driver.run(command, options))
        except Exception as error:  # noqa: BLE001 - the test is told, whatever it is
            traceback.print_exc()
            emit(event="failed", cause=f"{type(error).__name__}: {error}")
    os._exit(0)


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
    )
    asyncio.run(serve())
