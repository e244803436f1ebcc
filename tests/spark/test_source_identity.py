"""The source notices topics that were deleted and created again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skylark.spark.errors import DataLossError
from tests.interop.process import poll_until
from tests.spark.source_site import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    with site.open:
        yield site


def recreate(site: Site, topic: str, count: int) -> None:
    site.admin.topics.delete(topic)
    site.admin.topics.create(topic, queue_count=1)
    site.send(topic, count)


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("count", [20, 30])
def test_a_recreated_topic_that_is_as_long_as_the_old_one(
    site: Site, is_running: bool, count: int
) -> None:
    topic = site.topic(1)
    site.send(topic, 20)
    stream = site.stream(topic)
    assert len(stream.drain()) == 20
    recreate(site, topic, count)
    if not is_running:
        stream.restart()
    if count == 20:  # nothing to read yet, and nothing to check
        assert stream.trigger() is None
        site.send(topic, 1)
    with pytest.raises(DataLossError, match="has other messages now than when it was read up to"):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    rows = stream.drain()
    assert [row["queueOffset"] for row in rows] == list(range(max(21, count)))
    site.send(topic, 5)
    stream.restart(failOnDataLoss="true")
    assert len(stream.drain()) == 5


def test_a_topic_that_was_recreated_while_a_batch_was_limited(site: Site) -> None:
    topic = site.topic(1)
    site.send(topic, 20)
    stream = site.stream(topic, maxOffsetsPerTrigger=5)
    assert len(stream.trigger() or ()) == 5
    recreate(site, topic, 10)  # beyond what was read, and shorter than the old one
    with pytest.raises(DataLossError, match="has other messages now"):
        stream.trigger()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("count", [10, 40])
def test_a_topic_that_was_recreated_after_a_batch_was_planned(
    site: Site, is_first: bool, count: int
) -> None:
    """The driver died before its batch was done, and Spark repeats it without planning it again."""
    topic = site.topic(1)
    site.send(topic, 20)
    stream = site.stream(topic)
    if not is_first:
        assert len(stream.drain()) == 20
        site.send(topic, 5)
    assert stream.plan()
    recreate(site, topic, count)
    stream.restart()
    end = 20 if is_first else 25
    what = f"ends at offset 10, and {end} is wanted" if count == 10 else "has other messages now"
    with pytest.raises(DataLossError, match=what):
        stream.run()
    stream.restart(failOnDataLoss="false")
    assert stream.run() == []  # its messages are gone; those of the new topic are read after it
    assert [row["queueOffset"] for row in stream.drain()] == list(range(count))


def test_a_planned_batch_is_repeated(site: Site) -> None:
    topic = site.topic(2)
    site.send(topic, 20)
    stream = site.stream(topic)
    assert stream.plan()
    site.send(topic, 30)
    stream.restart()
    assert len(stream.run()) == 20
    assert len(stream.drain()) == 30


def test_a_checkpoint_without_identities_goes_on(site: Site) -> None:
    """As versions before this one wrote it; from the next batch on it has them."""
    topic = site.topic(1)
    site.send(topic, 20)
    stream = site.stream(topic)
    assert len(stream.drain()) == 20
    assert stream.ends[-1].pop("i")[topic]["broker-a"]["0"][0] == 20
    site.send(topic, 5)
    stream.restart()
    assert len(stream.drain()) == 5
    recreate(site, topic, 30)
    with pytest.raises(DataLossError, match="has other messages now"):
        stream.trigger()


def test_a_queue_whose_witness_has_expired_goes_on(site: Site) -> None:
    topic = site.topic(1)
    site.send(topic, 20, size=4000)
    stream = site.stream(topic)
    assert len(stream.drain()) == 20
    site.send(topic, 100, size=4000)
    site.broker.stop()
    for file in sorted((site.broker.store / "commitlog").iterdir())[:-3]:
        file.unlink()
    site.broker.start()

    def first_offset() -> int:
        return site.admin.offsets.bounds(topic).queues[0].min_offset

    low = poll_until(first_offset, timeout_s=30, what="the first offset to rise")
    assert low > 20
    stream.restart(failOnDataLoss="false", readMode="pull")
    assert [row["queueOffset"] for row in stream.drain()] == list(range(low, 120))
