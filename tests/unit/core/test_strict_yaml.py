"""The strict YAML reader: every mistake has its line and column, good files become objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.strict_yaml import (
    SIZE_MAX,
    Mistake,
    YamlError,
    compose,
    elements,
    entries,
    mistake_at,
    read_yaml,
    scalar_text,
    write_yaml,
)

if TYPE_CHECKING:
    from skylark.core.strict_yaml import Node


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    perm: Literal["r", "rw"] = "rw"
    attributes: dict[str, str | None] = {}


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topics: tuple[Inner, ...] = ()
    count: int | None = None


def read(text: str) -> Outer:
    return read_yaml(text, Outer, file="f.yaml")


def test_a_good_file() -> None:
    text = "count: 3\ntopics:\n  - name: a\n    attributes: {x.y: z, gone: null}\n  - {name: '1'}\n"
    assert read(text) == Outer(
        topics=(Inner(name="a", attributes={"x.y": "z", "gone": None}), Inner(name="1")), count=3
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1, column 1: the file is empty"),
        ("# nothing\n", "1, column 1: the file is empty"),
        ("[]", "1, column 1: expected object, got array"),
        ("topics:\n- nme: a\n", "2, column 3: unknown key nme: did you mean name?"),
        (
            "topics:\n- name: a\n  zzz: 1\n",
            "3, column 3: unknown key zzz: known are name, perm, attributes",
        ),
        ("topic: []\n", "1, column 1: unknown key topic: did you mean topics?"),
        ("topics:\n- name: a\n- perm: r\n", "3, column 3: object missing required field name"),
        ("topics:\n- name: a\n  perm: x\n", "3, column 3: invalid enum value 'x'"),
        ("count: 3\ntopics: 5\n", "2, column 1: expected array, got int"),
        ("topics:\n- name: 5\n", "2, column 3: expected str, got int"),
        ("count: yes\n", "1, column 1: expected int | null, got bool"),
        (
            "topics:\n- name: a\n  attributes:\n    k:\n    - 1\n",
            "3, column 3: expected str | null, got array",
        ),
        ("count: 1\ncount: 2\n", "2, column 1: the key count is given twice"),
        ("count: 1\n\ttopics: []\n", "2, column 1: not valid YAML: found character '\\t'"),
        ("count: [1\n", "2, column 1: not valid YAML: expected ',' or ']'"),
        ("count: !!python/name:os.system x\n", "1, column 8: 'x' is not a valid value"),
        ("? [a]\n: 1\n", "1, column 3: a key must be a text"),
        ("topics: &x []\ncount: *x\n", "2, column 8: aliases (*name) are not supported here"),
        ("count: 1\n---\ncount: 2\n", "2, column 1: not valid YAML: but found another document"),
        ("a: \x00", "1, column 1: not valid YAML: unacceptable character #x0000"),
        ("#" * (SIZE_MAX + 1), f"1, column 1: the file has more than {SIZE_MAX} characters"),
        ("[" * 40 + "]" * 40, "1, column 32: nested deeper than 32"),
        ("[" * 50_000, "1, column 32: nested deeper than 32"),
        ("count: 2026-99-99\n", "1, column 8: '2026-99-99' is not a valid value"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(YamlError) as caught:
        read(text)
    assert str(caught.value).startswith(f"f.yaml, line {message}")
    mistake = caught.value.mistake
    assert mistake is not None
    assert message.startswith(f"{mistake.line}, column {mistake.column}: ")


def test_an_error_about_the_whole_file_has_no_position() -> None:
    error = YamlError("f.yaml", "not UTF-8 text")
    assert str(error) == "f.yaml: not UTF-8 text"
    assert error.mistake is None


# ---- nodes ---------------------------------------------------------------------------------------


def root(text: str, *, aliases: bool = False) -> Node:
    found = compose(text, aliases=aliases)
    assert not isinstance(found, Mistake)
    return found


def test_entries_skips_and_reports_bad_keys() -> None:
    reported: list[Mistake] = []
    text = "a: 1\n? [b]\n: 2\na: 3\nc: 4\n"
    found = entries(root(text), lambda node, text: reported.append(mistake_at(node, text)))
    assert found is not None
    assert [(key, scalar_text(value)) for _, key, value in found] == [("a", "1"), ("c", "4")]
    assert [str(each) for each in reported] == [
        "line 2, column 3: a key must be a text",
        "line 4, column 1: the key a is given twice",
    ]


@pytest.mark.parametrize(
    ("text", "kind", "written"),
    [
        ("a: 1", "mapping", None),
        ("[1, 08]", "list", None),
        ("08", "scalar", "08"),
        ("'~'", "scalar", "~"),
        ("~", "scalar", None),
        ("yes", "scalar", "yes"),
    ],
)
def test_the_kinds_of_nodes(text: str, kind: str, written: str | None) -> None:
    node = root(text)
    assert (entries(node, lambda _node, _text: None) is not None) == (kind == "mapping")
    assert (elements(node) is not None) == (kind == "list")
    assert scalar_text(node) == written


def test_aliases_are_composed_where_the_caller_accepts_them() -> None:
    items = elements(root("[&x a, *x]", aliases=True))
    assert items is not None
    assert [scalar_text(item) for item in items] == ["a", "a"]


def test_written_values_are_read_again() -> None:
    text = write_yaml({"topics": [{"name": "ä: b"}], "count": 3})
    assert text.startswith("topics:")  # in their order, not sorted
    assert read(text) == Outer(topics=(Inner(name="ä: b"),), count=3)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="topicsname:-[]{} \n&*!|'\"#1", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert isinstance(read(text), Outer)
    except YamlError as error:
        refused = str(error)
        assert refused.startswith("f.yaml")
