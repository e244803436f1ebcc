"""The floor of catching up: files through a socket into files, as plainly as Python can.

``python -m bench.replication_load.copying send FILE...`` prints its port and serves one connection,
from the files straight into the socket. ``... receive PORT FILE SIZE`` takes so many bytes, writes
them to a file, and prints what that took as JSON. Each is a process of its own, as broker and slave
are.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from bench.client_load.job import Watch

PIECE = 256 << 10
HOST = "127.0.0.1"


def send(paths: list[Path]) -> None:
    with socket.create_server((HOST, 0)) as server:
        sys.stdout.write(f"{server.getsockname()[1]}\n")
        sys.stdout.flush()
        connection, _ = server.accept()
        with connection:
            for path in paths:
                with path.open("rb") as file:
                    connection.sendfile(file)


def receive(port: int, target: Path, size: int) -> None:
    watch = Watch()
    buffer = memoryview(bytearray(PIECE))
    with socket.create_connection((HOST, port)) as connection, target.open("wb", 0) as file:
        watch.start()
        left = size
        while left:
            count = connection.recv_into(buffer, min(left, PIECE))
            if not count:
                sys.exit(f"the copy ended {left} bytes too early")
            file.write(buffer[:count])
            left -= count
        watch.stop()
    sys.stdout.write(json.dumps(watch.report(size)) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send([Path(name) for name in sys.argv[2:]])
    else:
        receive(int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
