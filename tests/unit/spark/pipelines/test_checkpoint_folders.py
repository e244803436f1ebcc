"""Checkpoint folders: the current one, its content, and the new one of a reset."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from skylark.core.errors import ConfigError
from skylark.spark.pipelines.checkpoint_folders import (
    Checkpoint,
    Checkpoints,
    local_path,
    write_checkpoint,
)
from skylark.spark.source.stream_offset import StreamOffset, encode_offset
from skylark.wire.bodies.common_body import MessageQueue

Q0 = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
Q1 = MessageQueue(topic="T", broker_name="broker-a", queue_id=1)
METADATA = '{"batchWatermarkMs":7,"batchTimestampMs":1,"conf":{"a":"b"}}'


def plan(folder: Path, number: int, *ends: StreamOffset, done: bool = True) -> None:
    """A batch as Spark writes it down."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    lines = ["v1", METADATA, *(json.dumps(encode_offset(end)) for end in ends)]
    (folder / "offsets" / str(number)).write_text("\n".join(lines))
    (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    if done:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def newest(tmp_path: Path) -> Checkpoint:
    found = Checkpoints(str(tmp_path), tmp_path).newest("p")
    assert found is not None
    return found


def test_local_paths() -> None:
    base = Path("/base")
    assert local_path("file:///data/c%20k", base) == Path("/data/c k")
    assert local_path("file:/data", base) == Path("/data")
    assert local_path("/data", base) == Path("/data")
    assert local_path("data", base) == Path("/base/data")
    assert local_path("hdfs://h/data", base) is None
    assert local_path("s3a://bucket/data", base) is None


def test_the_highest_number_counts(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path.as_uri(), tmp_path)
    assert checkpoints.newest("p") is None
    assert checkpoints.location("p") == f"{tmp_path.as_uri()}/p/0"
    for number in (0, 9, 10):
        plan(tmp_path / "p" / str(number), 0, StreamOffset({Q0: number}))
    (tmp_path / "p" / ".draft").mkdir()
    (tmp_path / "p" / "11.old").mkdir()
    assert checkpoints.location("p") == f"{tmp_path.as_uri()}/p/10"
    assert newest(tmp_path).positions == {Q0: 10}


def test_done_and_unfinished_batches(tmp_path: Path) -> None:
    folder = tmp_path / "p" / "0"
    folder.mkdir(parents=True)
    empty = newest(tmp_path)
    assert (empty.done, empty.last, empty.next_number, empty.positions) == (None, None, 0, {})
    first = StreamOffset({Q0: 5, Q1: 0}, first_start={Q0: 2, Q1: 0})
    plan(folder, 0, first, done=False)
    (folder / "metadata").write_text('{"id":"abc"}')
    begun = newest(tmp_path)
    assert (begun.done, begun.next_number, begun.query_id) == (None, 0, "abc")
    assert begun.positions == {Q0: 2, Q1: 0}
    plan(folder, 0, StreamOffset({Q0: 7}, fresh=True), done=False)  # there was nothing to read
    assert newest(tmp_path).positions == {Q0: 7}
    plan(folder, 0, first)
    plan(folder, 1, StreamOffset({Q0: 8, Q1: 3}), done=False)
    going = newest(tmp_path)
    assert (going.positions, going.next_number) == ({Q0: 5, Q1: 0}, 1)
    assert going.unfinished is not None
    assert going.unfinished.positions == {Q0: 8, Q1: 3}
    os.utime(folder / "commits" / "0", (1000, 1000))
    os.utime(folder / "offsets" / "1", (2000, 2000))
    assert newest(tmp_path).changed_ms == 2_000_000
    plan(folder, 1, StreamOffset({Q0: 8}), StreamOffset({Q0: 6, Q1: 4}))
    complete = newest(tmp_path)
    assert complete.unfinished is None
    assert (complete.positions, complete.next_number) == (
        {Q0: 6, Q1: 4},
        2,
    )  # read twice: the least
    assert complete.topics == {"T"}


@pytest.mark.parametrize("next_number", [1, 8])
def test_a_reset_continues_the_batch_numbers(tmp_path: Path, next_number: int) -> None:
    """A file sink passes over numbers that it has seen, and may have no gaps."""
    old_folder = tmp_path / "p" / "0"
    plan(old_folder, 6, StreamOffset({Q0: 8}), StreamOffset({Q0: 8}))
    plan(old_folder, 7, StreamOffset({Q0: 9}), StreamOffset({Q0: 9}), done=False)
    before = {file: file.read_bytes() for file in old_folder.rglob("*") if file.is_file()}
    made = write_checkpoint(tmp_path / "p", newest(tmp_path), {Q0: 2, Q1: 0}, next_number)
    assert made == tmp_path / "p" / "1"
    assert {file: file.read_bytes() for file in before} == before
    found = newest(tmp_path)
    assert (found.number, found.unfinished, found.next_number) == (1, None, next_number)
    assert found.positions == {Q0: 2, Q1: 0}
    assert found.done is not None
    assert (len(found.done.ends), found.done.metadata) == (2, METADATA)
    planned = sorted(file.name for file in (made / "offsets").iterdir())
    assert planned == (["0"] if next_number == 1 else ["6", "7"])
    assert [file.name for file in (made / "commits").iterdir()] == [str(next_number - 1)]
    first_id = found.query_id
    again = write_checkpoint(tmp_path / "p", found, {Q0: 3}, 20)
    assert (again.name, newest(tmp_path).next_number) == ("2", 20)
    assert newest(tmp_path).query_id not in (None, first_id)
    assert sorted(file.name for file in (tmp_path / "p").iterdir()) == ["0", "1", "2"]


def test_a_reset_may_begin_with_batch_0(tmp_path: Path) -> None:
    plan(tmp_path / "p" / "0", 7, StreamOffset({Q0: 9}))
    for old in (newest(tmp_path), None):
        parent = tmp_path / ("p" if old else "other")
        made = write_checkpoint(parent, old, {Q0: 2}, 0)
        assert made.name == ("1" if old else "0")
        found = Checkpoints(str(tmp_path), tmp_path).newest(parent.name)
        assert found is not None
        assert (found.done, found.next_number, found.positions) == (None, 0, {Q0: 2})
        assert found.unfinished is not None
        assert found.unfinished.ends == (StreamOffset({Q0: 2}, first_start={Q0: 2}),)
        assert 'conf":{}' in found.unfinished.metadata
        assert list((made / "commits").iterdir()) == []


def test_a_folder_that_exists_is_never_written_to(tmp_path: Path) -> None:
    plan(tmp_path / "p" / "0", 3, StreamOffset({Q0: 9}))
    old = newest(tmp_path)
    plan(tmp_path / "p" / "1", 4, StreamOffset({Q0: 10}))  # by somebody else, at the same time
    with pytest.raises(OSError, match=r"not empty|exists"):
        write_checkpoint(tmp_path / "p", old, {Q0: 2}, 5)
    assert sorted(file.name for file in (tmp_path / "p").iterdir()) == ["0", "1"]
    assert newest(tmp_path).positions == {Q0: 10}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("v2\n{}\n{}", "begins with 'v2' and not with v1"),
        ("", "begins with '' and not with v1"),
        (f"v1\n{METADATA}\n{{", "it has a line that is not JSON"),
        (f'v1\n{METADATA}\n{{"kafka":1}}', "an offset of another source"),
        (f'v1\n{METADATA}\n{{"v":2,"q":{{}}}}', "version 2"),
    ],
)
def test_invalid_checkpoint_files_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    folder = tmp_path / "p" / "0"
    plan(folder, 0)
    (folder / "offsets" / "0").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        newest(tmp_path)


def test_remote_checkpoint_folders_are_left_to_spark(tmp_path: Path) -> None:
    checkpoints = Checkpoints("hdfs://h/ck/", tmp_path)
    assert checkpoints.location("p") == "hdfs://h/ck/p/0"
    checkpoints.check_writable("p")
    with pytest.raises(ConfigError, match="at hdfs://h/ck, which only Spark can read"):
        checkpoints.newest("p")


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checkpoints = Checkpoints(str(tmp_path / "file" / "ck"), tmp_path)
    assert checkpoints.newest("p") is None
    with pytest.raises(
        ConfigError, match=r"pipeline p cannot write .*file is not a folder: change"
    ):
        checkpoints.check_writable("p")
    Checkpoints(str(tmp_path / "new" / "ck"), tmp_path).check_writable("p")
    assert not (tmp_path / "new").exists()


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of the system by access(2), which says yes to root: so its answer is given here."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(ConfigError, match="is not writable"):
        Checkpoints(str(tmp_path / "ck"), tmp_path).check_writable("p")
