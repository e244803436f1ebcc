"""The page and the pictures of a report: nothing is fetched, nothing of a message is markup."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from skylark.core.errors import ConfigError
from skylark.spark.jobs.report_charts import (
    figures,
    panels,
    png_chart,
    printable,
    svg_charts,
)
from skylark.spark.jobs.report_page import html_page
from skylark.spark.jobs.topic_report import (
    GroupLag,
    HotKey,
    KeyShare,
    Percentiles,
    QueueShare,
    SizeClass,
    Span,
    TopicReport,
)

START_MS = 1_790_000_000_000
NASTY = ("<script>alert(1)</script>", "$\\alpha", "a\nb\x1b[2J", "客户", "x" * 300, "&amp;")


def spread(*values: int) -> Percentiles:
    names = ("least", "p50", "p90", "p95", "p99", "most")
    return msgspec.convert(dict(zip(names, values, strict=True)), Percentiles)


def report(group: str | None = "readers", brokers: int = 1) -> TopicReport:
    keys = KeyShare(
        distinct=len(NASTY),
        hottest=tuple(HotKey(key=key, rows=60 - n) for n, key in enumerate(NASTY)),
    )
    return TopicReport(
        topic="<orders>",
        made_ms=START_MS + 300_000,
        rows=200,
        size=40_000,
        first_ms=START_MS,
        last_ms=START_MS + 120_000,
        width_s=60,
        spans=(
            Span(start_ms=START_MS, rows=150, size=30_000, latency_p50_ms=1, latency_p95_ms=20,
                 latency_p99_ms=3_000, unread=5),
            Span(start_ms=START_MS + 60_000),
            Span(start_ms=START_MS + 120_000, rows=50, size=10_000, latency_p50_ms=-2,
                 latency_p95_ms=0, latency_p99_ms=4, unread=45),
        ),
        sizes=spread(100, 200, 210, 220, 230, 1_000),
        latencies_ms=spread(-2, 1, 2, 20, 3_000, 9_000),
        size_classes=(SizeClass(least=64, rows=150), SizeClass(least=512, rows=50)),
        queues=tuple(
            QueueShare(broker=f"broker-{b}", queue_id=0, rows=100, size=1, first_offset=0,
                       last_offset=99, lag=25)
            for b in range(brokers)
        ),
        keys=keys,
        sharding_keys=keys,
        group=None if group is None else GroupLag(group=group, lag=50, oldest_ms=START_MS),
    )  # fmt: skip


class Reader(HTMLParser):
    """Tags, ids and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.references: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        self.references += [str(v) for n, v in attrs if n in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_is_self_contained_and_escapes_text_of_messages() -> None:
    page = html_page(report())
    assert "http" not in page
    assert "@import" not in page
    read = Reader(page)
    assert not {"script", "link", "img", "iframe", "orders"} & set(read.tags)
    assert read.tags.count("svg") == 7
    assert len(read.ids) == len(set(read.ids))
    assert {reference[0] for reference in read.references} == {"#"}
    assert {reference[1:] for reference in read.references} <= set(read.ids)
    text = "\n".join(read.texts)
    for name in ("<orders>", "<script>alert(1)</script>", "$\\alpha", "a\\nb\\x1b[2J", "&amp;"):
        assert name in text
    assert "x" * 81 not in text
    assert "lag of readers" in text
    assert "5.0 min" in text  # the oldest unread message


def test_every_chart_has_a_title_and_names_its_axes() -> None:
    for group in ("readers", None):
        charts = {panel.name: svg for panel, svg in svg_charts(report(group, brokers=3))}
        assert list(charts) == [
            "rate", "latency", "lag" if group else "volume", "sizes", "queues", "keys",
            "sharding-keys",
        ]  # fmt: skip
        assert "messages per minute" in charts["rate"]
        assert "time of storing (UTC)" in charts["latency"]
        assert "broker-2 0" in charts["queues"]
        if group:
            assert "Lag of readers" in charts["lag"]


@pytest.mark.parametrize("length_s", [1, 60, 3_600, 9 * 86_400, 700 * 86_400])
@pytest.mark.parametrize("latency", [2, 10])
def test_labels_do_not_overlap(length_s: int, latency: int) -> None:
    spans = tuple(
        Span(start_ms=START_MS + n * length_s * 50, rows=5 + n, size=1_000 * n + 1, unread=n,
             latency_p50_ms=n, latency_p95_ms=n * 2, latency_p99_ms=latency ** (n // 3))
        for n in range(20)
    )  # fmt: skip
    found = msgspec.structs.replace(report(), spans=spans, width_s=max(1, length_s // 20))
    for panel, figure in figures(found):
        (axes,) = figure.axes
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        ink = canvas.get_renderer()
        for axis in (axes.xaxis, axes.yaxis):
            texts = [each for each in axis.get_ticklabels() if each.get_text()]
            for one, other in pairwise([each.get_window_extent(ink) for each in texts]):
                assert not one.overlaps(other), panel.name
        others = [axes.xaxis.label, axes.xaxis.get_offset_text()]
        boxes = [each.get_window_extent(ink) for each in others if each.get_text()]
        assert len(boxes) < 2 or not boxes[0].overlaps(boxes[1]), panel.name


def test_a_picture_holds_all_charts() -> None:
    picture = png_chart(report())
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1430, 1729)


def test_a_topic_without_messages_has_a_page() -> None:
    empty = TopicReport(topic="T", made_ms=START_MS)
    assert panels(empty) == []
    assert "no messages" in html_page(empty)
    assert png_chart(empty).startswith(b"\x89PNG")


def test_many_queues_are_drawn_without_names() -> None:
    many = msgspec.structs.replace(
        report(),
        queues=tuple(
            QueueShare(broker="b", queue_id=n, rows=1, size=1, first_offset=0, last_offset=1)
            for n in range(64)
        ),
    )
    charts = {panel.name: svg for panel, svg in svg_charts(many)}
    assert ">63<" not in charts["queues"]


def test_names_are_one_line_and_short() -> None:
    assert printable("a\tb\x00") == "a\\tb\\x00"
    assert printable("abcdef", 4) == "abc…"


def test_without_matplotlib_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'skylark-mq\[report\]'"):
        png_chart(report())
