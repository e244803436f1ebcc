"""HTML page of a topic report: one file with all charts inside, which loads nothing else.

It suits screens of any width, and paper. All text from messages is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from skylark.spark.jobs.report_charts import headline, moment, printable, svg_charts
from skylark.spark.jobs.topic_report import (
    KeyShare,
    Percentiles,
    TopicReport,
    amount,
    duration,
)

_STYLE: Final = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem; background: #fff; color: #1d2329;
       font: 15px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 1.7rem; overflow-wrap: anywhere; }
h2 { margin: 2rem 0 .6rem; font-size: 1.1rem; }
p.about { margin: .2rem 0 1.4rem; color: #5b6570; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .7rem;
     margin: 0 0 1.2rem; }
dl div { border: 1px solid #dfe4e8; border-radius: .5rem; padding: .6rem .8rem; }
dt { color: #5b6570; font-size: .8rem; }
dd { margin: 0; font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
figure { margin: 0; border: 1px solid #dfe4e8; border-radius: .5rem; padding: .5rem; }
figure.wide { grid-column: 1 / -1; }
figure svg { display: block; width: 100%; height: auto; }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 0 2rem;
          align-items: start; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid #e5e9ed; text-align: right; }
th { color: #5b6570; font-weight: 600; font-size: .85rem; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
footer { margin-top: 2rem; color: #5b6570; font-size: .8rem; }
@media (max-width: 44rem) { .charts { grid-template-columns: 1fr; } }
@media print { body { max-width: none; padding: 0; font-size: 11px; }
  figure, section, dl div { break-inside: avoid; } h2 { break-after: avoid; } }
"""
_NOTES: Final = (
    "Times are in UTC. Sizes are those of records in the commit log. Latency is from birth, by the"
    " producer's clock, to storing, by the broker's. Counts of keys are approximate. Lag is what"
    " the group had not consumed when this page was made, by the time of storing."
)


def html_page(report: TopicReport) -> str:
    """The page; raises ConfigError without matplotlib."""
    title = escape(printable(report.topic))
    charts = "\n".join(
        f'<figure class="{"wide" if panel.wide else "half"}">{svg}</figure>'
        for panel, svg in svg_charts(report)
    )
    facts = "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in _facts(report)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: report</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p class="about">{escape(headline(report))}</p>
<dl>
{facts}
</dl>
<div class="charts">
{charts}
</div>
<div class="tables">
{"".join(_tables(report))}
</div>
<footer>{_NOTES} Made {moment(report.made_ms)} by skylark job report.</footer>
</body>
</html>
"""


def _facts(report: TopicReport) -> Iterator[tuple[str, str]]:
    yield "messages", f"{report.rows:,}"
    yield "mean per minute", f"{report.rows_per_minute:,.0f}"
    yield "peak per minute", f"{report.peak_per_minute:,.0f}"
    if report.sizes is not None:
        yield "median size", amount(report.sizes.p50)
    if report.latencies_ms is not None:
        yield "latency p99", duration(report.latencies_ms.p99)
    yield "queue skew", f"{report.queue_skew:.2f}"
    if report.group is not None:
        yield f"lag of {printable(report.group.group, 40)}", f"{report.group.lag:,}"
        if report.group.oldest_ms is not None:
            yield "oldest unread", duration(report.made_ms - report.group.oldest_ms)


def _tables(report: TopicReport) -> Iterator[str]:
    if report.sizes is not None and report.latencies_ms is not None:
        rows = zip(
            ("least", "p50", "p90", "p95", "p99", "most"),
            map(amount, _values(report.sizes)),
            map(duration, _values(report.latencies_ms)),
            strict=True,
        )
        yield _table("Percentiles", ("", "size", "latency"), rows)
    lag = ("lag",) if report.group is not None else ()
    queues = (
        (
            f"{queue.broker} {queue.queue_id}",
            f"{queue.rows:,}",
            amount(queue.size),
            f"{queue.first_offset:,} to {queue.last_offset:,}",
            *((f"{queue.lag:,}" if queue.lag is not None else "-",) if lag else ()),
        )
        for queue in report.queues
    )
    yield _table("Queues", ("queue", "messages", "bytes", "offsets", *lag), queues)
    for title, share in (("Hottest keys", report.keys), ("Sharding keys", report.sharding_keys)):
        if share.hottest:
            yield _key_table(title, share, report.rows)


def _key_table(title: str, share: KeyShare, total: int) -> str:
    rows = (
        (printable(hot.key), f"{hot.rows:,}", f"{100 * hot.rows / max(1, total):.1f} %")
        for hot in share.hottest
    )
    return _table(f"{title} (about {share.distinct:,})", ("key", "messages", "share"), rows)


def _values(spread: Percentiles) -> tuple[int, ...]:
    return spread.least, spread.p50, spread.p90, spread.p95, spread.p99, spread.most


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    headings = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return (
        f"<section><h2>{escape(title)}</h2>\n<table><thead><tr>{headings}</tr></thead>\n"
        f"<tbody>\n{lines}\n</tbody></table></section>\n"
    )
