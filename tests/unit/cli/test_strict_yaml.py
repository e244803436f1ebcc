"""Strict YAML: every mistake has its line, and good files become typed objects."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.cli.strict_yaml import SIZE_MAX, YamlMistake, read_yaml


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
        ("", "f.yaml: the file is empty"),
        ("# nothing\n", "f.yaml: the file is empty"),
        ("[]", "f.yaml, line 1: expected object, got array"),
        ("topics:\n- nme: a\n", "f.yaml, line 2: unknown key 'nme': did you mean name?"),
        (
            "topics:\n- name: a\n  zzz: 1\n",
            "f.yaml, line 3: unknown key 'zzz': known are name, perm, attributes",
        ),
        ("topic: []\n", "f.yaml, line 1: unknown key 'topic': did you mean topics?"),
        ("topics:\n- name: a\n- perm: r\n", "f.yaml, line 3: object missing required field name"),
        ("topics:\n- name: a\n  perm: x\n", "f.yaml, line 3: invalid enum value 'x'"),
        ("count: 3\ntopics: 5\n", "f.yaml, line 2: expected array, got int"),
        ("topics:\n- name: 5\n", "f.yaml, line 2: expected str, got int"),
        ("count: yes\n", "f.yaml, line 1: expected int | null, got bool"),
        (
            "topics:\n- name: a\n  attributes:\n    k:\n    - 1\n",
            "f.yaml, line 3: expected str | null, got array",
        ),
        ("count: 1\ncount: 2\n", "f.yaml, line 2: key 'count' is given twice"),
        ("count: 1\n\ttopics: []\n", "f.yaml, line 2: found character '\\t'"),
        ("count: [1\n", "f.yaml, line 2: expected ',' or ']'"),
        ("count: !!python/name:os.system x\n", "f.yaml, line 1: 'x' is no value"),
        ("? [a]\n: 1\n", "f.yaml, line 1: a key must be text"),
        ("topics: &x []\ncount: *x\n", "f.yaml, line 2: aliases (*name) are not read here"),
        ("count: 1\n---\ncount: 2\n", "f.yaml, line 2: but found another document"),
        ("a: \x00", "f.yaml: this is no YAML text"),
        ("#" * (SIZE_MAX + 1), f"f.yaml: more than {SIZE_MAX} characters"),
        ("[" * 40 + "]" * 40, "f.yaml, line 1: nested deeper than 32"),
        ("[" * 50_000, "f.yaml, line 1: nested deeper than 32"),
        ("count: 2026-99-99\n", "f.yaml, line 1: '2026-99-99' is no value"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(YamlMistake) as caught:
        read(text)
    assert str(caught.value).startswith(message)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="topicsname:-[]{} \n&*!|'\"#1", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert isinstance(read(text), Outer)
    except YamlMistake as error:
        refused = str(error)
        assert refused.startswith("f.yaml")
