"""Properties text: what is written is read back, and no text does anything but parse or refuse."""

from __future__ import annotations

import io
from typing import Annotated

from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.config import Config, Setting, format_properties, load, parse_properties
from skylark.core.errors import ConfigError

# Plenty of the characters that mean something in the format.
texts = st.text(st.one_of(st.sampled_from("=:#! \t\f\n\r\\u0aé😀"), st.characters(codec="utf-8")))


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(texts, texts))
def test_round_trip(properties: dict[str, str]) -> None:
    written = format_properties(properties)
    assert written.isascii()
    assert parse_properties(written) == properties
    assert parse_properties(written.encode("ascii")) == properties


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(texts, texts, max_size=4), st.sampled_from(["\n", "\r", "\r\n"]))
def test_line_ends_and_comments_do_not_matter(properties: dict[str, str], line_end: str) -> None:
    lines = format_properties(properties).splitlines()
    noisy = io.StringIO()
    for line in lines:
        noisy.write(f"  ! a=b \\{line_end}{line_end} \t{line}{line_end}#{line_end}")
    assert parse_properties(noisy.getvalue()) == properties


@settings(max_examples=300, deadline=None)
@given(st.one_of(texts, st.binary(max_size=200)))
def test_any_text_parses_or_raises_config_error(text: str | bytes) -> None:
    try:
        properties = parse_properties(text)
    except ConfigError:
        return
    for key, value in properties.items():
        (key + value).encode()  # no half surrogates left over


class Named(Config, frozen=True, kw_only=True):
    name: Annotated[str, Setting("A name.")] = ""
    count: Annotated[int, Setting("A count.")] = 0


@settings(max_examples=200, deadline=None)
@given(st.text(), st.integers(-(1 << 63), (1 << 63) - 1))
def test_values_survive_loading(name: str, count: int) -> None:
    text = format_properties({"name": name, "count": str(count)})
    assert load(Named, text) == Named(name=name.strip(), count=count)
