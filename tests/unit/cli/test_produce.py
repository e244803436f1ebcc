"""``skylark produce`` against a real cluster: what is stored, what is printed, how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from skylark.cli.command_helpers import duration_s
from skylark.cli.exit_codes import UnreachableError, translated_errors
from skylark.cli.produce import LINE_SIZE_MAX, _chunk_size
from skylark.core.errors import BrokerError, ConnectError, SendFailedError
from tests.unit.cli.ups import TIMEOUT_S, Up, command, environment, run, up


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("produce")


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[Up]:
    with up(home, "--ephemeral", "--set", "autoCreateTopicEnable=false") as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest, home: Path, cluster: Up) -> str:
    """A topic of the test's own, with two queues."""
    name = request.node.name.partition("[")[0]
    made = run(home, "topic", "create", name, "--queues", "2", "-n", cluster.namesrv)
    assert made.returncode == 0, made.stderr
    return str(name)


class Shell:
    """Runs produce and consume at one cluster."""

    def __init__(self, home: Path, cluster: Up) -> None:
        self.home = home
        self.at = ("-n", cluster.namesrv)

    def produce(
        self, *arguments: str, data: bytes = b"", as_json: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        form = ("--output", "json") if as_json else ()
        return subprocess.run(
            command(*form, "produce", *arguments, *self.at),
            env=environment(self.home),
            input=data,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def stored(self, topic: str, *arguments: str) -> list[dict[str, Any]]:
        """Everything in the topic."""
        done = run(
            self.home, "--output", "json", "consume", topic, "--no-follow", *arguments, *self.at
        )
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def shell(home: Path, cluster: Up) -> Shell:
    return Shell(home, cluster)


def test_messages_from_the_command_line(shell: Shell, topic: str) -> None:
    done = shell.produce(
        topic, "grüße", "two", "--tag", "new", "--key", "k1", "--key", "k2", "--property", "a=b=c"
    )
    assert (done.returncode, done.stderr) == (0, b"")
    heading, *lines = done.stdout.decode().splitlines()
    assert heading == f"{'MSG ID':<32}  BROKER    QUEUE    OFFSET  STATUS"
    stored = shell.stored(topic)
    assert [message["body"] for message in stored] == ["grüße", "two"]
    for line, message in zip(lines, stored, strict=True):
        place = [message["msg_id"], "broker-a", str(message["queue"]), str(message["offset"])]
        assert line.split() == [*place, "SEND_OK"]
        assert (message["tag"], message["keys"]) == ("new", ["k1", "k2"])
        assert message["properties"]["a"] == "b=c"


def test_a_body_that_is_no_text(shell: Shell, topic: str) -> None:
    done = shell.produce(topic, os.fsdecode(b"\xff\xfe"))
    assert done.returncode == 0
    (message,) = shell.stored(topic)
    assert (message["body_base64"], "body" in message) == ("//4=", False)


def test_a_shard_is_one_queue_in_order(shell: Shell, topic: str) -> None:
    done = shell.produce(topic, "a", "b", "--shard", "order-1", "--count", "3", as_json=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({result["queue"] for result in results}) == 1
    assert [result["offset"] for result in results] == list(range(6))
    assert set(results[0]) == {"msg_id", "broker", "queue", "offset", "status"}
    assert [message["body"] for message in shell.stored(topic)] == ["a", "a", "a", "b", "b", "b"]


@pytest.mark.parametrize("arguments", [(), ("-",)], ids=["none", "dash"])
def test_lines_of_the_input(shell: Shell, topic: str, arguments: tuple[str, ...]) -> None:
    lines = [b"%d" % number for number in range(2_500)]
    data = b"first\n\n" + b"\n".join(lines)  # an empty line, and no end at the last one
    before = len(shell.stored(topic))
    done = shell.produce(topic, *arguments, data=data, as_json=True)
    assert done.returncode == 0
    assert done.stderr == b"skipped 1 empty line, line 2: a message needs a body\n"
    results = [json.loads(line) for line in done.stdout.splitlines()]
    stored = {message["msg_id"]: message["body"] for message in shell.stored(topic)}
    assert len(stored) - before == len(results) == 2_501
    sent = ["first", *(line.decode() for line in lines)]
    assert [stored[result["msg_id"]] for result in results] == sent


def test_a_regular_file_as_input(shell: Shell, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")
    with path.open("rb") as file:
        done = subprocess.run(
            command("produce", topic, *shell.at),
            env=environment(shell.home),
            stdin=file,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3)


@pytest.mark.parametrize(
    ("batch_size", "rate", "size"),
    [(None, None, 1000), (300, None, 900), (None, 5.0, 1), (None, 200.0, 20), (50, 200.0, 50)],
)
def test_messages_under_way_together(batch_size: int | None, rate: float | None, size: int) -> None:
    assert _chunk_size(batch_size, rate) == size


def test_each_line_is_sent_when_it_comes(shell: Shell, topic: str) -> None:
    with subprocess.Popen(
        command("--output", "json", "produce", topic, *shell.at),
        env=environment(shell.home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        deadline = threading.Timer(TIMEOUT_S, process.kill)  # then reads end, and the test fails
        deadline.start()
        assert process.stdin is not None
        assert process.stdout is not None
        for body in ("one", "two"):
            process.stdin.write(f"{body}\n".encode())
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["status"] == "SEND_OK"
        assert [message["body"] for message in shell.stored(topic)] == ["one", "two"]
        process.send_signal(signal.SIGINT)  # while it waits for the next line
        assert process.wait(TIMEOUT_S) == 130
        deadline.cancel()
        deadline.join()
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_empty_lines_are_said_when_the_input_is_interrupted(shell: Shell, topic: str) -> None:
    with subprocess.Popen(
        command("--output", "json", "produce", topic, *shell.at),
        env=environment(shell.home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        deadline = threading.Timer(TIMEOUT_S, process.kill)
        deadline.start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n\n\ntwo\n")
        process.stdin.flush()
        for _ in range(2):
            assert json.loads(process.stdout.readline())["status"] == "SEND_OK"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        deadline.cancel()
        deadline.join()
    assert process.returncode == 130
    assert errors.decode().splitlines()[0] == (
        "skipped 2 empty lines, the first is line 2: a message needs a body"
    )


def test_empty_lines_are_said_when_a_later_line_fails(shell: Shell, topic: str) -> None:
    lines = ['{"body": "a"}', "", '{"body": "b"}', "", "x"]
    done = shell.produce(topic, "--jsonl", data="\n".join(lines).encode())
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "skipped 2 empty lines, the first is line 2: a message needs a body",
        "Error: input line 5: Expecting value: line 1 column 1 (char 0)",
    ]


def test_a_queue_of_several_brokers(tmp_path: Path) -> None:
    """Each broker has a queue of the number: one of them must be named."""
    with up(tmp_path, "--ephemeral", "--brokers", "2", "--topic", "T:2") as two_brokers:
        shell = Shell(tmp_path, two_brokers)
        refused = shell.produce("T", "x", "--queue", "1")
        assert (refused.returncode, refused.stdout) == (2, b"")
        assert b"several brokers have it: broker-a:1, broker-b:1" in refused.stderr
        missing = shell.produce("T", "x", "--queue", "broker-c:1")
        assert missing.returncode == 2
        assert b"T has no such queue: broker-a:0 to broker-b:1" in missing.stderr
        done = shell.produce("T", "x", "y", "--queue", "broker-b:1", as_json=True)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(each["broker"], each["queue"]) for each in results] == [("broker-b", 1)] * 2
        assert shell.stored("T", "--queue", "broker-a:1") == []
        assert len(shell.stored("T", "--queue", "broker-b:1")) == 2
    help_text = " ".join(run(tmp_path, "produce", "--help").stdout.split())
    assert "with several brokers give BROKER:ID" in help_text


def test_json_lines(shell: Shell, topic: str) -> None:
    lines = [
        {"body": "one", "tag": "own", "keys": ["k"], "properties": {"p": "line", "q": "1"}},
        {"body_base64": "AP8=", "keys": "k1 k2"},
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    done = shell.produce(topic, "--jsonl", "--tag", "all", "--property", "p=all", data=data)
    assert (done.returncode, done.stderr) == (0, b"")
    by_tag = {message["tag"]: message for message in shell.stored(topic)}
    one, two = by_tag["own"], by_tag["all"]
    assert (one["body"], one["keys"]) == ("one", ["k"])
    assert (one["properties"]["p"], one["properties"]["q"]) == ("line", "1")
    assert (two["body_base64"], two["keys"], two["properties"]["p"]) == (
        "AP8=",
        ["k1", "k2"],
        "all",
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x", "input line 2: Expecting value"),
        ("[1]", "input line 2: Expected `object`, got `array`"),
        ('{"body": 1}', "input line 2: Expected `str | null`, got `int`"),
        ('{"tag": "a"}', "input line 2: give body or body_base64"),
        ('{"body": "a", "tags": "b"}', "input line 2: unknown key 'tags': known are body, "),
        ('{"body": "a", "properties": {"TAGS": "b"}}', "The Property<TAGS> is used by system"),
    ],
)
def test_json_lines_that_are_wrong(shell: Shell, topic: str, line: str, message: str) -> None:
    done = shell.produce(topic, "--jsonl", data=b"\n" + line.encode())
    assert (done.returncode, done.stdout) == (1, b"")
    note, error = done.stderr.decode().splitlines()
    assert note == "skipped 1 empty line, line 1: a message needs a body"
    assert error.startswith(f"Error: {message}")
    assert shell.stored(topic) == []


def test_a_delayed_message_comes_later(shell: Shell, topic: str) -> None:
    done = shell.produce(topic, "late", "--delay", "1500ms")
    assert done.returncode == 0
    late = run(shell.home, "--output", "json", "consume", topic, "--count", "1", *shell.at)
    message = json.loads(late.stdout)
    assert (late.returncode, message["body"]) == (0, "late")
    born, stored = (datetime.fromisoformat(message[name]) for name in ("born_time", "store_time"))
    assert stored - born >= timedelta(milliseconds=1500)


def test_one_bad_message_does_not_hide_the_others(shell: Shell, topic: str) -> None:
    done = shell.produce(topic, "good", "", "also good", as_json=True)
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 2)
    assert done.stderr == b"Error: the message body length is zero\n"
    assert sorted(message["body"] for message in shell.stored(topic)) == ["also good", "good"]


def test_a_line_without_end(shell: Shell, topic: str) -> None:
    done = shell.produce(topic, data=b"x" * (LINE_SIZE_MAX + 1))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"an input line is longer than" in done.stderr


def test_a_person_who_cannot_see_the_results_sees_progress(shell: Shell, topic: str) -> None:
    watcher, terminal = os.openpty()
    try:
        for stdout, is_shown in ((subprocess.DEVNULL, True), (terminal, False)):
            done = subprocess.run(
                command("produce", topic, *shell.at),
                env={**environment(shell.home), "TERM": "xterm"},
                input=b"x\n",
                stdout=stdout,
                stderr=terminal,
                timeout=TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0
            os.write(terminal, b"END")
            seen = b""
            while b"END" not in seen:
                seen += os.read(watcher, 65_536)
            assert (b"sending to" in seen) is is_shown
    finally:
        os.close(watcher)
        os.close(terminal)


def test_a_broker_that_cannot_be_reached() -> None:
    with pytest.raises(UnreachableError) as caught, translated_errors("T"):
        raise SendFailedError("Send [3] times, still failed") from ConnectError("refused")
    assert (caught.value.exit_code, caught.value.message) == (3, "Send [3] times, still failed")
    with pytest.raises(SendFailedError), translated_errors("T"):
        raise SendFailedError("Send [3] times, still failed") from BrokerError("busy")


def test_no_such_topic(shell: Shell) -> None:
    done = shell.produce("nosuch", "x")
    assert (done.returncode, done.stdout) == (4, b"")
    assert done.stderr.decode() == (
        "Error: topic nosuch does not exist, or none of its brokers runs: create it with skylark"
        " topic create nosuch\n"
    )


def test_nobody_answers(tmp_path: Path) -> None:
    done = run(tmp_path, "produce", "T", "x", "-n", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("Error: no name server answers: no connection to 127.0.0.1:1")
    assert ": start one with skylark up, or give its address with -n HOST:PORT" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x", "--delay", "soon"), "'soon' is not a time such as 10s or 5m"),
        (("x", "--property", "a"), "'a' is not KEY=VALUE"),
        (("x", "--count", "0"), "0 is not in the range"),
        (("x", "--jsonl"), "--jsonl reads stdin: leave out BODY"),
        (("x", "-n", "nowhere:x"), "nowhere:x"),
        (("x", "--tag", "a||b"), "for --tag: no subscription could select the tag 'a||b'"),
        (("x", "--tag", ""), "for --tag: no subscription could select the tag ''"),
        (("x", "--key", "a b"), "for --key: a key must not be empty or contain a blank"),
        (("x", "--key", "a", "--key", ""), "for --key: a key must not be empty or contain a blank"),
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(tmp_path, "produce", "T", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = (line for line in done.stderr.splitlines() if "Error" in line)
    assert message in line


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 10), ("1.5s", 1.5), ("500ms", 0.5), ("5m", 300), ("2h", 7200), ("1d", 86_400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text, "--delay") == seconds


@pytest.mark.parametrize("text", ["", "-1s", "s", "1w", "1e3", "٣s", "1 s", "9" * 10])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter):
        duration_s(text, "--delay")
