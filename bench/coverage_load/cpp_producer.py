"""One producer of the coverage benchmark, with the C++ client of the wheel ``rocketmq``.

Runs with that wheel and nothing of ours, until its process is ended. Options as name=value:
namesrv, topic, group, threads, what ("tag and key", "user properties"). Records, twice a second:
the messages so far and the sends that failed.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from rocketmq.client import Message, Producer  # type: ignore[import-not-found]

TAGS = ("TagA", "TagB", "TagC", "TagD")
BODY = "x" * 100


class Load:
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._producer = Producer(options["group"], timeout=10_000)
        self._producer.set_namesrv_addr(options["namesrv"])
        self._producer.start()
        self._counts = [0] * int(options["threads"])
        self._failed = [0] * int(options["threads"])

    def _message(self, number: int) -> object:
        message = Message(self._options["topic"])
        message.set_tags(TAGS[number % len(TAGS)])
        message.set_keys(f"order-{number}")
        message.set_body(BODY)
        if self._options["what"] == "user properties":
            for i in range(5):
                message.set_property(f"property{i}", f"value-{number % 1_000}")
        return message

    def send(self, thread: int) -> None:
        number = thread
        while True:
            try:
                self._producer.send_sync(self._message(number))
                self._counts[thread] += 1
            except Exception:  # noqa: BLE001 - the wheel raises several that have no common base
                self._failed[thread] += 1
            number += len(self._counts)

    def report(self) -> None:
        record = {
            "event": "count",
            "at_ms": int(time.time() * 1000),
            "count": sum(self._counts),
            "failed": sum(self._failed),
        }
        print(json.dumps(record), flush=True)


def main() -> None:
    load = Load(dict(word.split("=", 1) for word in sys.argv[1:]))
    for thread in range(len(load._counts)):
        threading.Thread(target=load.send, args=(thread,), daemon=True).start()
    while True:
        load.report()
        time.sleep(0.5)


if __name__ == "__main__":
    main()
