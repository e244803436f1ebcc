"""Store directories handed from Skylark to Apache's broker and back, whole and after a SIGKILL.

"Served" means: pulled by a Java client from every queue of a running Apache broker, with all
fields, and answered by key. After every orderly end the directory passes ``skylark store check``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from skylark.store.checkpoint import Checkpoint
from skylark.store.config_files import (
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    SUBSCRIPTION_GROUPS,
    TOPICS,
    ConfigFiles,
)
from skylark.store.errors import StoreLockedError
from skylark.store.files import OsFileSystem
from skylark.store.inspection.check_findings import Severity
from skylark.store.inspection.store_check import CheckReport, check_store
from skylark.store.inspection.store_directory import State
from tests.interop.cluster import Cluster
from tests.interop.java import ApacheBroker, JavaProgram, MqAdmin, Record, run_program
from tests.interop.ours import SkylarkNamesrv
from tests.interop.process import ManagedProcess, ProcessError, poll_until
from tests.interop.store_filler import GROUP, HALF, OUR_OFFSETS, add_topics, fill, write_config
from tests.interop.stores import (
    BROKER_SETTINGS,
    SETTINGS,
    Item,
    OurStore,
    Queue,
    StoreView,
    place_of,
    read_apache,
    store_config,
)

pytestmark = pytest.mark.interop

PLAIN_QUEUES: list[Queue] = [("OursPlain", queue_id) for queue_id in range(4)]
KILL_AFTER = 2_000  # acknowledged messages
LOG_FILE_SIZE = SETTINGS["mappedFileSizeCommitLog"]


class OurWriter(ManagedProcess):
    """A process that puts messages into a store of ours until it is killed."""

    def __init__(self, root: Path, port: int, *pace: int, folder: Path) -> None:
        """``pace``: bytes of a message, and messages per second."""
        super().__init__("our-writer", folder=folder)
        self._arguments = [str(root), str(port), *map(str, pace)]

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.interop.store_filler", *self._arguments]

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}

    def wait_ready(self) -> None:
        """It begins at once; its lines say how far it is."""

    def acknowledged(self) -> list[Item]:
        """All that it has acknowledged, but for a line that was cut off."""
        lines = (self.folder / "our-writer-1.out").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.fixture(scope="module")
def namesrv() -> Iterator[SkylarkNamesrv]:
    with SkylarkNamesrv() as running:
        yield running


@pytest.fixture
def broker(namesrv: SkylarkNamesrv, tmp_path: Path) -> Iterator[ApacheBroker]:
    """A broker that is not started yet; its store is where ours is."""
    made = ApacheBroker(namesrv.address, BROKER_SETTINGS, folder=tmp_path / "broker")
    made.store.mkdir(parents=True)
    yield made
    made.close()


@pytest.fixture
def cluster(mqadmin: MqAdmin, namesrv: SkylarkNamesrv) -> Cluster:
    return Cluster(mqadmin, namesrv.address)


def checked(root: Path) -> CheckReport:
    return check_store(root, delays_ms=store_config(root).delay_levels_ms)


def assert_clean(root: Path) -> Item:
    """The command finds nothing, not even a note: what an orderly end leaves."""
    run = subprocess.run(
        [sys.executable, "-m", "skylark", "--output", "json", "store", "check", str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    report: Item = json.loads(run.stdout)
    assert report["findings"] == []
    assert (run.returncode, run.stderr, report["state"]) == (0, "", "closed in order")
    return report


def assert_crashed(root: Path) -> None:
    """The directory is as a SIGKILL leaves it: nothing is wrong that a start does not repair."""
    report = checked(root)
    assert report.state is State.CRASHED
    assert [it for it in report.findings if it.severity is Severity.ERROR] == []


def start(broker: ApacheBroker, cluster: Cluster) -> None:
    broker.start()
    cluster.wait_brokers(broker.broker_name, timeout_s=30)


def stop(broker: ApacheBroker) -> None:
    assert broker.stop() == 143  # Java's answer to SIGTERM, after all shutdown hooks have run
    assert not (broker.store / "abort").exists()


def assert_numbered(view: StoreView) -> None:
    """Queue offsets go on without a gap, whoever wrote."""
    for (topic, queue_id), (low, high) in view.bounds.items():
        offsets = [it["queueOffset"] for it in view.of(topic) if it["queueId"] == queue_id]
        assert offsets == list(range(low, high)), (topic, queue_id)


def writer_options(broker: ApacheBroker, namesrv: SkylarkNamesrv) -> dict[str, str | int]:
    return {
        "namesrv": namesrv.address,
        "broker": broker.broker_name,
        "address": broker.address,
        "topic": "Java",
    }


def write_by_java(
    broker: ApacheBroker, namesrv: SkylarkNamesrv, round_name: str, count: int
) -> list[Record]:
    """Have Java producers fill the broker with every kind of message; what they reported."""
    options = writer_options(broker, namesrv)
    *sent, done = run_program(
        "StoreWriter", {**options, "round": round_name, "mode": "all", "count": count}
    )
    assert done == {"event": "done"}
    assert len(sent) == count + 39
    return sent


def assert_all_there(sent: list[Record], view: StoreView) -> None:
    """Each acknowledged message is where its producer was told, a batch by its first one."""
    places = view.places()
    for record in sent:
        if record["topic"] == "JavaDelay":
            continue  # its place was in the schedule topic
        message = places[place_of(record)]
        if record["topic"] == "JavaInner":
            assert message["msgId"] is None  # a part of a record has no id of its own
        else:
            assert message["properties"]["UNIQ_KEY"] == str(record["msgId"]).split(",")[0]
            assert message["msgId"] == str(record["offsetMsgId"]).split(",")[0]


def all_queues(root: Path) -> list[Queue]:
    """The queues that a directory has files of."""
    paths = [*root.glob("consumequeue/*/*"), *root.glob("batchconsumequeue/*/*")]
    return sorted((path.parent.name, int(path.name)) for path in paths)


def max_offset(cluster: Cluster, topic: str) -> int:
    """The largest queue offset that mqadmin shows of a topic."""
    rows = [line.split() for line in cluster.run("topicStatus", "-t", topic).splitlines()]
    return max(int(row[3]) for row in rows if row and row[0] == "broker-a")


def await_delayed(cluster: Cluster, count: int) -> None:
    """Wait until Apache has delivered our pending messages of delay level 1."""
    poll_until(
        lambda: max_offset(cluster, "OursDelay") == count, timeout_s=30, what="delayed messages"
    )


def assert_serves_and_delivered(served: StoreView, view: StoreView, keys: list[str]) -> None:
    """Exactly this is served, and delayed messages with these keys were delivered since."""
    known = len(view.of("OursDelay"))
    delivered = served.of("OursDelay")[known:]
    assert [it["properties"]["KEYS"] for it in delivered] == keys
    assert len(served.messages) == len(view.messages) + len(delivered)
    places = served.places()
    assert [places[place] for place in view.places()] == view.messages


@pytest.mark.spec("store.12.26")
def test_apache_takes_over_a_store_of_ours_and_we_take_it_back(
    broker: ApacheBroker, namesrv: SkylarkNamesrv, cluster: Cluster
) -> None:
    root = broker.store
    write_config(root)
    with OurStore(root, broker.port) as ours:
        filled = fill(ours, "first")
        written = ours.view()
    report = assert_clean(root)
    assert report["log_files"] >= 3
    assert report["index_files"] >= 3
    assert report["records"] == filled.record_count > 2_000
    assert len(written.messages) == filled.visible_count

    # Apache opens it, delivers what is due, and serves everything.
    start(broker, cluster)
    await_delayed(cluster, 2 + 2)
    offsets = [(GROUP, *queue) for queue in PLAIN_QUEUES]
    served = read_apache(broker, namesrv.address, written.bounds, offsets=offsets)
    assert_serves_and_delivered(served, written, ["first-delay-2 all", "first-delay-3 all"])
    assert served.keys.keys() > written.keys.keys()
    assert served.offsets == {(GROUP, *queue): OUR_OFFSETS[queue[1]] for queue in PLAIN_QUEUES}
    assert {"OursPlain", "OursTx"} <= cluster.topics()
    by_key = cluster.run("queryMsgByKey", "-t", "OursPlain", "-k", "first-plain-42")
    assert len(by_key.strip().splitlines()) == 2  # a heading and one message

    # While Apache has it, we stay out, and may look.
    with pytest.raises(StoreLockedError, match="another process"), OurStore(root, broker.port):
        pytest.fail("opened")
    in_use = checked(root)
    assert (in_use.state, in_use.is_clean) == (State.IN_USE, True)

    # Java producers go on, and we go on after them.
    sent = write_by_java(broker, namesrv, "second", 300)
    served = read_apache(broker, namesrv.address, all_queues(root))
    stop(broker)
    assert_clean(root)
    with OurStore(root, broker.port) as ours:
        assert ours.report.clean
        taken = ours.view()
        assert taken.bounds == served.bounds
        assert taken.messages == served.messages
        assert_all_there(sent, taken)
        filled = fill(ours, "third", plain_count=300)
        view = ours.view()
    assert_clean(root)
    assert len(view.messages) == len(taken.messages) + filled.visible_count
    assert_numbered(view)

    # Apache knows which of our half messages are decided: it puts back only the others.
    broker.settings |= {"transactionTimeOut": 1_000, "transactionCheckInterval": 2_000}
    pending = {"first-pending all", "second-Tx-2 all", "third-pending all"}
    start(broker, cluster)
    half_count = view.bounds[HALF, 0][1]
    poll_until(
        lambda: max_offset(cluster, HALF) >= half_count + len(pending),
        timeout_s=60,
        what="half messages put back for a further check",
    )
    broker.kill()
    with OurStore(root, broker.port) as ours:
        assert not ours.report.clean
        final = ours.view()
    assert_clean(root)
    assert {it["properties"]["KEYS"] for it in final.of(HALF)[half_count:]} == pending
    assert_numbered(final)
    places = final.places()
    assert [places[place] for place in view.places()] == view.messages


def test_we_take_over_a_store_of_apache_and_apache_takes_it_back(
    broker: ApacheBroker, namesrv: SkylarkNamesrv, cluster: Cluster
) -> None:
    root = broker.store
    start(broker, cluster)
    sent = write_by_java(broker, namesrv, "first", 2_000)
    served = read_apache(broker, namesrv.address, all_queues(root))
    stop(broker)
    report = assert_clean(root)
    assert report["log_files"] >= 3
    assert report["index_files"] >= 3

    with OurStore(root, broker.port) as ours:
        assert ours.report.clean
        taken = ours.view()
        assert taken.bounds == served.bounds
        assert taken.messages == served.messages
        assert taken.keys == served.keys
        assert_all_there(sent, taken)
        fill(ours, "second", plain_count=300)
        view = ours.view()
    assert_clean(root)
    config = ConfigFiles(OsFileSystem(), root / "config")
    topics = config.load(TOPICS)
    assert topics.topic_config_table["JavaPlain"].write_queue_nums == 4
    assert topics.topic_config_table["JavaInner"].attributes == {"queue.type": "BatchCQ"}
    assert config.load(DELAY_OFFSETS).offset_table[1] == 3  # two delayed, one retried
    assert "Java_group" in config.load(SUBSCRIPTION_GROUPS).subscription_group_table
    assert HALF + "@CID_RMQ_SYS_TRANS" in config.load(CONSUMER_OFFSETS).offset_table

    # And Apache serves what both have written.
    add_topics(root)
    start(broker, cluster)
    await_delayed(cluster, 2 + 4)
    served = read_apache(broker, namesrv.address, view.bounds)
    assert_serves_and_delivered(served, view, [f"second-delay-{number} all" for number in range(4)])
    assert_numbered(served)


def test_apache_recovers_a_store_of_ours_after_a_kill(
    broker: ApacheBroker, namesrv: SkylarkNamesrv, cluster: Cluster, tmp_path: Path
) -> None:
    root = broker.store
    with OurWriter(root, broker.port, folder=tmp_path) as writer:
        for _ in range(KILL_AFTER):
            assert writer.next_line(30) is not None
        writer.kill()
        acknowledged = writer.acknowledged()
    assert len(acknowledged) >= KILL_AFTER
    assert_crashed(root)

    # Without this setting Apache drops the newest index file, and keys with it.
    broker.settings["messageIndexSafe"] = "true"
    start(broker, cluster)
    served = read_apache(broker, namesrv.address, PLAIN_QUEUES)
    assert_numbered(served)
    assert len(acknowledged) <= len(served.messages) <= len(acknowledged) + 1
    places = served.places()
    for record in acknowledged:
        message = places[place_of(record)]
        assert message["commitLogOffset"] == record["commitLogOffset"]
        assert message["properties"]["UNIQ_KEY"] == record["uniqueId"]
    stop(broker)
    assert_clean(root)
    with OurStore(root, broker.port) as ours:
        taken = ours.view()
    assert taken.messages == served.messages
    assert taken.keys == served.keys


def test_apache_finds_the_keys_of_a_store_of_ours_after_a_kill(
    broker: ApacheBroker, namesrv: SkylarkNamesrv, cluster: Cluster, tmp_path: Path
) -> None:
    """By its default settings Apache drops the newest index file, and has to make it anew."""
    root, files = broker.store, OsFileSystem()
    with OurWriter(root, broker.port, 60_000, 12, folder=tmp_path) as writer:
        checkpoint = Checkpoint(files, root)
        while checkpoint.logics_physical_offset < 3 * LOG_FILE_SIZE:  # it covers three files
            assert writer.next_line(30) is not None
            checkpoint.load(is_new=True)
        writer.kill()
        acknowledged = writer.acknowledged()
    assert_crashed(root)
    start(broker, cluster)
    served = read_apache(broker, namesrv.address, PLAIN_QUEUES)  # by key, unique key and tag
    assert len(acknowledged) <= len(served.messages) <= len(acknowledged) + 1
    assert len(served.keys) >= 2 * len(acknowledged) + 5
    stop(broker)
    assert_clean(root)


def test_we_recover_a_store_of_apache_after_a_kill(
    broker: ApacheBroker, namesrv: SkylarkNamesrv, cluster: Cluster
) -> None:
    root = broker.store
    start(broker, cluster)
    options = {**writer_options(broker, namesrv), "round": "endless", "mode": "endless"}
    sent: list[Record] = []
    with JavaProgram("StoreWriter", options) as program:
        while len(sent) < KILL_AFTER:
            record = program.next_record(60)
            assert record is not None
            sent.append(record)
        broker.kill()
        *more, ended = program.finish(60)
    sent += more
    assert ended["event"] == "ended"
    assert_crashed(root)

    with OurStore(root, broker.port) as ours:
        assert not ours.report.clean
        taken = ours.view()
        assert_all_there(sent, taken)
        assert_numbered(taken)
        assert len(sent) <= len(taken.of("JavaPlain")) <= len(sent) + 1
    assert_clean(root)
    start(broker, cluster)
    served = read_apache(broker, namesrv.address, taken.bounds)
    assert served.bounds == taken.bounds
    assert served.messages == taken.messages


@pytest.mark.spec("store.12.26")
def test_apache_stays_out_of_a_store_that_we_have_open(broker: ApacheBroker) -> None:
    with OurStore(broker.store, broker.port), pytest.raises(ProcessError, match="Lock failed"):
        broker.start()
    assert not broker.running
    assert not (broker.store / "abort").exists()  # Apache has removed ours, and we do not mind
