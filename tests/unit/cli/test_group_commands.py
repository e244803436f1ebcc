"""``skylark group`` against a real cluster: progress, members, moves with a preview."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from skylark import ConsumeFromWhere, Message, MessageExt
from skylark.sync import PopConsumer, PushConsumer
from tests.unit.cli.shell import NOWHERE, Shell

T = "group-test"
U = "group-test-other"


@pytest.fixture(scope="module", autouse=True)
def _topics(shell: Shell) -> None:
    """Three messages in one queue of T, and two queues of U."""
    shell.create(T)
    shell.create(U, queue_count=2)
    with shell.producer() as producer:
        for body in (b"a", b"b", b"c"):
            producer.send(Message(T, body))


def offsets(shell: Shell, group: str) -> list[tuple[str, int, int]]:
    rows = shell.json("group", "describe", group)["progress"]["queues"]
    return [(row["topic"], row["consumer_offset"], row["lag"]) for row in rows if row["topic"] == T]


def test_a_group_that_reads_is_listed_and_described(shell: Shell) -> None:
    assert shell.consume(T, "g", "--count", "2") == ["a", "b"]
    found = next(row for row in shell.json("group", "list") if row["group"] == "g")
    assert found == {
        "group": "g", "brokers": ["broker-a"], "members": 0, "model": None, "lag": 1,
    }  # fmt: skip
    described = shell.json("group", "describe", "g")
    assert offsets(shell, "g") == [(T, 2, 1)]
    assert (described["lag"], described["members"]["members"]) == (1, [])
    assert described["configs"][0]["config"]["retry_max_times"] == 16
    lines = shell.lines("group", "describe", "g")
    assert lines[1].split()[:6] == [T, "broker-a", "0", "3", "2", "1"]
    assert ["may_consume", "yes"] in [line.split() for line in lines]


def test_members_and_what_they_subscribe_to(shell: Shell) -> None:
    consumer = PushConsumer("online", shell.options)

    @consumer.subscribe(U, tags="A || B")
    def take(message: MessageExt) -> None:
        del message

    with consumer:
        shell.until(lambda: {queue.topic for queue in consumer.assignment} >= {U}, "no queues")
        found = shell.json("group", "describe", "online", "--owners")
        (member,) = found["members"]["members"]
        assert member["client_id"] == consumer.client_id
        wanted = {"topic": U, "expression": "A || B", "expression_type": "TAG"}
        assert wanted in found["members"]["subscriptions"]
        row = next(row for row in shell.json("group", "list") if row["group"] == "online")
        assert (row["members"], row["model"]) == (1, "CLUSTERING")
        lines = shell.lines("group", "describe", "online", "--owners")
        assert any(line.split()[:1] == [consumer.client_id] for line in lines)
        kept = shell.run("group", "delete", "online", code=1, answer="n\n")
        assert "1 connected members would create the group again" in kept.stderr


def test_popped_messages_are_in_flight_and_invisible(shell: Shell) -> None:
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer = PopConsumer("poppers", shell.options, invisible=60, consume_from_where=first)
    with consumer.subscribe(T):
        messages = consumer.receive(2, wait=10)
        assert [message.body for message in messages] == [b"a", b"b"]
        consumer.ack(messages[0])

        def shown() -> tuple[int, int]:
            rows = shell.json("group", "describe", "poppers")["progress"]["queues"]
            (row,) = [row for row in rows if row["topic"] == T]
            return row["in_flight"], row["invisible"]

        assert shown() == (1, 1)
    assert shown() == (1, 1)  # also while no member is connected
    text = shell.run("group", "describe", "poppers").stdout
    assert "IN FLIGHT  INVISIBLE" in text


def test_the_mode_of_a_group(shell: Shell) -> None:
    expected = {"topic": T, "group": "g", "broker": "broker-a"}
    for mode in ("pop", "pull"):
        found = shell.json("group", "mode", T, "g", mode)
        assert found == [{**expected, "mode": mode}]
        assert shell.json("group", "mode", T, "g") == found  # without a mode it is shown
    assert shell.lines("group", "mode", T, "g")[0].split() == ["TOPIC", "GROUP", "BROKER", "MODE"]
    assert "does not exist" in shell.error("group", "mode", "nosuch", "g", code=4)
    assert (
        "needs a mode" in shell.run("group", "mode", T, "g", "--share-queues", "1", code=2).stderr
    )
    assert "push" in shell.run("group", "mode", T, "g", "push", code=2).stderr
    assert "does not exist" in shell.error("group", "mode", "nosuch", "g", "pop", code=4)


def test_a_reset_shows_first_where_it_would_go(shell: Shell) -> None:
    shell.consume(T, "mover")
    assert offsets(shell, "mover") == [(T, 3, 0)]
    reset = ("group", "reset-offset", "mover", T, "--to")
    (row,) = shell.json(*reset, "earliest", "--dry-run")
    assert (row["committed"], row["new_offset"], row["step"]) == (3, 0, -3)
    assert offsets(shell, "mover") == [(T, 3, 0)]
    refused = shell.run(*reset, "earliest", code=1, answer="n\n")
    assert "mover: 3 messages will be consumed again, 0 skipped. Continue?" in refused.stderr
    assert offsets(shell, "mover") == [(T, 3, 0)]
    (done,) = shell.json(*reset, "1", "--yes")
    assert (done["old_offset"], done["offset"]) == (3, 1)
    assert shell.consume(T, "mover") == ["b", "c"]
    lines = shell.lines(*reset, "2000-01-01", "--yes")
    assert [line.split()[:5] for line in lines if line.startswith(f"{T} ")] == [
        [T, "broker-a", "0", "3", "0"],
        [T, "broker-a", "0", "3", "0"],
    ]
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    (row,) = shell.json(*reset, later, "--dry-run")
    assert row["new_offset"] == 3
    (row,) = shell.json(*reset, "1d", "--queue", "0", "--broker", "broker-a", "--dry-run")
    assert row["new_offset"] == 0


def test_the_backlog_is_left_out(shell: Shell) -> None:
    assert shell.consume(T, "late", "--count", "1") == ["a"]
    assert shell.json("group", "skip", "late", T, "--dry-run")[0]["step"] == 2
    assert shell.json("group", "skip", "late", "--yes")[0]["offset"] == 3
    assert shell.consume(T, "late") == []


def test_a_group_is_deleted(shell: Shell) -> None:
    shell.consume(T, "gone")
    assert shell.json("group", "delete", "gone", "--yes") == [
        {"group": "gone", "broker": "broker-a", "deleted": True}
    ]
    assert shell.error("group", "describe", "gone", code=4).startswith("group gone does not exist")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("describe", "nosuch"), "group nosuch does not exist"),
        (("delete", "nosuch", "--yes"), "group nosuch does not exist"),
        (("skip", "nosuch", "--yes"), "group nosuch has no offsets"),
        (("reset-offset", "nosuch", T, "--to", "latest"), "group nosuch"),
        (("reset-offset", "g", "nosuch", "--to", "latest"), "topic nosuch does not exist"),
        (("reset-offset", "g", T, "--to", "0", "--queue", "7"), f"{T} has no such queue"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_what_does_not_exist(shell: Shell, arguments: tuple[str, ...], message: str) -> None:
    assert message in shell.error("group", *arguments, code=4)


def test_nobody_answers() -> None:
    for arguments in (("list",), ("describe", "g"), ("skip", "g"), ("delete", "g")):
        Shell(NOWHERE).error("group", *arguments, code=3)


@pytest.mark.parametrize("where", ["yesterday", "-1", "2026-13-01", "9" * 30])
def test_places_that_are_none(where: str) -> None:
    result = Shell(NOWHERE).run("group", "reset-offset", "g", T, f"--to={where}", code=2)
    assert f"{where!r} is not earliest, latest, a time such as" in result.stderr
