"""Records the frames that :mod:`bench.path` replays: requests of official Java clients.

::

    python -m bench.path_load.record            # needs a JDK and Maven

One release after the other runs ``tests/interop/java/RecordFrames.java`` against our broker. A
proxy sits between client and servers: it copies all bytes, replaces the address of the broker in
replies of the name server by its own, and keeps the requests. ``frames/VERSION.jsonl`` gets one
line per kind of request:

``name``     what :mod:`bench.path_load.frames` looks for
``code``     the request code
``header``   the JSON header exactly as the client wrote it
``body``     Base64

The bytes are the client's own except for the ``UNIQ_KEY`` of messages, which starts with the
address of the machine: here it starts with 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from bench.path_load.connection import Connection, find_broker
from skylark.testing import sync_broker
from tests.interop.java import run_program
from tests.interop.toolchain import CURRENT, MIDDLE_CLIENT, OLD_CLIENT

FOLDER: Final = Path(__file__).parent / "frames"
VERSIONS: Final = (OLD_CLIENT, MIDDLE_CLIENT, CURRENT)
HOST: Final = "127.0.0.1"
SEND, BATCH, PULL, HEARTBEAT, END_TRANSACTION = 310, 320, 11, 34, 37
# Address (4 or 16 bytes), process, class loader, time, counter; behind an escape it starts with it.
UNIQUE_KEY: Final = re.compile(
    rb'(\\u0001|\x01|")([0-9A-F]{8}(?:[0-9A-F]{24})?)(?=[0-9A-F]{24}(?![0-9A-F]))'
)


def split_frames(stream: bytes) -> Iterable[tuple[bytes, bytes]]:
    """Header and body of each whole frame in ``stream``."""
    position = 0
    while position + 8 <= len(stream):
        end = position + 4 + int.from_bytes(stream[position : position + 4], "big")
        if end > len(stream):
            return
        # The byte before the header's length says how the header is serialized: 0 is JSON.
        body = position + 8 + int.from_bytes(stream[position + 5 : position + 8], "big")
        yield stream[position + 8 : body], stream[body:end]
        position = end


def neutral(text: bytes) -> bytes:
    """The same without the address of the machine in unique keys."""
    return UNIQUE_KEY.sub(lambda found: found[1] + b"7F000001".ljust(len(found[2]), b"0"), text)


def name_of(code: int, fields: dict[str, str], body: bytes, topic: str) -> str | None:
    """What a request is recorded as; None for the many that nothing replays."""
    if code == SEND:
        return "half" if fields["f"] == "4" else f"send {len(body)}"
    if code == PULL:
        return "pull" if fields["topic"] == topic and fields["queueOffset"] == "0" else None
    if code == HEARTBEAT:
        return "heartbeat" if topic.encode() in body else None
    return {BATCH: "batch", END_TRANSACTION: "commit"}.get(code)


def pick(streams: Iterable[bytes], topic: str) -> list[dict[str, object]]:
    """One line of the file for the first request of each kind."""
    found: dict[str, dict[str, object]] = {}
    for stream in streams:
        for header, body in split_frames(stream):
            command = json.loads(header)
            code = command["code"]
            name = name_of(code, command.get("extFields") or {}, body, topic)
            if name is not None and name not in found:
                found[name] = {
                    "name": name,
                    "code": code,
                    "header": neutral(header).decode(),
                    "body": base64.b64encode(neutral(body)).decode(),
                }
    return [found[name] for name in sorted(found)]


class Proxy:
    """Listens on free ports, on a thread of its own; ``requests`` holds what clients sent."""

    def __init__(self) -> None:
        self.requests: list[bytearray] = []
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def listen(self, target_port: int, change: Callable[[bytes], bytes]) -> int:
        """The port that leads to ``target_port``; ``change`` edits what comes back."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, onward = await asyncio.open_connection(HOST, target_port)
            kept = bytearray()
            self.requests.append(kept)

            def keep(part: bytes) -> bytes:
                kept.extend(part)
                return part

            await asyncio.gather(pump(reader, onward, keep), pump(there, writer, change))

        async def start() -> int:
            server = await asyncio.start_server(accept, HOST, 0)
            port: int = server.sockets[0].getsockname()[1]
            return port

        return asyncio.run_coroutine_threadsafe(start(), self._loop).result()


async def pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
) -> None:
    try:
        while part := await reader.read(1 << 20):
            writer.write(change(part))
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


def broker_port(namesrv: str, topic: str) -> int:
    with Connection(namesrv) as connection:
        return int(find_broker(connection, topic).rpartition(":")[2])


def record(version: str) -> list[dict[str, object]]:
    """Run one release of the Java client; the lines of its file."""
    with sync_broker() as broker:
        topic = broker.topic("path", queue_count=1)
        proxy = Proxy()
        port = broker_port(broker.namesrv, topic)
        stand_in = proxy.listen(port, lambda part: part)
        old, new = f"{HOST}:{port}".encode(), f"{HOST}:{stand_in}".encode()
        assert len(old) == len(new), "a longer address would change the length of the frame"
        namesrv = proxy.listen(
            int(broker.namesrv.rpartition(":")[2]), lambda part: part.replace(old, new)
        )
        options = {"namesrv": f"{HOST}:{namesrv}", "topic": topic, "group": "path_group"}
        run_program("RecordFrames", options, version=version)
        return pick(map(bytes, proxy.requests), topic)


def main(versions: Iterable[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for version in versions:
        lines = [json.dumps(line) for line in record(version)]
        (FOLDER / f"{version}.jsonl").write_text("\n".join(lines) + "\n")
        print(f"{version}: {len(lines)} frames")


if __name__ == "__main__":
    main(sys.argv[1:] or VERSIONS)
