"""Start times at brokers before 5.0, which only find a message near the time."""

from __future__ import annotations

from typing import Any, cast

import pytest

from skylark.admin.admin_session import Session
from skylark.client.core.namespace import Namespace
from skylark.spark.source import start_offsets
from skylark.spark.source.queue_bounds import Bounds, ClusterSnapshot
from skylark.spark.source.source_options import SourceOptions, source_options
from skylark.spark.source.start_offsets import OffsetResolver, Sample
from skylark.wire.bodies.common_body import MessageQueue

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
LOW = 10
#: Store times of the messages from offset 10 on; 40 have the same.
TIMES = [100, 200, 300, *[400] * 40, 500, 600]
HIGH = LOW + len(TIMES)


class OldCalls:
    """Finds the nearest message, and any one of several with the same time."""

    def __init__(self, pick: int) -> None:
        self._pick = pick

    async def search_offset(self, address: str, queue: MessageQueue, time_ms: int) -> int:
        nearest = min(abs(stored - time_ms) for stored in TIMES)
        equal = [n for n, stored in enumerate(TIMES) if abs(stored - time_ms) == nearest]
        return LOW + equal[self._pick % len(equal)]


class OldSession:
    namespace = Namespace("")

    def __init__(self, pick: int) -> None:
        self.calls = OldCalls(pick)

    def wrap(self, name: str) -> str:
        return name


async def sample(
    session: Any, address: str, queue: MessageQueue, start: int, end: int, group: str
) -> Sample:
    offsets = list(range(start, end))
    return Sample(offsets, [TIMES[offset - LOW] for offset in offsets], [])


def options(time_ms: int) -> SourceOptions:
    given = {"nameserver": "h:1", "topic": "T", "startingtimestamp": str(time_ms)}
    return source_options(given, streaming=False, environ={})


@pytest.mark.parametrize("pick", [0, 7, 39])
@pytest.mark.parametrize("time_ms", [1, 100, 101, 349, 399, 400, 401, 480, 500, 600, 601, 900])
async def test_the_first_message_is_searched_near_the_offset_of_an_old_broker(
    monkeypatch: pytest.MonkeyPatch, pick: int, time_ms: int
) -> None:
    monkeypatch.setattr(start_offsets, "sample", sample)
    snapshot = ClusterSnapshot(
        bounds={QUEUE: Bounds(LOW, HIGH)},
        addresses={"broker-a": {0: "h:2"}},
        versions={"broker-a": 399},
    )
    session = cast(Session, OldSession(pick))
    found = await OffsetResolver(session, options(time_ms), snapshot).start()
    later = [n for n, stored in enumerate(TIMES) if stored >= time_ms]
    assert found == {QUEUE: LOW + later[0] if later else HIGH}
