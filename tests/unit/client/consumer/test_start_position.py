"""Where a queue begins."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from skylark.client.consumer.start_position import (
    AskMaxOffset,
    AskOffsetByTime,
    Start,
    UseOffset,
    format_consume_timestamp,
    parse_consume_timestamp,
    start_position,
)
from skylark.core.errors import ConfigError
from skylark.wire.bodies.heartbeat import ConsumeFromWhere

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


@pytest.mark.spec("client.8.23")
@pytest.mark.parametrize("where", ConsumeFromWhere)
@pytest.mark.parametrize("stored", [0, 5])
def test_a_committed_offset_wins(where: ConsumeFromWhere, stored: int) -> None:
    assert start_position("T", stored, where, 7) == UseOffset(stored)
    assert start_position("%RETRY%G", stored, where, 7) == UseOffset(stored)


@pytest.mark.spec("client.8.23")
@pytest.mark.parametrize(
    ("where", "normal", "retry"),
    [
        (LAST, AskMaxOffset(), UseOffset(0)),
        (ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET, AskMaxOffset(), UseOffset(0)),
        (ConsumeFromWhere.CONSUME_FROM_MAX_OFFSET, AskMaxOffset(), UseOffset(0)),
        (
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST,
            AskMaxOffset(),
            UseOffset(0),
        ),
        (FIRST, UseOffset(0), UseOffset(0)),
        (TIMESTAMP, AskOffsetByTime(7), AskMaxOffset()),
    ],
)
def test_without_an_offset(where: ConsumeFromWhere, normal: Start, retry: Start) -> None:
    for stored in (None, -1):
        assert start_position("T", stored, where, 7) == normal
        assert start_position("%RETRY%G", stored, where, 7) == retry


@pytest.fixture
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_berlin")
def test_times_are_local() -> None:
    assert parse_consume_timestamp("20240701120000") == 1_719_828_000_000
    assert parse_consume_timestamp("20240101120000") == 1_704_106_800_000
    assert format_consume_timestamp(1_719_828_000_999) == "20240701120000"


@pytest.mark.parametrize("text", ["", "2024", "20241301000000", "2024070112000x", "0" * 15])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="yyyyMMddHHmmss"):
        parse_consume_timestamp(text)
