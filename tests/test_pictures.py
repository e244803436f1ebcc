"""The pictures of the documentation: they name files that exist, fit, and are in the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from PIL import ImageFont

from tools.pictures.__main__ import ALL, FOLDER, ROOT, stale_pictures
from tools.pictures.drawing import FILE_SIZE, LABEL_SIZE, TEXT_SIZE, TITLE_SIZE, Picture, draw
from tools.pictures.message_paths import PICTURES, SEND
from tools.pictures.overviews import OVERVIEWS
from tools.site_hooks import with_pictures

PAGES = (ROOT / "docs" / "design" / "architecture.md",)
SVG = "{http://www.w3.org/2000/svg}"
# Wide fonts: what fits with these fits with others.
FONTS = {
    "title": ("DejaVuSans-Bold.ttf", TITLE_SIZE),
    "band-label": ("DejaVuSans-Bold.ttf", 12),
    "text": ("DejaVuSans.ttf", TEXT_SIZE),
    "label": ("DejaVuSans-Oblique.ttf", LABEL_SIZE),
    "file": ("DejaVuSansMono.ttf", FILE_SIZE),
}

each_picture = pytest.mark.parametrize("picture", ALL, ids=lambda picture: picture.name)
each_path = pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)


def elements(svg: str, tag: str, kind: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(svg)
    return [each for each in root.iter(SVG + tag) if kind in each.get("class", "").split()]


def named_files(svg: str) -> set[str]:
    return {each.text or "" for each in elements(svg, "text", "file")}


# ---- what they say -------------------------------------------------------------------------------


def missing_files(svg: str) -> list[str]:
    package = ROOT / "src" / "skylark"
    return sorted(name for name in named_files(svg) if not (package / name).is_file())


def test_the_pictures_are_up_to_date() -> None:
    assert stale_pictures() == [], "run make reference"
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(each.name for each in ALL)


@each_path
def test_every_step_names_a_file_that_exists(picture: Picture) -> None:
    assert all(box.files for box in picture.boxes)
    svg = (FOLDER / f"{picture.name}.svg").read_text()
    assert len(named_files(svg)) >= 8
    assert missing_files(svg) == []


def test_a_file_that_is_gone_is_found() -> None:
    gone = replace(SEND.boxes[0], files=["net/inbound.py", "net/gone.py"])
    assert missing_files(draw(replace(SEND, boxes=[gone, *SEND.boxes[1:]]))) == ["net/gone.py"]


@each_picture
def test_every_box_is_on_the_way(picture: Picture) -> None:
    keys = {box.key for box in picture.boxes}
    ends = {key for arrow in picture.arrows for key in (arrow.start, arrow.end)}
    assert ends <= keys
    rows = [row for band in picture.bands for row in band.rows]
    assert sorted(rows) == sorted({box.row for box in picture.boxes})
    if picture.name != "transaction":  # whose last two boxes are about restarts
        assert ends == keys


# ---- whether they fit ----------------------------------------------------------------------------


class Area(NamedTuple):
    x: float
    y: float
    right: float
    bottom: float

    def meets(self, other: Area) -> bool:
        return (
            self.x < other.right
            and other.x < self.right
            and self.y < other.bottom
            and other.y < self.bottom
        )

    def holds(self, other: Area) -> bool:
        return (
            self.x <= other.x
            and self.y <= other.y
            and other.right <= self.right
            and other.bottom <= self.bottom
        )


@cache
def font(kind: str) -> tuple[ImageFont.FreeTypeFont, float]:
    name, size = FONTS[kind]
    path = Path(mpl.get_data_path()) / "fonts" / "ttf" / name
    return ImageFont.truetype(str(path), 100), size / 100


def area_of_text(element: ElementTree.Element) -> Area:
    face, scale = font(element.get("class", ""))
    x, y = (float(element.get(name, "")) for name in "xy")
    width, height = face.getlength(element.text or "") * scale, 100 * scale
    if element.get("transform"):  # stands upright, its middle at x, y
        return Area(x - height * 0.75, y - width / 2, x + height * 0.25, y + width / 2)
    left = x - width / 2 if element.get("text-anchor") == "middle" else x
    return Area(left, y - height * 0.75, left + width, y + height * 0.25)


def area_of_rect(element: ElementTree.Element) -> Area:
    x, y, width, height = (float(element.get(name, "0")) for name in ("x", "y", "width", "height"))
    return Area(x, y, x + width, y + height)


def lines_of(element: ElementTree.Element) -> Iterator[Area]:
    """The straight pieces of an arrow, as thin areas."""
    x = y = 0.0
    corners = []
    for operation, first, second in re.findall(
        r"([MHV])([\d.]+)(?: ([\d.]+))?", element.get("d", "")
    ):
        if operation == "M":
            x, y = float(first), float(second)
        elif operation == "H":
            x = float(first)
        else:
            y = float(first)
        corners.append((x, y))
    for (x0, y0), (x1, y1) in pairwise(corners):
        yield Area(min(x0, x1) - 0.5, min(y0, y1) - 0.5, max(x0, x1) + 0.5, max(y0, y1) + 0.5)


def faults(svg: str) -> list[str]:
    """Texts that leave their box, and things that lie on each other."""
    boxes = [area_of_rect(each) for each in elements(svg, "rect", "box")]
    (page,) = map(area_of_rect, elements(svg, "rect", "page"))
    found = []
    for kind in ("title", "text", "file"):
        for each in elements(svg, "text", kind):
            area = area_of_text(each)
            if not any(box.holds(area._replace(right=area.right + 6)) for box in boxes):
                found.append(f"leaves its box: {each.text}")
    labels = {
        each.text or "": area_of_text(each)
        for kind in ("label", "band-label")
        for each in elements(svg, "text", kind)
    }
    arrows = [line for each in elements(svg, "path", "arrow") for line in lines_of(each)]
    for text, area in labels.items():
        if not page.holds(area):
            found.append(f"leaves the picture: {text}")
        if any(area.meets(other) for other in (*boxes, *arrows)):
            found.append(f"lies on a box or an arrow: {text}")
    for (one, area), (other, other_area) in combinations(labels.items(), 2):
        if area.meets(other_area):
            found.append(f"lie on each other: {one}, {other}")
    inner = [Area(b.x + 1, b.y + 1, b.right - 1, b.bottom - 1) for b in boxes]
    if any(box.meets(line) for box in inner for line in arrows):
        found.append("an arrow crosses a box")
    if any(one.meets(other) for one, other in combinations(boxes, 2)):
        found.append("boxes lie on each other")
    return found


@each_picture
def test_nothing_overlaps_or_overflows(picture: Picture) -> None:
    assert faults(draw(picture)) == []


def test_overflow_and_overlap_are_found() -> None:
    box, arrow = SEND.boxes[0], SEND.arrows[0]
    wide = replace(SEND, boxes=[replace(box, text=["W" * 40]), *SEND.boxes[1:]])
    assert faults(draw(wide)) == ["leaves its box: " + "W" * 40]
    crossing = replace(arrow, start="producer", end="read", label="")
    crossed = replace(SEND, arrows=[crossing, *SEND.arrows[1:]])
    assert faults(draw(crossed)) == ["an arrow crosses a box"]
    long = replace(arrow, label="SEND_MESSAGE_V2 " * 4)
    labelled = replace(SEND, arrows=[long, *SEND.arrows[1:]])
    assert faults(draw(labelled)) == [
        f"lies on a box or an arrow: {long.label}",
        f"lie on each other: {long.label}, reply",
    ]


# ---- light and dark, and the site ----------------------------------------------------------------


@each_picture
def test_colours_follow_the_reader_and_the_switch_of_the_site(picture: Picture) -> None:
    svg = draw(picture)
    used = set(re.findall(r"(?:fill|stroke):var\(--(\w+)\)", svg))
    assert used >= {"page", "band", "box", "edge", "ink", "soft", "line", "file"}
    rules = re.findall(r"([^{}]*)\{([^{}]*--page:[^{}]*)\}", svg)
    light, dark, site_light, site_dark = ({*re.findall(r"--(\w+):", rule)} for _, rule in rules)
    assert light == dark == site_light == site_dark == used
    assert "@media (prefers-color-scheme:dark)" in svg
    assert "[data-md-color-scheme=default] " in svg
    assert "[data-md-color-scheme=slate] " in svg
    # Every shape has a class, hence a colour from the variables.
    shapes = re.findall(r"<(?:rect|text|path)[^>]*>", svg)
    assert [shape for shape in shapes if 'class="' not in shape] == []
    assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours by WCAG 2."""

    def luminance(colour: str) -> float:
        shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        parts = [s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_texts_can_be_read_in_light_and_dark() -> None:
    rules = re.findall(r"\{([^{}]*--page:[^{}]*)\}", draw(SEND))
    for rule in rules[:2]:
        colours = dict(re.findall(r"--(\w+):(#\w+)", rule))
        for ink in ("ink", "soft", "file"):
            assert contrast(colours[ink], colours["box"]) >= 4.5, ink
        assert contrast(colours["soft"], colours["band"]) >= 4.5
        assert contrast(colours["line"], colours["band"]) >= 3


def test_pages_show_every_picture_with_its_alt_text() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    shown = re.findall(r"!\[([^\]]*)\]\((?:\.\./design/)?pictures/([\w-]+)\.svg\)", pages)
    assert {name: " ".join(alt.split()) for alt, name in shown} == {
        picture.name: picture.alt for picture in PICTURES
    }


@pytest.mark.parametrize("picture", OVERVIEWS, ids=lambda picture: picture.name)
def test_a_page_shows_the_overview(picture: Picture) -> None:
    link = re.compile(rf"!\[([^\]]*)\]\([./a-z]*pictures/{picture.name}\.svg\)")
    texts = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    alts = {" ".join(alt.split()) for text in texts for alt in link.findall(text)}
    assert alts == {picture.alt}


def test_images_of_pictures_become_svg_elements() -> None:
    html = '<p><img alt="a\nb" src="../pictures/send.svg" /> <img src="../other.svg"></p>'
    done = with_pictures(html)
    assert done.startswith("<p><svg ")
    assert done.endswith('</svg> <img src="../other.svg"></p>')
    assert done.count("<svg") == 1


def test_the_chart_becomes_an_svg_element() -> None:
    done = with_pictures('<p><img alt="a" src="../performance.svg" /></p>')
    assert done.startswith('<p><svg class="skylark-chart"')
    assert "<img" not in done
