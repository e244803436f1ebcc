"""Draws the chart of a comparison: a bar for each row on a logarithmic scale, Apache being 1.

The chart is SVG with text that scales, narrow enough to be read on a phone. As in the pictures of
``tools/pictures``, colours are CSS variables: an image follows ``prefers-color-scheme``, and in the
site, which puts the SVG into its page (:mod:`tools.site_hooks`), the page's own switch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

WIDTH: Final = 520
ROW_HEIGHT: Final = 20
_TOP: Final = 34  # room for the title
_BOTTOM: Final = 44  # room for the numbers and the words of the axis
_LEFT: Final = 190  # room for the titles of the rows
_RIGHT: Final = 40  # room for the figure of the longest bar
_BAR: Final = 14
_LOWEST: Final = 0.8  # the axis starts here, or where the shortest bar ends

_LIGHT: Final = {
    "page": "#ffffff",
    "ink": "#1f2330",
    "soft": "#4d5468",
    "edge": "#c5cad9",
    "better": "#2a6f97",
    "worse": "#bc6c25",
}
_DARK: Final = {
    "page": "#1e2129",
    "ink": "#eceef5",
    "soft": "#b9bfd0",
    "edge": "#4a5166",
    "better": "#5aa9d6",
    "worse": "#e0995a",
}


def draw_chart(title: str, axis: str, alt: str, bars: Sequence[tuple[str, float]]) -> str:
    """The chart as SVG; ``bars`` are titles, and how many times better the row is."""
    values = [value for _, value in bars]
    low = math.log10(min(_LOWEST, *values, 1))
    high = math.log10(max(*values, 10))
    height = _TOP + ROW_HEIGHT * len(bars) + _BOTTOM

    def place(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    end = height - _BOTTOM + 4
    parts = [
        f'<svg class="skylark-chart" xmlns="http://www.w3.org/2000/svg"'
        f' viewBox="0 0 {WIDTH} {height}" role="img" aria-label={quoteattr(alt)}>',
        f"<style>{_style()}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="8" y="20">{escape(title)}</text>',
    ]
    for power in range(math.ceil(low), math.floor(high) + 1):
        x = f"{place(10**power):.1f}"
        parts.append(f'<path class="{"one" if power == 0 else "line"}" d="M{x} {_TOP - 4}V{end}"/>')
        parts.append(_text("soft", x, end + 15, f"{10**power:,}", "middle"))
    for number, (name, value) in enumerate(bars):
        y = _TOP + ROW_HEIGHT * number
        start, stop = sorted((place(1), place(value)))
        kind = "better" if value >= 1 else "worse"
        parts.append(
            f'<rect class="{kind}" x="{start:.1f}" y="{y + (ROW_HEIGHT - _BAR) // 2}"'
            f' width="{stop - start:.1f}" height="{_BAR}"/>'
        )
        parts.append(_text("ink", f"{_LEFT - 8}", y + 14, name, "end"))
        parts.append(_text("ink", f"{place(max(value, 1)) + 5:.1f}", y + 14, times(value), "start"))
    parts.append(_text("soft", f"{WIDTH - 8}", height - 8, axis, "end"))
    return "\n".join([*parts, "</svg>", ""])


def times(better: float) -> str:
    """A ratio in two digits, or whole."""
    return f"{better:.0f}" if better >= 10 else f"{better:.2g}"


def _text(kind: str, x: str, y: float, text: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _style() -> str:
    light, dark = (
        ";".join(f"--{name}:{value}" for name, value in colours.items())
        for colours in (_LIGHT, _DARK)
    )
    return (
        f"svg.skylark-chart{{{light};width:100%;max-width:{WIDTH * 1.25:g}px;height:auto;"
        "font:12px system-ui,sans-serif}"
        f"@media (prefers-color-scheme:dark){{svg.skylark-chart{{{dark}}}}}"
        f"[data-md-color-scheme=default] svg.skylark-chart{{{light}}}"
        f"[data-md-color-scheme=slate] .skylark-chart{{{dark};--page:var(--md-default-bg-color)}}"
        ".skylark-chart .page{fill:var(--page)}"
        ".skylark-chart .title{fill:var(--ink);font-weight:600}"
        ".skylark-chart .ink{fill:var(--ink)}"
        ".skylark-chart .soft{fill:var(--soft)}"
        ".skylark-chart .line{stroke:var(--edge)}"
        ".skylark-chart .one{stroke:var(--soft)}"
        ".skylark-chart .better{fill:var(--better)}"
        ".skylark-chart .worse{fill:var(--worse)}"
    )
