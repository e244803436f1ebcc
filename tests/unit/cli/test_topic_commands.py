"""``skylark topic`` against a real cluster: tables, JSON, exit codes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.up import cluster
from tests.unit.cli.shell import NOWHERE, Shell


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """At a cluster of two brokers."""
    with cluster(tmp_path_factory.mktemp("topic"), "--brokers", "2") as namesrv:
        yield Shell(namesrv)


@pytest.fixture
def address(shell: Shell) -> str:
    """That of the first broker."""
    return str(shell.json("cluster", "list")[0]["address"])


def test_topics_are_created_and_listed(shell: Shell, address: str) -> None:
    on_a = ("--broker", "broker-a")
    assert shell.lines("topic", "create", "orders", "--queues", "4", *on_a) == [
        f"TOPIC   BROKER    ADDRESS{' ' * (len(address) - 7)}  CREATED  QUEUE COUNT",
        f"orders  broker-a  {address}  yes                4",
    ]
    again = shell.json("topic", "create", "orders", "--attribute", "message.type=FIFO", *on_a)
    assert again == [
        {
            "topic": "orders",
            "broker": "broker-a",
            "address": address,
            "created": False,
            "queue_count": 4,
        }
    ]
    assert shell.json("topic", "list") == [
        {"topic": "orders", "brokers": ["broker-a"], "queue_count": 4, "perm": "rw"}
    ]
    everything = shell.json("topic", "list", "--all")
    assert "TBW102" in {row["topic"] for row in everything}
    shell.run("topic", "delete", "orders", "--yes")


def test_a_topic_is_described_changed_and_deleted(shell: Shell) -> None:
    shell.run("topic", "create", "T", "--queues", "2", "--attribute", "message.type=NORMAL")
    shell.produce("T", "a", "b", "c", "--shard", "one-queue")
    found = shell.json("topic", "describe", "T")
    assert [part["attributes"] for part in found["parts"]] == [{"message.type": "NORMAL"}] * 2
    assert sorted(queue["messages"] for queue in found["queues"]) == [0, 0, 0, 3]
    assert (found["message_count"], found["groups"]) == (3, [])
    lines = shell.lines("topic", "describe", "T")
    assert lines[1].split() == [
        "broker-a", "DefaultCluster", "2", "2", "rw", "no", "message.type=NORMAL",
    ]  # fmt: skip
    assert lines[-2].split() == ["messages", "3"]
    routed = shell.json("topic", "route", "T")
    assert [(row["broker"], row["read_queues"], row["perm"]) for row in routed] == [
        ("broker-a", 2, "rw"),
        ("broker-b", 2, "rw"),
    ]
    assert all(row["addresses"][0].startswith("0=127.0.0.1:") for row in routed)
    shell.run("topic", "set", "T", "--perm", "r", "--read-queues", "3", "--broker", "broker-b")
    shell.run("topic", "set", "T", "--queues", "5", "--broker", "broker-a")
    changed = shell.json("topic", "describe", "T")["parts"]
    assert [(p["read_queue_count"], p["write_queue_count"], p["perm"]) for p in changed] == [
        (5, 5, "rw"),
        (3, 2, "r"),
    ]
    shell.run("topic", "set", "T", "--order", "--remove-attribute", "message.type")
    changed = shell.json("topic", "describe", "T")["parts"]
    assert [(p["order"], p["attributes"]) for p in changed] == [(True, {})] * 2
    kept = shell.run("topic", "delete", "T", code=1, answer="n\n")
    assert "Delete T with 3 messages permanently?" in kept.stderr
    gone = shell.run("--output", "json", "topic", "delete", "T", answer="y\n")
    assert [line.split() for line in gone.stdout.splitlines() if "broker" in line] == [
        ['"broker":', '"broker-a",'],
        ['"broker":', '"broker-b",'],
    ]
    assert shell.error("topic", "describe", "T", code=4).startswith("topic T does not exist")


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe", "nosuch"),
        ("route", "nosuch"),
        ("set", "nosuch", "--perm", "r"),
        ("delete", "nosuch", "--yes"),
        ("delete", "nosuch"),
    ],
    ids=" ".join,
)
def test_no_such_topic(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert shell.error("topic", *arguments, code=4).startswith("topic nosuch does not exist")


def test_mistakes_that_servers_find(shell: Shell) -> None:
    assert "illegal characters" in shell.error("topic", "create", "a b", code=2)
    assert "cluster Other does not exist" in shell.error(
        "topic", "create", "x", "--cluster", "Other", code=4
    )
    assert "broker nobody does not exist" in shell.error(
        "topic", "create", "x", "--broker", "nobody", code=4
    )


@pytest.mark.parametrize(
    "arguments", [("list",), ("create", "T"), ("describe", "T"), ("delete", "T", "--yes")]
)
def test_nobody_answers(arguments: tuple[str, ...]) -> None:
    error = Shell(NOWHERE).error("topic", *arguments, code=3)
    assert error.startswith("no name server responds: ")
    assert "give its address with -n HOST:PORT" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "-n", "nowhere:x"), "name server from argument"),
        (("create", "T", "--queues", "0"), "0 is not in the range"),
        (("create", "T", "--attribute", "x"), "'x' is not KEY=VALUE"),
        (("create", "T", "--attribute", "x=1,y=2"), "'x=1,y=2' is not KEY=VALUE"),
        (("set", "T"), "nothing to change"),
        (("set", "T", "--perm", "x"), "'x' is not one of 'r', 'w', 'rw'"),
        (("set", "T", "--queues", "2", "--read-queues", "3"), "--queues sets both"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str) -> None:
    result = Shell(NOWHERE).run("topic", *arguments, code=2)
    assert message in result.stderr
