"""The pretty form of configuration files; whole files of Java's are in ``tests/golden``."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skylark.core.errors import LocalProtocolError
from skylark.store.pretty_json import pretty
from skylark.wire.bodies.common_body import Body
from skylark.wire.fastjson_reader import parse


class Part(Body, kw_only=True):
    zone: str | None = None
    any_flag: bool = True
    items: list[Any] = msgspec.field(default_factory=list)
    by_queue: dict[int, int] = msgspec.field(default_factory=dict)


def test_members_are_sorted_and_nulls_left_out() -> None:
    text = '{\n\t"anyFlag":true,\n\t"byQueue":{},\n\t"items":[]\n}'
    assert pretty(Part()) == text
    assert pretty(Part(zone="z")) == text.replace("[]", '[],\n\t"zone":"z"')


def test_integer_keys_are_bare_and_on_lines_of_their_own() -> None:
    assert pretty({"t": {10: 1, -1: 2}}) == '{\n\t"t":{\n\t\t10:1,\n\t\t-1:2\n\t}\n}'


def test_dictionaries_keep_their_order() -> None:
    assert list(parse(pretty({"b": 1, "a": 2, "": None}))) == ["b", "a"]


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], "[]"),
        ([1, -2], "[1,-2]"),
        (["a", "b"], '[\n\t"a",\n\t"b"\n]'),
        ([[1], []], "[\n\t[1],\n\t[]\n]"),
        ([{}, {"a": 1}], '[\n\t{},\n\t{\n\t\t"a":1\n\t}\n]'),
    ],
)
def test_lists(items: list[Any], text: str) -> None:
    assert pretty(items) == text


def test_scalars() -> None:
    assert pretty({"a": True, "b": 1.0, "c": "\t\u4e2d\x7f", "d": False}) == (
        '{\n\t"a":true,\n\t"b":1.0,\n\t"c":"\\t\u4e2d\x7f",\n\t"d":false\n}'
    )


def test_what_has_no_form_is_our_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="bytes has no JSON form"):
        pretty({"a": b"x"})
