"""How messages reach the columns: filters, compressed bodies, topics that come later."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from skylark import Message
from skylark.core.errors import SkylarkError
from skylark.sync import Producer
from tests.interop.process import poll_until
from tests.spark.driven import DrivenStream, Row, read_batch
from tests.spark.source_site import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    with site.open:
        yield site


@pytest.mark.parametrize("mode", ["pull", "auto"])
def test_compressed_bodies(site: Site, mode: str) -> None:
    topic = site.topic(1)
    body = b"abc" * 1000
    with Producer("zip", site.options, compress_over=100) as producer:
        producer.send(Message(topic, body))
        producer.send(Message(topic, b"small"))
    site.wait_written(topic, 0, 2)
    given = site.given(topic, readMode=mode)
    assert [row["body"] for row in read_batch(given)] == [body, b"small"]
    raw = [row["body"] for row in read_batch(given | {"decompress": "false"})]
    assert (zlib.decompress(raw[0]), raw[1]) == (body, b"small")


def test_conditions_in_sql(site: Site) -> None:
    topic = site.topic(1)
    for number in range(10):
        site.producer.send(Message(topic, b"x", properties={"n": str(number)}))
    rows = read_batch(site.given(topic, sql92="n BETWEEN 3 AND 5"))
    assert [row["queueOffset"] for row in rows] == [3, 4, 5]
    with pytest.raises(SkylarkError):
        read_batch(site.given(topic, sql92="n BETWEEN"))


def test_topics_that_come_later(site: Site) -> None:
    first = site.topic(1)
    site.send(first, 2)
    stream = DrivenStream(
        nameServer=site.namesrv.address,
        topicsPattern="T[0-9]+",
        topicRefreshMs=0,
        startingOffsets="earliest",
        idlePollMs=20,
        columns="topic,queueOffset",
    )
    stream.drain()
    second = site.topic(1)
    site.send(second, 3)

    def later() -> list[Row]:
        return stream.drain()

    rows = poll_until(later, timeout_s=30, what="the rows of the new topic")
    assert [(row["topic"], row["queueOffset"]) for row in rows] == [(second, n) for n in range(3)]
    assert set(stream.ends[-1]["q"]) >= {first, second}
