"""``skylark apply`` against a real cluster: difference, undo file, mistakes with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.shell import NOWHERE, Shell

FILE = """\
topics:
  - name: apply-orders
    queues: 4
    attributes: {message.type: NORMAL}
  - name: apply-plain
groups:
  - name: apply-billing
    retry_max_times: 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(FILE)
    return path


def names(shell: Shell) -> list[str]:
    topics = [row["topic"] for row in shell.json("topic", "list")]
    groups = [row["group"] for row in shell.json("group", "list")]
    return sorted(name for name in (*topics, *groups) if name.startswith("apply-"))


def test_a_file_is_planned_applied_and_undone(shell: Shell, file: Path) -> None:
    planned = shell.json("apply", str(file), "--plan")
    assert [(row["action"], row["name"], row["field"], row["new"]) for row in planned] == [
        ("create", "apply-orders", "read_queues", 4),
        ("create", "apply-orders", "write_queues", 4),
        ("create", "apply-orders", "attributes.message.type", "NORMAL"),
        ("create", "apply-plain", None, None),
        ("create", "apply-billing", "retry_max_times", 5),
    ]
    assert names(shell) == []
    undo = file.with_name("site.undo.yaml")
    done = shell.run("apply", str(file))
    assert done.stderr.splitlines() == [f"undo file: {undo}", "3 of 3 changes applied"]
    assert names(shell) == ["apply-billing", "apply-orders", "apply-plain"]
    again = shell.run("apply", str(file))
    assert again.stderr == "nothing to change\n"

    file.write_text(FILE.replace("queues: 4", "queues: 6\n    perm: r").replace("5", "7"))
    changed = shell.json("apply", str(file))
    assert [(row["action"], row["field"], row["old"], row["new"]) for row in changed] == [
        ("change", "read_queues", 4, 6),
        ("change", "write_queues", 4, 6),
        ("change", "perm", "rw", "r"),
        ("change", "retry_max_times", 5, 7),
    ]
    second = file.with_name("site.undo-2.yaml")
    undone = shell.run("apply", str(second))
    assert f"undo file: {file.with_name('site.undo-3.yaml')}" in undone.stderr
    (part,) = shell.json("topic", "describe", "apply-orders")["parts"]
    assert (part["write_queue_count"], part["perm"]) == (4, "rw")

    kept = shell.run("apply", str(undo), code=1, answer="n\n")
    assert "Delete topic apply-plain, topic apply-orders, group apply-billing" in kept.stderr
    assert len(names(shell)) == 3
    chosen = file.with_name("redo.yaml")
    shell.run("apply", str(undo), "--yes", "--undo", str(chosen))
    assert names(shell) == []
    assert "# undo does not restore the messages of topic apply-orders." in chosen.read_text()
    shell.run("apply", str(chosen), "--yes")
    assert names(shell) == ["apply-billing", "apply-orders", "apply-plain"]
    (part,) = shell.json("topic", "describe", "apply-orders")["parts"]
    assert part["attributes"] == {"message.type": "NORMAL"}
    shell.run("apply", str(undo), "--yes")


def test_what_a_broker_refuses_ends_it_and_is_counted(shell: Shell, file: Path) -> None:
    file.write_text(
        "topics:\n- name: apply-first\n- name: apply-bad\n  attributes: {nosuch.attribute: x}\n"
    )
    failed = shell.run("apply", str(file), code=1)
    assert "1 of 2 changes applied" in failed.stderr
    assert names(shell) == ["apply-first"]
    shell.run("apply", str(file.with_name("site.undo.yaml")), "--yes")
    assert names(shell) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "topics:\n- name: T\n  queus: 4\n",
            "line 3, column 3: unknown key queus: did you mean queues?",
        ),
        ("topics:\n- queues: 4\n", "line 2, column 3: object missing required field name"),
        ("topics:\n- name: a b\n", "contains illegal characters"),
        ("groups:\n- name: g\n- name: g\n", "group g is described twice"),
        ("topics:\n- {name: T, absent: true, queues: 4}\n", "topic T is absent"),
        ("topics:\n- {name: T, queues: 4, read_queues: 2}\n", "topic T: queues sets both"),
        (
            "groups:\n- name: g\n  retry_max_times: many\n",
            "line 3, column 3: expected int | null, got str",
        ),
    ],
)
def test_a_bad_file(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    error = Shell(NOWHERE).error("apply", str(file), code=2)
    assert error.startswith(str(file))
    assert message in error


def test_other_mistakes(shell: Shell, file: Path) -> None:
    assert "does not exist" in shell.run("apply", "nosuch.yaml", code=2).stderr
    Shell(NOWHERE).error("apply", str(file), code=3)
    file.write_text("topics:\n- {name: T, broker: nobody}\n")
    assert "broker nobody does not exist" in shell.error("apply", str(file), code=4)
    file.write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in shell.error("apply", str(file), code=2)
