"""Draws a picture of steps: boxes in two columns, bands behind them, arrows between them, as SVG.

Coordinates follow from the rows: a row is as high as its highest box, and all its boxes are as high
as the row. Bands cover consecutive rows and have a label.

**Light and dark.** Colours are CSS variables. A picture that is shown as an image follows
``prefers-color-scheme``. The site puts the SVG into its page (:mod:`tools.site_hooks`), so that the
picture follows the page's own switch, ``data-md-color-scheme``.

**Text is not wrapped.** ``tests/test_pictures.py`` measures every text with a wide font and fails
where one is wider than its box.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias
from xml.sax.saxutils import escape, quoteattr

WIDTH: Final = 800
MARGIN: Final = 34  # left and right of the boxes; arrows at the side have room here
BOX_WIDTH: Final = 340
GUTTER: Final = WIDTH - 2 * MARGIN - 2 * BOX_WIDTH
COLUMN_X: Final = (MARGIN, MARGIN + BOX_WIDTH + GUTTER)

TITLE_SIZE: Final = 14
TEXT_SIZE: Final = 12.5
FILE_SIZE: Final = 11.5
LABEL_SIZE: Final = 11.5

_PADDING: Final = 10
_LINE_HEIGHTS: Final = {"title": 20, "text": 17, "file": 16}
_SIZES: Final = {"title": TITLE_SIZE, "text": TEXT_SIZE, "file": FILE_SIZE, "label": LABEL_SIZE}
_ROW_GAP: Final = 24
_BAND_TOP: Final = 26  # room for the label
_BAND_BOTTOM: Final = 14
_BAND_GAP: Final = 12
_SIDE_ARROW: Final = 14  # how far an arrow at the side is from the box

_LIGHT: Final = {
    "page": "#ffffff",
    "band": "#f1f3f9",
    "box": "#ffffff",
    "edge": "#c5cad9",
    "ink": "#1f2330",
    "soft": "#4d5468",
    "line": "#5c6bc0",
    "file": "#303f9f",
}
_DARK: Final = {
    "page": "#1e2129",
    "band": "#262a36",
    "box": "#2f3442",
    "edge": "#4a5166",
    "ink": "#eceef5",
    "soft": "#b9bfd0",
    "line": "#8c9eff",
    "file": "#aab6fe",
}

Route: TypeAlias = Literal["straight", "side", "gutter"]


@dataclass(frozen=True)
class Box:
    """One step: what happens, and the files of ``src/skylark`` that do it."""

    key: str
    row: int
    column: int  # 0 or 1
    title: str
    text: Sequence[str]
    files: Sequence[str]

    def lines(self) -> Iterator[tuple[str, str]]:
        """Class and text of each line."""
        yield "title", self.title
        for line in self.text:
            yield "text", line
        for name in self.files:
            yield "file", name

    @property
    def height(self) -> float:
        return 2 * _PADDING + sum(_LINE_HEIGHTS[kind] for kind, _ in self.lines())


@dataclass(frozen=True)
class Arrow:
    """From box to box. ``side``: along the outer side of a column; ``gutter``: between columns.

    ``lane`` chooses one of two places in the gutter; each
    lane meets the box at its end at a different height.
    """

    start: str
    end: str
    label: str = ""
    route: Route = "straight"
    lane: int = 0
    dashed: bool = False


@dataclass(frozen=True)
class Band:
    """What runs a number of rows."""

    label: str
    rows: Sequence[int]


@dataclass(frozen=True)
class Picture:
    """The way of one thing through the code."""

    name: str
    title: str
    alt: str
    bands: Sequence[Band]
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]


@dataclass(frozen=True)
class Area:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> float:
        return self.x + self.width / 2

    @property
    def middle(self) -> float:
        return self.y + self.height / 2

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True)
class Layout:
    """Where everything is."""

    height: float
    bands: Sequence[Area]
    boxes: Mapping[str, Area]


def lay_out(picture: Picture) -> Layout:
    """The places of bands and boxes."""
    bands, boxes = [], {}
    y = float(_BAND_GAP)
    for band in picture.bands:
        top = y
        y += _BAND_TOP
        for row in band.rows:
            in_row = [box for box in picture.boxes if box.row == row]
            height = max(box.height for box in in_row)
            for box in in_row:
                boxes[box.key] = Area(COLUMN_X[box.column], y, BOX_WIDTH, height)
            y += height + _ROW_GAP
        y += _BAND_BOTTOM - _ROW_GAP
        bands.append(Area(6, top, WIDTH - 12, y - top))
        y += _BAND_GAP
    return Layout(y, bands, boxes)


def draw(picture: Picture) -> str:
    """The picture as SVG."""
    layout = lay_out(picture)
    files = dict.fromkeys(name for box in picture.boxes for name in box.files)
    named = f" Files: {', '.join(files)}" if files else ""
    parts = [
        f'<svg class="skylark-picture" id="{picture.name}" xmlns="http://www.w3.org/2000/svg"'
        f' viewBox="0 0 {WIDTH} {layout.height:g}" role="img" aria-label={quoteattr(picture.alt)}>',
        f"<title>{escape(picture.title)}</title>",
        f"<desc>{escape(picture.alt + named)}</desc>",
        f"<style>{_style()}</style>",
        f'<defs><marker id="{picture.name}-head" viewBox="0 0 8 8" refX="7" refY="4"'
        ' markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
        '<path class="head" d="M0 0 8 4 0 8z"/></marker></defs>',
        f'<rect class="page" width="{WIDTH}" height="{layout.height:g}"/>',
    ]
    for band, area in zip(picture.bands, layout.bands, strict=True):
        parts.append(_rect("band", area, 8))
        parts.append(_text("band-label", MARGIN, area.y + 17, band.label))
    for arrow in picture.arrows:
        parts += _draw_arrow(picture, layout, arrow)
    for box in picture.boxes:
        parts += _draw_box(box, layout.boxes[box.key])
    return "\n".join([*parts, "</svg>", ""])


def _style() -> str:
    light, dark = (
        ";".join(f"--{name}:{value}" for name, value in colours.items())
        for colours in (_LIGHT, _DARK)
    )
    sizes = "".join(
        f".skylark-picture .{name}{{font-size:{size}px}}" for name, size in _SIZES.items()
    )
    return (
        f".skylark-picture{{{light};width:100%;height:auto;font-family:system-ui,sans-serif}}"
        f"@media (prefers-color-scheme:dark){{.skylark-picture{{{dark}}}}}"
        f"[data-md-color-scheme=default] .skylark-picture{{{light}}}"
        f"[data-md-color-scheme=slate] .skylark-picture{{{dark};--page:var(--md-default-bg-color)}}"
        f"{sizes}"
        ".skylark-picture .page{fill:var(--page)}"
        ".skylark-picture .band{fill:var(--band)}"
        ".skylark-picture .box{fill:var(--box);stroke:var(--edge)}"
        ".skylark-picture .arrow{fill:none;stroke:var(--line);stroke-width:1.5}"
        ".skylark-picture .dashed{stroke-dasharray:5 4}"
        ".skylark-picture .head{fill:var(--line)}"
        ".skylark-picture .title{fill:var(--ink);font-weight:600}"
        ".skylark-picture .text,.skylark-picture .label{fill:var(--soft)}"
        ".skylark-picture .label{font-style:italic}"
        ".skylark-picture .file{fill:var(--file);font-family:ui-monospace,monospace}"
        ".skylark-picture .band-label{fill:var(--soft);font-size:12px;font-weight:600}"
    )


def _rect(kind: str, area: Area, radius: float) -> str:
    return (
        f'<rect class="{kind}" x="{area.x:g}" y="{area.y:g}" width="{area.width:g}"'
        f' height="{area.height:g}" rx="{radius:g}"/>'
    )


def _text(kind: str, x: float, y: float, text: str, more: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{more}>{escape(text)}</text>'


def _draw_box(box: Box, area: Area) -> list[str]:
    parts = [_rect("box", area, 6)]
    y = area.y + _PADDING
    for kind, text in box.lines():
        y += _LINE_HEIGHTS[kind]
        parts.append(_text(kind, area.x + _PADDING, y - 5, text))
    return parts


def _draw_arrow(picture: Picture, layout: Layout, arrow: Arrow) -> list[str]:
    start, end = layout.boxes[arrow.start], layout.boxes[arrow.end]
    points, label = _route(arrow, start, end)
    path = f"M{points[0][0]:g} {points[0][1]:g}"
    for (x0, _), (x, y) in pairwise(points):
        path += f"V{y:g}" if x == x0 else f"H{x:g}"
    kind = "arrow dashed" if arrow.dashed else "arrow"
    drawn = [f'<path class="{kind}" d="{path}" marker-end="url(#{picture.name}-head)"/>']
    if arrow.label:
        drawn.append(label)
    return drawn


def _route(arrow: Arrow, start: Area, end: Area) -> tuple[list[tuple[float, float]], str]:
    """The corners of an arrow, and its label."""
    if arrow.route == "gutter":
        x = WIDTH / 2 + (-8, 8)[arrow.lane]
        y = end.y + end.height * (1 + arrow.lane) / 3
        leaves, enters = (start.right, end.x) if start.x < end.x else (start.x, end.right)
        label = _turned(x + (-5, 13)[arrow.lane], (start.middle + y) / 2, arrow.label)
        return [(leaves, start.middle), (x, start.middle), (x, y), (enters, y)], label
    if arrow.route == "side":
        is_left = start.x < WIDTH / 2
        edge = start.x if is_left else start.right
        x = edge + (-_SIDE_ARROW if is_left else _SIDE_ARROW)
        label = _turned(x + (-5 if is_left else 13), (start.middle + end.middle) / 2, arrow.label)
        return [(edge, start.middle), (x, start.middle), (x, end.middle), (edge, end.middle)], label
    if start.x != end.x:
        y = (max(start.y, end.y) + min(start.bottom, end.bottom)) / 2
        ends = (start.right, end.x) if start.x < end.x else (start.x, end.right)
        label = _text("label", WIDTH / 2, y - 6, arrow.label, ' text-anchor="middle"')
        return [(ends[0], y), (ends[1], y)], label
    is_down = start.y < end.y
    ends = (start.bottom, end.y) if is_down else (start.y, end.bottom)
    label = _text("label", start.centre + 8, sum(ends) / 2 + 4, arrow.label)
    return [(start.centre, ends[0]), (start.centre, ends[1])], label


def _turned(x: float, y: float, text: str) -> str:
    """A label that stands along a vertical line."""
    return _text("label", x, y, text, f' text-anchor="middle" transform="rotate(-90 {x:g} {y:g})"')
