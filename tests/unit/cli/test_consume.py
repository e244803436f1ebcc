"""``skylark consume`` against a real cluster: order, places to begin, following, groups, traces."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from skylark.cli import consume
from skylark.cli.consume_print import Printer
from skylark.cli.output import Output
from skylark.client.core.broker_calls import checked, make_request, open_caller
from skylark.client.core.client_message import Message
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.producer import Producer
from skylark.core.clock import LoopClock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.headers.admin import CreateTopicRequestHeader
from tests.unit.cli.ups import TIMEOUT_S, Up, command, environment, run, up

BROKER = "broker-a"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("consume")


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[Up]:
    with up(home, "--ephemeral", "--set", "autoCreateTopicEnable=false") as running:
        yield running


class Shell:
    """Runs commands at one cluster, about one topic."""

    def __init__(self, home: Path, cluster: Up, topic: str) -> None:
        self.home = home
        self.at = ("-n", cluster.namesrv)
        self.topic = topic

    def create(self, queue_count: int = 4) -> None:
        queues = ("--queues", str(queue_count))
        made = run(self.home, "topic", "create", self.topic, *queues, *self.at)
        assert made.returncode == 0, made.stderr

    def produce(self, *arguments: str) -> list[dict[str, Any]]:
        done = run(self.home, "--output", "json", "produce", self.topic, *arguments, *self.at)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def consume(self, *arguments: str) -> list[dict[str, Any]]:
        """What the command prints by itself until it ends well."""
        done = run(self.home, "--output", "json", "consume", self.topic, *arguments, *self.at)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def bodies(self, *arguments: str) -> list[str]:
        return [message["body"] for message in self.consume(*arguments)]

    @contextmanager
    def following(self, *arguments: str) -> Iterator[Following]:
        process = subprocess.Popen(
            command("--output", "json", "consume", self.topic, *arguments, *self.at),
            env=environment(self.home),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = threading.Timer(TIMEOUT_S, process.kill)  # then reads end, and the test fails
        deadline.start()
        try:
            yield Following(process)
        finally:
            deadline.cancel()
            deadline.join()
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=TIMEOUT_S)


class Following:
    """A command that prints until it is stopped."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def body(self) -> str:
        """That of the next message; waits for it."""
        assert self.process.stdout is not None
        return str(json.loads(self.process.stdout.readline())["body"])

    def stop(self, number: signal.Signals) -> tuple[int, str, str]:
        self.process.send_signal(number)
        output, log = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, output, log


@pytest.fixture
def shell(request: pytest.FixtureRequest, home: Path, cluster: Up) -> Shell:
    """With a topic of the test's own."""
    found = Shell(home, cluster, re.sub(r"\W", "-", request.node.name))
    found.create()
    return found


def test_lines_for_people(shell: Shell) -> None:
    (sent,) = shell.produce("a\tb\x1b[2J", "--tag", "new", "--key", "k1", "--key", "k2")
    done = run(shell.home, "consume", shell.topic, "--no-follow", *shell.at)
    assert (done.returncode, done.stderr) == (0, "")
    heading, line = done.stdout.splitlines()
    assert heading.split() == ["STORED", "QUEUE", "OFFSET", "TAG", "KEYS", "BODY"]
    place = rf"{BROKER}:{sent['queue']} +0"
    assert re.fullmatch(
        rf"[\d-]{{10}} [\d:.]{{12}}  {place}  new       k1, k2    a\\tb\\x1b\[2J", line
    )
    assert heading.index("BODY") == line.index("a\\tb")


def test_objects_for_programs(shell: Shell) -> None:
    (sent,) = shell.produce("grüße", "--tag", "new", "--key", "k", "--property", "a=b")
    (message,) = shell.consume("--no-follow")
    properties = message.pop("properties")
    assert (properties["a"], properties["TAGS"]) == ("b", "new")
    stored = datetime.fromisoformat(message.pop("store_time"))
    assert abs((datetime.now(UTC) - stored).total_seconds()) < 60
    assert datetime.fromisoformat(message.pop("born_time")) <= stored
    assert message == {
        "topic": shell.topic,
        "broker": sent["broker"],
        "queue": sent["queue"],
        "offset": 0,
        "msg_id": sent["msg_id"],
        "tag": "new",
        "keys": ["k"],
        "body": "grüße",
        "reconsume_times": 0,
    }


def test_what_is_there_comes_in_the_order_it_was_stored(shell: Shell) -> None:
    queues = []
    for number in range(6):
        # A batch goes to one queue: separate commands spread over several.
        queues += [sent["queue"] for sent in shell.produce(f"{number}a", f"{number}b")]
    assert len(set(queues)) > 1
    wanted = [f"{number}{letter}" for number in range(6) for letter in "ab"]
    assert shell.bodies("--no-follow") == wanted
    assert shell.bodies("--count", "5") == wanted[:5]  # ends although it would follow


def test_many_messages_are_all_read_once(shell: Shell) -> None:
    results = shell.produce("x", "--count", "3000")
    found = shell.consume("--no-follow")
    assert len(found) == 3000
    assert {message["msg_id"] for message in found} == {result["msg_id"] for result in results}


def test_places_to_begin(shell: Shell) -> None:
    shell.produce("a", "b", "c", "--shard", "s")
    (queue,) = {message["queue"] for message in shell.consume("--no-follow")}
    middle = shell.consume("--no-follow")[-1]["store_time"]
    shell.produce("d", "--shard", "s")
    end = ("--no-follow", "--from")
    assert shell.bodies(*end, "earliest") == ["a", "b", "c", "d"]
    assert shell.bodies(*end, "latest") == []
    assert shell.bodies(*end, "2") == ["c", "d"]
    assert shell.bodies(*end, "99") == []
    assert shell.bodies(*end, "2000-01-01") == ["a", "b", "c", "d"]
    assert shell.bodies(*end, "2100-01-01T00:00") == []
    assert shell.bodies(*end, middle)[-2:] == ["c", "d"]
    assert shell.bodies("--no-follow", "--queue", str(queue)) == ["a", "b", "c", "d"]
    assert shell.bodies("--no-follow", "--queue", f"{BROKER}:{queue}") == ["a", "b", "c", "d"]
    assert shell.bodies("--no-follow", "--queue", str((queue + 1) % 4)) == []


def test_tags(shell: Shell) -> None:
    for tag in ("Aa", "BB", "C"):  # the first two have the same hash
        shell.produce(tag, "--tag", tag)
    assert shell.bodies("--no-follow", "--tags", "Aa || C") == ["Aa", "C"]
    assert shell.bodies("--no-follow", "--tags", "*") == ["Aa", "BB", "C"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_follows_until_it_is_stopped(shell: Shell, number: signal.Signals) -> None:
    shell.produce("before")
    with shell.following() as running:
        assert running.body() == "before"
        for body in ("one", "two"):
            shell.produce(body)
            assert running.body() == body
        assert running.stop(number) == (0, "", "")


def test_ctrl_c_ends_it_also_as_a_background_job(shell: Shell) -> None:
    """Its help says so; a shell starts background jobs with SIGINT ignored."""
    shell.produce("x")
    ignoring = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    program = f"{ignoring} os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    _, *words = command("--output", "json", "consume", shell.topic, *shell.at)
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env=environment(shell.home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        running = Following(process)
        assert running.body() == "x"
        assert running.stop(signal.SIGINT) == (0, "", "")


def test_following_from_the_end(shell: Shell) -> None:
    shell.produce("before")
    with shell.following("--from", "latest", "--count", "1") as running:
        # It says nothing before the first message, so give it some until it has seen one.
        number = 0
        while running.process.poll() is None:
            shell.produce(f"later {number}")
            number += 1
        assert running.process.returncode == 0
        assert running.body().startswith("later ")


def test_the_reader_of_a_pipe_goes_away(shell: Shell) -> None:
    shell.produce("x")
    with shell.following() as running:
        assert running.body() == "x"
        assert running.process.stdout is not None
        running.process.stdout.close()
        shell.produce("y")
        assert running.process.wait(TIMEOUT_S) == 1
        assert running.process.stderr is not None
        assert running.process.stderr.read() == ""
        running.process.stdout = None


@pytest.mark.parametrize(
    "arguments",
    [(), ("--group", "readers"), ("--group", "poppers", "--pop")],
    ids=["alone", "group", "pop"],
)
def test_the_reader_of_a_pipe_goes_away_and_nothing_comes(
    shell: Shell, arguments: tuple[str, ...]
) -> None:
    shell.produce("x")
    with shell.following(*arguments) as running:
        assert running.body() == "x"
        assert running.process.stdout is not None
        running.process.stdout.close()
        assert running.process.wait(TIMEOUT_S) == 1
        assert running.process.stderr is not None
        assert running.process.stderr.read() == ""
        running.process.stdout = None


async def test_queues_that_the_topic_gets(
    home: Path, cluster: Up, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(consume, "ROUTE_INTERVAL_S", 0.05)
    topic = "growing"
    Shell(home, cluster, topic).create(queue_count=1)
    options = ClientOptions(namesrv=cluster.namesrv)
    printer = Printer(Output("json", sys.stdout, sys.stderr), topic, count=1)
    wanted = consume.Wanted(topic, "latest", follow=True, tags=None, queue=None)
    reading = asyncio.create_task(consume._consume_plain(printer, wanted, options))
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=2,
        write_queue_nums=2,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        order=False,
    )
    async with open_caller() as caller, Producer("P", options) as producer:
        request = make_request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        address = cluster.addresses[BROKER]
        checked(await caller.call(address, request), address)
        new_queue = MessageQueue(topic=topic, broker_name=BROKER, queue_id=1)
        await producer.send(Message(topic, b"in the new one"), queue=new_queue)
        async with LoopClock().timeout(TIMEOUT_S):
            # Sent once more, should the first one have been there before the reading began.
            while not (await asyncio.wait({reading}, timeout=1))[0]:
                await producer.send(Message(topic, b"in the new one"), queue=new_queue)
        await reading
    message = json.loads(capsys.readouterr().out)
    assert (message["queue"], message["body"]) == (1, "in the new one")


async def test_what_is_latest_in_a_queue_that_was_away(
    home: Path, cluster: Up, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its broker comes back with what it had: that was there when the reading began."""
    topic = "away"
    shell = Shell(home, cluster, topic)
    shell.create(queue_count=2)
    options = ClientOptions(namesrv=cluster.namesrv)
    printer = Printer(Output("json", sys.stdout, sys.stderr), topic, count=1)
    wanted = consume.Wanted(topic, "latest", follow=True, tags=None, queue=None)
    readers_of_all, looks = consume._readers, 0

    def readers_but_one(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        readers = readers_of_all(*arguments)
        return [each for each in readers if looks > 1 or each.queue.queue_id == 0]

    monkeypatch.setattr(consume, "ROUTE_INTERVAL_S", 0.05)
    monkeypatch.setattr(consume, "_readers", readers_but_one)
    away = MessageQueue(topic=topic, broker_name=BROKER, queue_id=1)
    async with Producer("P", options) as producer, LoopClock().timeout(TIMEOUT_S):
        await producer.send(Message(topic, b"before"), queue=away)
        await LoopClock().sleep(0.01)  # to another moment of the broker's clock
        reading = asyncio.create_task(consume._consume_plain(printer, wanted, options))
        while looks < 2 or not (await asyncio.wait({reading}, timeout=0.5))[0]:
            await producer.send(Message(topic, b"after"), queue=away)
        await reading
    message = json.loads(capsys.readouterr().out)
    assert (message["queue"], message["body"]) == (1, "after")


@pytest.mark.parametrize("member", [(), ("--pop", "--group", "G")], ids=["plain", "pop"])
def test_following_survives_a_restart_of_the_cluster(
    tmp_path: Path, member: tuple[str, ...]
) -> None:
    small = ("--set", "mappedFileSizeCommitLog=16777216", "--set", "maxIndexNum=2000")
    data = ("--data", str(tmp_path / "data"), *small, "--topic", "T:1")
    with up(tmp_path, *data) as running:
        shell = Shell(tmp_path, running, "T")
        shell.produce("before")
        ports = [running.addresses[name].rpartition(":")[2] for name in ("namesrv", BROKER)]
        with shell.following(*member) as follower:
            assert follower.body() == "before"
            running.process.send_signal(signal.SIGTERM)
            assert running.end() == (0, "", "")
            again = ("--namesrv-port", ports[0], "--broker-port", ports[1])
            with up(tmp_path, *data, *again):
                shell.produce("after")
                assert follower.body() == "after"
                assert follower.stop(signal.SIGINT) == (0, "", "")


# ---- groups --------------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_was(shell: Shell) -> None:
    group = ("--group", f"G-{shell.topic}", "--no-follow")
    shell.produce("a", "b", "c", "--shard", "s")
    assert shell.bodies(*group, "--count", "2") == ["a", "b"]
    assert shell.bodies(*group) == ["c"]
    shell.produce("d")
    assert shell.bodies(*group, "--from", "earliest") == ["d"]
    assert shell.bodies("--no-follow") == ["a", "b", "c", "d"]


def test_a_group_follows_and_commits_at_the_end(shell: Shell) -> None:
    group = ("--group", f"G-{shell.topic}", "--tags", "A")
    shell.produce("x", "--tag", "B")
    shell.produce("a", "--tag", "A")
    with shell.following(*group) as running:
        assert running.body() == "a"
        shell.produce("b", "--tag", "A")
        assert running.body() == "b"
        assert running.stop(signal.SIGINT) == (0, "", "")
    assert shell.bodies(*group, "--no-follow") == []


def test_pop_acknowledges_what_it_has_printed(shell: Shell) -> None:
    pop = ("--pop", "--group", f"P-{shell.topic}", "--no-follow")
    shell.produce("a", "b", "c", "d", "--shard", "s")
    assert shell.bodies(*pop, "--count", "2") == ["a", "b"]
    assert shell.bodies(*pop) == ["c", "d"]
    assert shell.bodies(*pop) == []


def test_pop_from_latest_skips_what_was_stored_before_the_group_was_new(shell: Shell) -> None:
    pop = ("--pop", "--group", f"P-{shell.topic}", "--no-follow")
    shell.produce("old", "older", "oldest")
    assert shell.bodies(*pop, "--from", "latest") == []
    shell.produce("a", "b", "--shard", "s")
    assert shell.bodies(*pop, "--from", "latest") == ["a", "b"]  # it has offsets now
    earliest = ("--pop", "--group", f"E-{shell.topic}", "--no-follow", "--from", "earliest")
    assert sorted(shell.bodies(*earliest)) == ["a", "b", "old", "older", "oldest"]


def test_pop_follows(shell: Shell) -> None:
    shell.produce("x", "--tag", "B")
    shell.produce("a", "--tag", "A")
    with shell.following("--pop", "--group", f"P-{shell.topic}", "--tags", "A") as running:
        assert running.body() == "a"
        shell.produce("b", "--tag", "A")
        assert running.body() == "b"
        assert running.stop(signal.SIGINT) == (0, "", "")


def test_only_a_group_leaves_a_trace(tmp_path: Path) -> None:
    data = tmp_path / "data"
    small = ("--set", "mappedFileSizeCommitLog=16777216", "--set", "maxIndexNum=2000")
    with up(tmp_path, "--data", str(data), *small, "--topic", "T:1") as running:
        shell = Shell(tmp_path, running, "T")
        shell.produce("a", "b", "c")
        assert shell.bodies("--no-follow") == ["a", "b", "c"]
        assert shell.bodies("--no-follow", "--group", "G", "--count", "2") == ["a", "b"]
        running.process.send_signal(signal.SIGTERM)
        assert running.end() == (0, "", "")
    config = data / BROKER / "config"
    saved = re.sub(r"(\d+):", r'"\1":', (config / "consumerOffset.json").read_text())
    offsets = json.loads(saved)["offsetTable"]
    assert offsets["T@G"] == {"0": 2}
    assert {key.partition("@")[2] for key in offsets} == {"G"}
    groups = json.loads((config / "subscriptionGroup.json").read_text())["subscriptionGroupTable"]
    assert "G" in groups
    assert [name for name in groups if "skylark" in name.lower()] == []


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [(), ("--group", "G"), ("--pop", "--group", "G")],
    ids=["plain", "group", "pop"],
)
def test_no_such_topic(home: Path, cluster: Up, arguments: tuple[str, ...]) -> None:
    done = run(home, "consume", "nosuch", *arguments, "-n", cluster.namesrv)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        "Error: topic nosuch does not exist, or none of its brokers runs: create it with skylark"
        " topic create nosuch\n"
    )


@pytest.mark.parametrize("arguments", [(), ("--group", "G")], ids=["plain", "group"])
def test_nobody_answers(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run(tmp_path, "consume", "T", *arguments, "-n", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("Error: no name server answers: no connection to 127.0.0.1:1")
    assert len(done.stderr.splitlines()) == 1


def test_no_such_queue(shell: Shell) -> None:
    done = run(shell.home, "consume", shell.topic, "--queue", "7", *shell.at)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{shell.topic} has no such queue" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "yesterday"), "'yesterday' is not earliest, latest, a time such as"),
        (("--from", "9" * 30), "is not earliest, latest, a time such as"),
        (("--from", "5", "--group", "G"), "with --group, --from is earliest, latest or a time"),
        (("--queue", "0", "--group", "G"), "leave out --queue or --group"),
        (("--pop",), "--pop needs --group"),
        (("--pop", "--group", "G", "--broadcast"), "and excludes --broadcast"),
        (("--pop", "--group", "G", "--from", "1h"), "with --pop, --from is earliest or latest"),
        (("--pop", "--group", "G", "--queue", "0"), "leave out --queue or --group"),
        (("--count", "0"), "0 is not in the range"),
        (("-n", "nowhere:x"), "nowhere:x"),
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(tmp_path, "consume", "T", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
