"""Lite pull consumers of one group that subscribe differently: each of them says who differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.client.consumer.pull_world import pull_world
from tests.unit.client.consumer.pushes import said_to_differ


async def test_members_that_subscribe_to_different_topics_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pull_world(tmp_path) as w:
        await w.world.add_topic("U", 1)
        first_options = w.options(instance_name="first")
        second_options = w.options(instance_name="second")
        async with w.lite(options=first_options) as first, w.lite(options=second_options) as second:
            first.subscribe("T")
            second.subscribe("U")
            await w.finish(first.start())
            await w.finish(second.start())
            await w.clock.advance(seconds=120)
            found = said_to_differ(caplog)
            assert any("second" in text and "topic T" in text for text in found)
            assert len(found) < 10


async def test_a_member_that_comes_within_the_minute_is_named_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Members are compared once a minute at most; a change meanwhile is not forgotten."""
    async with pull_world(tmp_path) as w:
        await w.world.add_topic("U", 1)
        options = [w.options(instance_name=name) for name in ("first", "second", "third")]
        async with (
            w.lite(options=options[0]) as first,
            w.lite(options=options[1]) as second,
            w.lite(options=options[2]) as third,
        ):
            for consumer in (first, second):
                consumer.subscribe("T")
                await w.finish(consumer.start())
                await w.clock.advance(seconds=5)
            assert said_to_differ(caplog) == []
            third.subscribe("U")
            await w.finish(third.start())
            await w.clock.advance(seconds=120)
            assert any("third" in text for text in said_to_differ(caplog))


async def test_members_that_subscribe_alike_are_not_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pull_world(tmp_path, queue_count=2) as w:
        first_options = w.options(instance_name="first")
        second_options = w.options(instance_name="second")
        async with w.lite(options=first_options) as first, w.lite(options=second_options) as second:
            for consumer in (first, second):
                consumer.subscribe("T")
                await w.finish(consumer.start())
            await w.clock.advance(seconds=120)
            assert said_to_differ(caplog) == []
