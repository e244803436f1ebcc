"""A log that says the same thing once in ten seconds."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from skylark.client.consumer.rate_limited_log import RateLimitedLog
from skylark.core.errors import ConnectError
from skylark.testing.virtual_clock import VirtualClock
from tests.unit.client.consumer.pushes import Seen, consuming, push_world, until

log = logging.getLogger("limited")


async def test_the_same_line_is_logged_again_after_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    limited = RateLimitedLog(log, clock)
    refused, closed = ConnectError("refused"), ConnectError("closed")
    for error in (refused, refused, closed, refused):  # another cause is news
        limited.failed("members", error, "group %s waits", "g")
    limited.failed("route", refused, "topic %s waits", "T")  # so is something else
    expected = ["group g waits: refused", "group g waits: closed", "topic T waits: refused"]
    assert caplog.messages == expected
    await clock.advance(seconds=9.9)
    limited.failed("members", refused, "group %s waits", "g")
    assert len(caplog.messages) == 3
    await clock.advance(seconds=0.1)
    limited.failed("members", refused, "group %s waits", "g")
    assert caplog.messages[3:] == ["group g waits: refused"]


def test_what_is_remembered_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    limited = RateLimitedLog(log, clock)
    for number in range(1000):
        limited.log(logging.WARNING, number, "%d", number)
    assert len(caplog.messages) == 1000  # nothing new is kept back
    assert len(limited._logged) == 256


async def test_a_broker_that_is_down_is_not_mentioned_every_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with push_world(tmp_path, 4) as w:
        consumer = w.consumer()
        consumer.subscribe("T", Seen().handler)
        async with consuming(w, consumer):
            await until(lambda: len(consumer.assignment) >= 4)
            caplog.clear()
            await w.world.stop(w.broker)
            await w.clock.advance(seconds=60)
            said = [r for r in caplog.records if r.name.endswith("rebalance_executor")]
            texts = {record.getMessage() for record in said}
            assert any("cannot get the members of g now" in text for text in texts)
            for text in texts:
                assert sum(record.getMessage() == text for record in said) <= 6, text
