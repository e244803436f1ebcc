"""Every "What to test" item of the specification is shown by a test, or deferred in writing.

``spec_items.toml`` lists the items. A test claims one with ``@pytest.mark.spec("broker.13.1")``.
Marks are read from the syntax trees of ``tests/`` and ``bench/``, so that those of the long suites
(interop, crash, benchmarks) count although ``make test`` does not run them. A mark counts where
pytest would use it: on a test function, a test class, or as the ``pytestmark`` of a file.
A test that is skipped or expected to fail outright shows nothing.
"""

from __future__ import annotations

import ast
import datetime
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ITEMS_FILE = Path(__file__).parent / "spec_items.toml"

# Issues that may take a deferral. The foundation is not among them: it is what exists.
ISSUES = frozenset({"store", "broker", "clients", "replication", "spark", "product", "later"})
NOT_SHOWN = frozenset({"skip", "xfail"})


@dataclass
class Marks:
    """Where each id is claimed, and what is wrong with the way it is."""

    places: dict[str, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def claim(self, spec_id: str, place: str) -> None:
        self.places.setdefault(spec_id, []).append(place)


def _mark_name(node: ast.expr) -> str:
    """``pytest.mark.spec("x")`` -> ``spec``; "" for anything else."""
    target = node.func if isinstance(node, ast.Call) else node
    text = ast.unparse(target)
    return text.removeprefix("pytest.mark.") if text.startswith("pytest.mark.") else ""


def _spec_ids(node: ast.expr, place: str, marks: Marks) -> Iterator[str]:
    if not isinstance(node, ast.Call) or not node.args or node.keywords:
        marks.faults.append(f"{place}: spec mark without an id")
        return
    for argument in node.args:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value
        else:
            marks.faults.append(f"{place}: spec id is not a plain string")


def _is_test(node: ast.stmt, path: str) -> bool:
    if path.startswith("bench/"):
        return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if isinstance(node, ast.ClassDef):
        return node.name.startswith("Test")
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def _claim_all(decorators: list[ast.expr], place: str, is_test: bool, marks: Marks) -> None:
    names = {_mark_name(decorator) for decorator in decorators}
    for decorator in decorators:
        if _mark_name(decorator) != "spec":
            continue
        if not is_test:
            marks.faults.append(f"{place}: spec mark on something that is not a test")
            continue
        for spec_id in _spec_ids(decorator, place, marks):
            if names & NOT_SHOWN:
                marks.faults.append(f"{place}: {spec_id} is marked on a test that does not run")
            else:
                marks.claim(spec_id, place)


def _pytestmark(statement: ast.stmt) -> list[ast.expr] | None:
    if isinstance(statement, ast.Assign):
        targets = [ast.unparse(target) for target in statement.targets]
    elif isinstance(statement, ast.AnnAssign):
        targets = [ast.unparse(statement.target)]
    else:
        return None
    if targets != ["pytestmark"] or statement.value is None:
        return None
    value = statement.value
    return value.elts if isinstance(value, ast.List | ast.Tuple) else [value]


def collect(path: str, source: str, marks: Marks) -> None:
    """Add the claims of one file; ``path`` is relative to the root."""

    def visit(body: list[ast.stmt], place: str) -> None:
        has_tests = any(_is_test(statement, path) for statement in body)
        for statement in body:
            where = f"{path}:{statement.lineno}"
            if (decorators := _pytestmark(statement)) is not None:
                _claim_all(decorators, where, has_tests, marks)
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                is_test = _is_test(statement, path)
                _claim_all(statement.decorator_list, f"{where} {statement.name}", is_test, marks)
                if isinstance(statement, ast.ClassDef):
                    visit(statement.body, where)

    visit(ast.parse(source).body, path)


def numbering_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """The ids are exactly chapter.section.1 to chapter.section.n, in this order."""
    expected = [
        f"{chapter}.{shape['section']}.{number}"
        for chapter, shape in document["chapters"].items()
        for number in range(1, shape["items"] + 1)
    ]
    listed = list(document["items"])
    yield from (f"{spec_id}: missing in the list" for spec_id in expected if spec_id not in listed)
    yield from (f"{spec_id}: no such item" for spec_id in listed if spec_id not in expected)
    if not set(expected) ^ set(listed) and listed != expected:
        yield "the items are not in order"


def _deferral_faults(spec_id: str, deferral: Mapping[str, Any]) -> Iterator[str]:
    if unknown := set(deferral) - {"reason", "date", "issue", "partial"}:
        yield f"{spec_id}: unknown keys in its deferral: {sorted(unknown)}"
    if len(str(deferral.get("reason", ""))) < 8:
        yield f"{spec_id}: deferred without a reason"
    if type(deferral.get("date")) is not datetime.date:
        yield f"{spec_id}: deferred without a date"
    if deferral.get("issue") not in ISSUES:
        yield f"{spec_id}: deferred to {deferral.get('issue')!r}, which is no issue"
    if deferral.get("partial", True) is not True:
        yield f"{spec_id}: partial is either true or absent"


def item_faults(document: Mapping[str, Any], claimed: set[str]) -> Iterator[str]:
    """Every item is claimed or deferred, both only if the deferral is partial."""
    for spec_id, item in document["items"].items():
        if unknown := set(item) - {"shows", "deferred"}:
            yield f"{spec_id}: unknown keys {sorted(unknown)}"
        if len(str(item.get("shows", ""))) < 8:
            yield f"{spec_id}: does not say what it shows"
        deferral = item.get("deferred")
        if deferral is None:
            if spec_id not in claimed:
                yield f"{spec_id}: no test shows it and it is not deferred: {item.get('shows')}"
            continue
        yield from _deferral_faults(spec_id, deferral)
        partial = deferral.get("partial", False)
        if partial and spec_id not in claimed:
            yield f"{spec_id}: deferred in part, but no test shows the other part"
        if not partial and spec_id in claimed:
            yield f"{spec_id}: shown by a test and deferred as a whole"
    for spec_id in sorted(claimed - set(document["items"])):
        yield f"{spec_id}: claimed by a test, but not in the list"


def load() -> dict[str, Any]:
    return tomllib.loads(ITEMS_FILE.read_text())


def collect_repository() -> Marks:
    marks = Marks()
    for folder in ("tests", "bench"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            collect(file.relative_to(ROOT).as_posix(), file.read_text(), marks)
    return marks


def test_marks_are_well_formed() -> None:
    marks = collect_repository()
    assert not marks.faults, "\n".join(marks.faults)


def test_numbering_is_complete() -> None:
    found = list(numbering_faults(load()))
    assert not found, "\n".join(found)


def test_every_item_is_shown_or_deferred() -> None:
    marks = collect_repository()
    found = list(item_faults(load(), set(marks.places)))
    assert not found, "\n".join(found)


# ---- the checks can fail ---------------------------------------------------------------------


def document(**items: dict[str, Any]) -> dict[str, Any]:
    """A list of two items of one chapter; ``one`` and ``two`` replace them."""
    base: dict[str, Any] = {"shows": "does what it says"}
    return {
        "chapters": {"x": {"section": 1, "items": 2}},
        "items": {
            "x.1.1": base | items.get("one", {}),
            "x.1.2": base | items.get("two", {}),
        },
    }


DEFERRED = {"reason": "needs the broker", "date": datetime.date(2026, 11, 15), "issue": "broker"}


def claims(source: str, path: str = "tests/test_a.py") -> Marks:
    marks = Marks()
    collect(path, source, marks)
    return marks


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.spec('x.1.1')\ndef test_a(): ...",
        "@pytest.mark.parametrize('a', [])\n@pytest.mark.spec('x.1.1')\nasync def test_a(): ...",
        "@pytest.mark.spec('x.1.1')\nclass TestA:\n  def test_b(self): ...",
        "class TestA:\n  @pytest.mark.spec('x.1.1')\n  def test_b(self): ...",
        "pytestmark = pytest.mark.spec('x.1.1')\ndef test_a(): ...",
        "pytestmark = [pytest.mark.crash, pytest.mark.spec('x.1.1')]\ndef test_a(): ...",
        "class TestA:\n  pytestmark = pytest.mark.spec('x.1.1')\n  def test_b(self): ...",
    ],
)
def test_marks_are_found(source: str) -> None:
    marks = claims(source)
    assert set(marks.places) == {"x.1.1"}
    assert not marks.faults


def test_marks_of_benchmarks_are_found() -> None:
    assert set(claims("@pytest.mark.spec('x.1.1')\ndef rate(): ...", "bench/a.py").places)


def test_several_ids_in_one_mark() -> None:
    marks = claims("@pytest.mark.spec('x.1.1', 'x.1.2')\ndef test_a(): ...")
    assert set(marks.places) == {"x.1.1", "x.1.2"}


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("@pytest.mark.spec\ndef test_a(): ...", "without an id"),
        ("@pytest.mark.spec()\ndef test_a(): ...", "without an id"),
        ("@pytest.mark.spec(id='x.1.1')\ndef test_a(): ...", "without an id"),
        ("@pytest.mark.spec(ID)\ndef test_a(): ...", "not a plain string"),
        ("@pytest.mark.spec('x.1.1')\ndef helper(): ...", "not a test"),
        ("pytestmark = pytest.mark.spec('x.1.1')\ndef helper(): ...", "not a test"),
        ("@pytest.mark.skip\n@pytest.mark.spec('x.1.1')\ndef test_a(): ...", "does not run"),
        ("@pytest.mark.spec('x.1.1')\n@pytest.mark.xfail(r)\ndef test_a(): ...", "does not run"),
    ],
)
def test_useless_marks_are_reported(source: str, fault: str) -> None:
    marks = claims(source)
    assert not marks.places
    assert len(marks.faults) == 1
    assert fault in marks.faults[0]


def test_a_sound_list_passes() -> None:
    sound = document(two={"deferred": DEFERRED})
    assert list(numbering_faults(sound)) == []
    assert list(item_faults(sound, {"x.1.1"})) == []


def test_a_partial_deferral_stands_beside_a_mark() -> None:
    partly = document(two={"deferred": DEFERRED | {"partial": True}})
    assert list(item_faults(partly, {"x.1.1", "x.1.2"})) == []
    assert list(item_faults(partly, {"x.1.1"})) == [
        "x.1.2: deferred in part, but no test shows the other part"
    ]


@pytest.mark.parametrize(
    ("two", "claimed", "fault"),
    [
        ({}, {"x.1.1"}, "x.1.2: no test shows it and it is not deferred: does what it says"),
        ({"deferred": DEFERRED}, {"x.1.1", "x.1.2"}, "x.1.2: shown by a test and deferred"),
        ({}, {"x.1.1", "x.1.2", "x.1.3"}, "x.1.3: claimed by a test, but not in the list"),
        ({"deferred": DEFERRED | {"issue": "foundation"}}, {"x.1.1"}, "deferred to 'foundation'"),
        ({"deferred": DEFERRED | {"issue": "nosuch"}}, {"x.1.1"}, "deferred to 'nosuch'"),
        ({"deferred": DEFERRED | {"reason": ""}}, {"x.1.1"}, "deferred without a reason"),
        ({"deferred": DEFERRED | {"date": "soon"}}, {"x.1.1"}, "deferred without a date"),
        ({"deferred": DEFERRED | {"partial": False}}, {"x.1.1"}, "partial is either true or"),
        ({"deferred": DEFERRED | {"until": 1}}, {"x.1.1"}, "unknown keys in its deferral"),
        ({"shows": ""}, {"x.1.1", "x.1.2"}, "does not say what it shows"),
        ({"show": "typing error"}, {"x.1.1", "x.1.2"}, "unknown keys ['show']"),
    ],
)
def test_item_faults_are_reported(two: dict[str, Any], claimed: set[str], fault: str) -> None:
    found = list(item_faults(document(two=two), claimed))
    assert len(found) == 1
    assert fault in found[0]


def test_numbering_faults_are_reported() -> None:
    short = document()
    del short["items"]["x.1.2"]
    assert list(numbering_faults(short)) == ["x.1.2: missing in the list"]
    long = document()
    long["items"]["x.1.3"] = {"shows": "one too many"}
    assert list(numbering_faults(long)) == ["x.1.3: no such item"]
    mixed = document()
    mixed["items"] = dict(reversed(mixed["items"].items()))
    assert list(numbering_faults(mixed)) == ["the items are not in order"]


def test_a_doubled_item_is_refused_by_the_reader() -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads('[items."x.1.1"]\nshows = "a"\n[items."x.1.1"]\nshows = "b"\n')
