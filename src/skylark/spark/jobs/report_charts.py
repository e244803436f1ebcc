"""Charts of a topic report, drawn by matplotlib: each as SVG, or all together as PNG.

Each panel is a function that draws on axes; :func:`panels` lists those of a report. Figures are
independent objects: no global state of matplotlib changes, and no window system is needed.

Names from messages are drawn as they are, never as formulas, and unprintable characters are
escaped. The SVG is an element of an HTML page: without prolog and metadata, and with ids that no
other chart on the page has.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from skylark.core.errors import ConfigError
from skylark.spark.jobs.topic_report import KeyShare, TopicReport, amount, duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[["Axes", TopicReport], None]

_BLUE: Final = "#2563a8"
_ORANGE: Final = "#d9731a"
_RED: Final = "#b3262e"
_GREY: Final = "#5b6570"
_STYLE: Final[dict[Any, Any]] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
    "font.size": 9,
    "text.parse_math": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelcolor": _GREY,
    "axes.edgecolor": "#c3cad1",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e9ed",
    "grid.linewidth": 0.8,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.1,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "skylark",
}
_WIDE: Final = (9.2, 2.9)
_HALF: Final = (4.5, 3.1)
_PNG_DPI: Final = 130
_PNG_INCHES: Final = 11.0
_HEAD_INCHES: Final = 0.9
_ROW_INCHES: Final = 3.1
_NAME_LENGTH_MAX: Final = 26
_HOT_SHOWN: Final = 10
_QUEUE_LABELS_MAX: Final = 16
_FINE_LATENCY_MS: Final = 100


class Panel(NamedTuple):
    """One chart of a report."""

    name: str
    draw: Draw
    wide: bool = False


def panels(report: TopicReport) -> list[Panel]:
    """The charts for which this report has data."""
    if not report.rows:
        return []
    found = [Panel("rate", _draw_rate, wide=True)]
    found.append(Panel("latency", _draw_latency))
    found.append(Panel("lag", _draw_unread) if report.group else Panel("volume", _draw_volume))
    found += [Panel("sizes", _draw_sizes), Panel("queues", _draw_queues)]
    for name, share, title in (
        ("keys", report.keys, "Hottest keys"),
        ("sharding-keys", report.sharding_keys, "Hottest sharding keys"),
    ):
        if share.hottest:
            found.append(Panel(name, partial(_draw_hot, share=share, title=title)))
    return found


def svg_charts(report: TopicReport) -> Iterator[tuple[Panel, str]]:
    """Each chart as SVG for an HTML page; raises ConfigError without matplotlib."""
    for panel, figure in figures(report):
        yield panel, _inline(_svg(figure), f"{panel.name}-")


def figures(report: TopicReport) -> Iterator[tuple[Panel, Figure]]:
    """Each chart as a figure of its own; raises ConfigError without matplotlib."""
    with _drawing():
        from matplotlib.figure import Figure

        for panel in panels(report):
            figure = Figure(figsize=_WIDE if panel.wide else _HALF, layout="constrained")
            panel.draw(figure.subplots(), report)
            yield panel, figure


def png_chart(report: TopicReport) -> bytes:
    """All charts in one picture; raises ConfigError without matplotlib."""
    with _drawing():
        from matplotlib.figure import Figure

        rows = _rows(panels(report))
        heights = [_HEAD_INCHES, *(_ROW_INCHES for _ in rows)]
        figure = Figure(figsize=(_PNG_INCHES, sum(heights)), layout="constrained")
        # Each row is a figure: long names in one do not squeeze the others.
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        parts[0].text(0.012, 0.8, printable(report.topic), fontsize=17, fontweight="bold", va="top")
        parts[0].text(0.012, 0.2, headline(report), fontsize=9.5, color=_GREY)
        for part, row in zip(parts[1:], rows, strict=True):
            axes = part.subplots(1, 1 if row[0].wide else 2, squeeze=False)[0]
            for panel, each in zip(row, axes, strict=False):
                panel.draw(each, report)
            for unused in axes[len(row) :]:
                unused.set_axis_off()
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=_PNG_DPI, facecolor="white")
        return target.getvalue()


def _rows(charts: Sequence[Panel]) -> list[list[Panel]]:
    """The charts of each row: a wide one, or two."""
    rows: list[list[Panel]] = []
    for panel in charts:
        if panel.wide or not rows or rows[-1][0].wide or len(rows[-1]) == 2:
            rows.append([panel])
        else:
            rows[-1].append(panel)
    return rows


def headline(report: TopicReport) -> str:
    """One line about the report: messages, size and time."""
    if report.first_ms is None or report.last_ms is None:
        return "no messages"
    return (
        f"{report.rows:,} messages, {amount(report.size)}, stored from"
        f" {moment(report.first_ms)} to {moment(report.last_ms)}"
    )


def moment(time_ms: int) -> str:
    """A time as text."""
    return datetime.fromtimestamp(time_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def printable(name: str, length_max: int = 80) -> str:
    """A name of any kind as one line of text that is not too long."""
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in name
    )
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def require_charts() -> None:
    """Raise ConfigError without matplotlib."""
    try:
        import matplotlib  # noqa: F401 - to see whether it is installed
    except ImportError:
        raise ConfigError(
            "charts need matplotlib", hint="pip install 'skylark-mq[report]'"
        ) from None


@contextmanager
def _drawing() -> Iterator[None]:
    require_charts()
    import matplotlib as mpl

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # Keys with characters that the font lacks are drawn as boxes; the page has them as text.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _svg(figure: Figure) -> str:
    target = io.StringIO()
    empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(target, format="svg", metadata=empty, transparent=True)
    return target.getvalue()


def _inline(svg: str, prefix: str) -> str:
    """Return the ``<svg>`` element of an SVG document, with ``prefix`` before its ids."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    head, rest = element.split(">", 1)
    head = re.sub(r'\s(?:xmlns(?::\w+)?|width|height|version)="[^"]*"', "", head)
    element = f"{head}>{rest}"
    element = re.sub(r'\bid="', f'id="{prefix}', element)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", element)


# ---- panels --------------------------------------------------------------------------------------


def _draw_rate(axes: Axes, report: TopicReport) -> None:
    rates = [report.per_minute(span.rows) for span in report.spans]
    _steps(axes, report, rates, _BLUE)
    axes.axhline(report.rows_per_minute, color=_ORANGE, linewidth=1, linestyle="--")
    axes.annotate(
        f"mean {report.rows_per_minute:,.0f}",
        (1, report.rows_per_minute),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        xytext=(-2, 3),
        ha="right",
        color=_ORANGE,
        fontsize=8,
    )
    _label(axes, "Rate", "messages per minute")


def _draw_volume(axes: Axes, report: TopicReport) -> None:
    sizes = [report.per_minute(span.size) for span in report.spans]
    unit = amount(max(sizes)).split()[1]
    unit_size = 1_024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    _steps(axes, report, [size / unit_size for size in sizes], _BLUE)
    _label(axes, "Volume", f"{unit} per minute")


def _draw_unread(axes: Axes, report: TopicReport) -> None:
    assert report.group is not None
    unread = list(accumulate(span.unread for span in report.spans))
    _steps(axes, report, unread, _ORANGE)
    _label(axes, f"Lag of {printable(report.group.group, 32)}", "unread, stored until then")


def _draw_latency(axes: Axes, report: TopicReport) -> None:
    from matplotlib.ticker import SymmetricalLogLocator

    spans = [span for span in report.spans if span.rows]
    times = [_days(span.start_ms) for span in spans]
    for name, values, colour in (
        ("p99", [span.latency_p99_ms for span in spans], _RED),
        ("p95", [span.latency_p95_ms for span in spans], _ORANGE),
        ("p50", [span.latency_p50_ms for span in spans], _BLUE),
    ):
        dots = "." if len(spans) < 30 else None
        axes.plot(times, _numbers(values), color=colour, label=name, linewidth=1.3, marker=dots)
    most_ms = max((abs(span.latency_p99_ms or 0) for span in spans), default=0)
    # Labels of more ticks, or of a narrower step from 0 to 1 ms, would overlap.
    subs, step = ((1, 2, 5), 0.3) if most_ms < _FINE_LATENCY_MS else ((1,), 1)
    axes.set_yscale("symlog", linthresh=1, linscale=step)
    axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1, subs=subs))
    axes.yaxis.set_major_formatter(lambda value, _: duration(value))
    axes.legend(loc="upper right", ncols=3, fontsize=8, bbox_to_anchor=(1, 1.14))
    _time_axis(axes)
    _label(axes, "Latency", "from birth to storing")


def _draw_sizes(axes: Axes, report: TopicReport) -> None:
    classes = report.size_classes
    exponents = [size_class.least.bit_length() - 1 for size_class in classes]
    heights = [size_class.rows for size_class in classes]
    axes.bar(exponents, heights, width=1, align="edge", color=_BLUE, edgecolor="white")
    first, last = min(exponents), max(exponents) + 1
    step = 1 + (last - first) // 9
    axes.set_xticks(range(first, last + 1, step))
    axes.set_xticklabels([amount(2**exponent) for exponent in range(first, last + 1, step)])
    axes.set_xlim(first - 0.5, last + 0.5)
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", labelrotation=0 if last - first < 7 else 30)
    axes.set_xlabel("size as stored")
    _label(axes, "Sizes", "messages")


def _draw_queues(axes: Axes, report: TopicReport) -> None:
    queues = report.queues
    axes.bar(range(len(queues)), [queue.rows for queue in queues], color=_BLUE, width=0.8)
    axes.axhline(report.rows / len(queues), color=_ORANGE, linewidth=1, linestyle="--")
    axes.set_xlim(-0.7, len(queues) - 0.3)
    axes.grid(visible=False, axis="x")
    brokers = {queue.broker for queue in queues}
    if len(queues) <= _QUEUE_LABELS_MAX:
        names = [
            str(queue.queue_id) if len(brokers) == 1
            else f"{printable(queue.broker, 14)} {queue.queue_id}"
            for queue in queues
        ]  # fmt: skip
        axes.set_xticks(range(len(queues)), names)
        axes.tick_params(axis="x", labelrotation=0 if len(brokers) == 1 else 60)
    else:
        axes.set_xticks([])
    where = f" of {printable(next(iter(brokers)), 32)}" if len(brokers) == 1 else ""
    axes.set_xlabel(f"queues{where}, skew {report.queue_skew:.2f}")
    _label(axes, "Queues", "messages")


def _draw_hot(axes: Axes, _: TopicReport, share: KeyShare, title: str) -> None:
    hottest = share.hottest[:_HOT_SHOWN]
    names = [printable(hot.key, _NAME_LENGTH_MAX) for hot in hottest]
    rows = [hot.rows for hot in hottest]
    bars = axes.barh(range(len(hottest)), rows, color=_BLUE, height=0.7)
    axes.bar_label(bars, [f"{count:,}" for count in rows], padding=3, color=_GREY, fontsize=8)
    axes.set_yticks(range(len(hottest)), names)
    axes.set_ylim(_HOT_SHOWN - 0.5, -0.5)
    axes.set_xlim(0, max(rows) * 1.18)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(_count)
    axes.set_xlabel(f"messages, about; {share.distinct:,} different keys")
    axes.set_title(title)


# ---- axes ----------------------------------------------------------------------------------------


def _label(axes: Axes, title: str, of_values: str) -> None:
    axes.set_title(title)
    axes.set_ylabel(of_values)
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(_count)


def _count(value: float, _: Any = None) -> str:
    """A large number as short text."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _steps(axes: Axes, report: TopicReport, values: Sequence[float], colour: str) -> None:
    """One value for each span of time."""
    width_ms = report.width_s * 1_000
    starts = [span.start_ms for span in report.spans]
    times = [_days(time_ms) for time_ms in (*starts, starts[-1] + width_ms)]
    heights = [*values, values[-1]]
    axes.fill_between(times, heights, color=colour, alpha=0.25, step="post", linewidth=0)
    axes.step(times, heights, color=colour, where="post", linewidth=1.4)
    _time_axis(axes)


def _time_axis(axes: Axes) -> None:
    from matplotlib import dates

    untyped: Any = dates
    locator = untyped.AutoDateLocator(tz=UTC, minticks=3, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(untyped.ConciseDateFormatter(locator, tz=UTC))
    axes.margins(x=0.015)
    axes.set_xlabel("time of storing (UTC)", loc="left")  # the date is on the right


def _days(time_ms: int) -> float:
    """A time as matplotlib has it: days since 1970."""
    return time_ms / 86_400_000


def _numbers(values: Sequence[int | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
