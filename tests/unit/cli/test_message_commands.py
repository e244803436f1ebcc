"""``skylark message`` against a real cluster: finding messages, and the account of one."""

from __future__ import annotations

from typing import Any

import pytest

from skylark import ClientOptions, ConsumeFromWhere, Message
from skylark.sync import PopConsumer, Producer
from tests.unit.cli.shell import NOWHERE, Shell

T = "message-test"
U = "message-test-other"


@pytest.fixture(scope="module")
def sent(shell: Shell) -> dict[str, Any]:
    """A message with all there can be, and one more."""
    shell.create(T)
    (first,) = shell.produce(T, "grüße", "--tag", "A", "--key", "k1", "--property", "p=q")
    shell.produce(T, "other", "--tag", "B", "--key", "k2")
    indexed = ("message", "get", "--key", "k2", "--topic", T)
    shell.until(lambda: Indexed(shell).has(*indexed), "not indexed")
    return first


class Indexed:
    """The index is a little behind."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def has(self, *arguments: str) -> bool:
        try:
            self._shell.run(*arguments)
        except AssertionError:
            return False
        return True


def test_a_message_by_each_of_its_names(shell: Shell, sent: dict[str, Any]) -> None:
    (found,) = shell.json("message", "get", sent["msg_id"], "--topic", T)
    assert (found["body"], found["tag"], found["keys"]) == ("grüße", "A", ["k1"])
    assert (found["queue_offset"], found["properties"]["p"]) == (0, "q")
    for arguments in (
        (sent["msg_id"],),
        (found["offset_msg_id"],),
        ("--key", "k1", "--topic", T),
    ):
        assert shell.json("message", "get", *arguments) == [found]
    lines = [line.split() for line in shell.lines("message", "get", sent["msg_id"])]
    assert ["body", "grüße"] in lines
    assert ["property", "p", "q"] in lines


def test_messages_of_a_time(shell: Shell, sent: dict[str, Any]) -> None:
    rows = shell.json("message", "query", T, "--from", "1h")
    assert [row["body"] for row in rows] == ["grüße", "other"]
    assert rows[0]["msg_id"] == sent["msg_id"]
    assert shell.json("message", "query", T, "--to", "2000-01-01") == []
    tagged = shell.json("message", "query", T, "--tags", "B", "--queue", "0")
    assert [row["body"] for row in tagged] == ["other"]
    by_key = shell.json("message", "query", T, "--key", "k1", "--from", "1h", "--to", "2100-01-01")
    assert [row["body"] for row in by_key] == ["grüße"]
    cut = shell.run("message", "query", T, "--limit", "1")
    assert len(cut.stdout.splitlines()) == 2
    assert cut.stderr == "there may be more than 1: raise --limit\n"


def test_a_trace_is_shown(shell: Shell) -> None:
    shell.create(U)
    options = ClientOptions(namesrv=shell.namesrv, trace=True)
    with Producer("traced", options) as producer:
        msg_id = producer.send(Message(U, b"seen")).msg_id
    get = ("message", "get", msg_id, "--trace")
    shell.until(lambda: Indexed(shell).has(*get), "no trace")
    (found,) = shell.json(*get)
    assert [send["group"] for send in found["trace"]["sends"]] == ["traced"]
    assert any(line.split()[:1] == ["sent"] for line in shell.lines(*get))


def test_the_account_of_a_message(shell: Shell) -> None:
    topic = "message-test-explained"
    shell.create(topic)
    (sent,) = shell.produce(topic, "explained")
    explain = ("message", "explain", sent["msg_id"])
    (account,) = shell.json(*explain)
    assert (account["group"], account["consumed"]) == (None, False)
    assert account["checks"][-1]["check"] == "group"
    shell.consume(topic, "explained")
    (account,) = shell.json(*explain)
    assert (account["group"], account["consumed"]) == ("explained", None)
    assert account["verdict"].startswith("passed: the offset is past it")
    assert [check["check"] for check in account["checks"]] == [
        "message", "route", "queue", "group", "members", "subscription", "conflict", "filter",
        "owner", "lock", "offset", "pop", "retry", "dlq", "trace",
    ]  # fmt: skip
    lines = shell.lines(*explain, "--group", "nosuch")
    assert lines[-1].startswith(f"no      consumed  {sent['msg_id']} by nosuch: not consumed: ")
    fix = next(line.strip() for line in lines if "->" in line)
    assert fix == "-> start a consumer, or check the name: `skylark group list` lists all"
    both = shell.lines(*explain)
    assert both[-1].startswith("?  ")


def test_the_account_of_popped_messages(shell: Shell) -> None:
    """The cluster merges check-points in memory, as ``skylark up`` does by default."""
    topic, group = "message-test-popped", "explained-pop"
    shell.create(topic)
    ids = [shell.produce(topic, f"job {number}")[0]["msg_id"] for number in range(3)]
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    workers = PopConsumer(group, shell.options, invisible=60, consume_from_where=first)

    def account(message_id: str) -> tuple[dict[str, str], Any, str]:
        (found,) = shell.json("message", "explain", message_id, "--group", group)
        findings = {check["check"]: check["finding"] for check in found["checks"]}
        return findings, found["consumed"], found["verdict"]

    with workers.subscribe(topic) as consumer:
        messages = consumer.receive(2, wait=10)
        assert len(messages) == 2
        messages[1].ack()
        findings, consumed, verdict = account(ids[0])
        assert findings["pop"].startswith("popped at 20")
        assert findings["pop"].endswith(", attempt 1")
        assert "invisible until 20" in findings["pop"]
        assert findings["offset"].startswith("popped up to offset 2, which is past offset 0")
        assert (consumed, verdict) == (False, f"not consumed: {findings['pop']}")
        findings, consumed, verdict = account(ids[1])
        assert findings["pop"] == "it was popped and acknowledged, attempt 1"
        assert (consumed, verdict) == (True, f"consumed: {findings['pop']}")
        assert account(ids[2])[0]["pop"] == "no client has popped it"
    findings, consumed, verdict = account(ids[0])  # nobody is connected; it is still invisible
    assert findings["pop"].startswith("popped at 20")
    assert (consumed, verdict) == (False, f"not consumed: {findings['pop']}")


def test_the_account_of_a_group(shell: Shell, sent: dict[str, Any]) -> None:
    del sent
    shell.consume(T, "explained-slow", "--count", "1")
    (account,) = shell.json("message", "explain", "--group", "explained-slow")
    assert (account["message_id"], account["consumed"]) == (None, False)
    assert "no member of explained-slow is connected; lag: 1 message" in account["verdict"]
    assert shell.lines("message", "explain", "--group", "explained-slow", "--topic", T)[
        -1
    ].startswith("no       consumed      explained-slow: problems: ")


def test_what_does_not_exist(shell: Shell, sent: dict[str, Any]) -> None:
    del sent
    unknown = "7F0000010000FFFF0000000000000000"
    assert f"no message {unknown}" in shell.error("message", "get", unknown, code=4)
    assert "no message" in shell.error("message", "explain", unknown, "--topic", T, code=4)
    assert "no key" not in shell.error("message", "get", "garbage", code=4)
    error = shell.error("message", "get", "--key", "nosuch", "--topic", T, code=4)
    assert error == f"no message with key nosuch in topic {T}"
    assert "topic nosuch does not exist" in shell.error("message", "query", "nosuch", code=4)
    assert "group nosuch does not exist" in shell.error(
        "message", "explain", "--group", "nosuch", code=4
    )


def test_nobody_answers() -> None:
    for arguments in (
        ("get", "X"),
        ("query", T),
        ("explain", "X"),
        ("explain", "--group", "explained"),
    ):
        Shell(NOWHERE).error("message", *arguments, code=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("get",), "give the ID of a message, or --key"),
        (("get", "X", "--key", "k"), "give the ID of a message, or --key"),
        (("get", "--key", "k"), "--key needs --topic"),
        (("query", T, "--from", "soon"), "'soon' is neither a time such as 2026-11-01T08:00"),
        (("query", T, "--key", "k", "--queue", "1"), "--key uses the index"),
        (("explain",), "give the ID of a message, or --group, or both"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str) -> None:
    assert message in Shell(NOWHERE).run("message", *arguments, code=2).stderr
