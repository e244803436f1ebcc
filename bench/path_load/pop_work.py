"""The rows ``pop 32 + acks`` of :mod:`bench.path`: a pop of 32 messages, then an ack for each.

Java's client acknowledges one by one: 32 requests, here in one write, as they leave it when
handlers are quick. Receipts are made of the reply to the pop, as that client does. The recorded
frames are those of ``tests/golden/data/frames/pop-consumer.jsonl``.
"""

from __future__ import annotations

import json
from typing import Final

from bench.harness import BenchError
from bench.path_load.connection import Connection, request_frame
from bench.path_load.frames import load
from bench.path_load.rows import BATCH, WARM_UPS, Work

#: Runs of a row for which there must be messages; a pair has 32 turns.
RUNS_MAX: Final = WARM_UPS + 40
BROKER: Final = "DEFAULT_BROKER"
UPDATE_CONFIG: Final = 25


class PopWork(Work):
    """Pops through one queue, 32 messages at a time, and acknowledges each of them."""

    def _frames(self) -> list[bytes]:
        frames = load(self.row.version, self.topic)
        self._ack = frames["ack"]
        # bornTime 0 is the time of the broker: the recorded one would be too old.
        return [
            frames["pop"].frame(number, queueId=0, bornTime=0, pollTime=0)
            for number in range(self.row.writes)
        ]

    def prepare(self, broker: Connection) -> None:
        """Fill the queue, switch merging, and warm up."""
        body = f"enablePopBufferMerge={'true' if self.row.kind == 'pop' else 'false'}"
        broker.exchange(request_frame(UPDATE_CONFIG, {}, body=body.encode()), 1)
        frames = load(self.row.version, self.topic)
        for number in range(RUNS_MAX * self.row.writes):
            broker.exchange(frames["batch"].batch(number, BATCH, e=0), 1)
        super().prepare(broker)

    def run(self, broker: Connection) -> None:
        for write in self.writes:
            (reply,) = broker.exchange(write, 1)
            broker.exchange(b"".join(self._acks(reply)), BATCH)

    def _acks(self, reply: bytes) -> list[bytes]:
        size = int.from_bytes(reply[1:4], "big")
        fields: dict[str, str] = json.loads(reply[4 : 4 + size])["extFields"]
        start = fields["startOffsetInfo"].split(" ")[2]
        offsets = fields["msgOffsetInfo"].split(" ")[2].split(",")
        if len(offsets) != BATCH:
            raise BenchError(f"a pop brought {len(offsets)} messages instead of {BATCH}")
        receipt = f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']}"
        return [
            self._ack.frame(
                int(offset),
                queueId=0,
                offset=offset,
                extraInfo=f"{receipt} 0 {BROKER} 0 {offset}",
            )
            for offset in offsets
        ]

    def check(self, broker: Connection, runs: int) -> None:
        """Popping changes nothing: what was filled in is there."""
        del runs
        full = RUNS_MAX * self.row.writes * BATCH
        if (found := self.stored(broker)) != full:
            raise BenchError(f"{self.row.name}: {found} messages to pop instead of {full}")
