"""``skylark dlq`` against a real cluster: what is shown, and that nothing is sent twice."""

from __future__ import annotations

from typing import Any

from tests.unit.cli.shell import NOWHERE, Shell

T = "dlq-test"
GROUP = "dlq-test-group"


def listed(shell: Shell) -> dict[str, Any]:
    (row,) = (row for row in shell.json("dlq", "list") if row["group"] == GROUP)
    assert isinstance(row, dict)
    return row


def count(shell: Shell, topic: str) -> int:
    return int(shell.json("topic", "describe", topic)["message_count"])


def test_dead_letters_are_listed_shown_and_sent_again_once(shell: Shell) -> None:
    shell.create(T)
    one = shell.produce(T, "one", "--tag", "A", "--key", "k1")[0]["msg_id"]
    two = shell.produce(T, "two", "--tag", "B", "--key", "k2")[0]["msg_id"]
    shell.consume(T, GROUP)
    shell.until(lambda: len(shell.json("message", "query", T, "--key", "k2")) == 1, "no index")
    shell.bury(T, GROUP, one, two)
    assert (listed(shell)["letters"], listed(shell)["pending"]) == (2, 2)
    letters = shell.json("dlq", "show", GROUP)
    assert [(each["msg_id"], each["topic"], each["body"]) for each in letters] == [
        (one, T, "one"),
        (two, T, "two"),
    ]
    assert shell.lines("dlq", "show", GROUP, "--limit", "1")[1].split()[0] == one

    redrive = ("dlq", "redrive", GROUP)
    planned = shell.json(*redrive, "--dry-run")
    assert (planned["dry_run"], planned["counts"]["sent"]) == (True, 2)
    for chosen in (("--tag", "A"), ("--key", "k1"), ("--id", one), ("--until", "2100-01-01")):
        found = shell.json(*redrive, *chosen, "--dry-run")["counts"]
        assert found["sent"] == (2 if chosen[0] == "--until" else 1)
    assert shell.json(*redrive, "--since", "2100-01-01", "--dry-run")["counts"]["filtered"] == 2
    refused = shell.run(*redrive, code=1, answer="n\n")
    assert f"Read 2 dead letters of {GROUP} and send them again?" in refused.stderr
    assert count(shell, T) == 2

    done = shell.json(*redrive, "--tag", "A", "--yes")
    assert (done["counts"]["sent"], done["is_complete"]) == (1, True)
    assert count(shell, T) == 3
    lines = shell.lines(*redrive, "--yes", "--rate", "1000")
    assert lines[-4:] == ["sent         1", "sent before  1", "left out     0", "failed       0"]
    assert count(shell, T) == 4
    assert listed(shell)["pending"] == 0
    second = shell.run(*redrive)  # without a question: there is nothing to send
    assert (
        second.stderr == "nothing to send: all 2 were sent before (--restart checks them again)\n"
    )
    assert second.stdout.splitlines()[:2] == ["sent         0", "sent before  2"]
    assert shell.json(*redrive, "--yes")["counts"]["total"] == 0
    again = shell.json(*redrive, "--restart", "--yes")["counts"]
    assert (again["sent"], again["already"]) == (0, 2)
    assert sorted(shell.consume(T, GROUP)) == ["one", "two"]


def test_a_letter_whose_topic_is_gone_is_a_failure(shell: Shell) -> None:
    shell.run("topic", "create", "passing", "--queues", "1")
    msg_id = shell.produce("passing", "x", "--key", "k")[0]["msg_id"]
    shell.consume("passing", "dlq-test-failing")
    query = ("message", "query", "passing", "--key", "k")
    shell.until(lambda: len(shell.json(*query)) == 1, "no index")
    shell.bury("passing", "dlq-test-failing", msg_id)
    shell.run("topic", "delete", "passing", "--yes")
    report = shell.json("dlq", "redrive", "dlq-test-failing", "--yes", code=1)
    assert (report["counts"]["failed"], report["is_complete"]) == (1, False)
    assert "passing" in report["letters"][0]["problem"]


def test_what_does_not_exist(shell: Shell) -> None:
    for name in ("show", "redrive"):
        assert shell.error("dlq", name, "nosuch", code=4) == "group nosuch has no dead letters"


def test_mistakes() -> None:
    nowhere = Shell(NOWHERE)
    for arguments in (("list",), ("show", GROUP), ("redrive", GROUP, "--yes")):
        nowhere.error("dlq", *arguments, code=3)
    for option in (("--since", "soon"), ("--rate", "0"), ("--limit", "0"), ("--to", "moon")):
        assert option[0] in nowhere.run("dlq", "redrive", GROUP, *option, code=2).stderr
