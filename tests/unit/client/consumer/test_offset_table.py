"""Offsets in memory and in the file of broadcasting consumers."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.consumer import offset_table as offset_store
from skylark.client.consumer.offset_table import (
    LocalOffsetFile,
    OffsetTable,
    decode_offsets,
    encode_offsets,
    local_offset_path,
)
from skylark.core.errors import ClientError, RemoteProtocolError
from skylark.wire.bodies.common_body import MessageQueue
from tests.unit.client.consumer.samples import GOLDEN, queue

Q0, Q1, Q2 = queue(0), queue(1), queue(2)

PRINTED = {
    queue(1, topic="ns%Other", broker='broker"q"'): 9_007_199_254_740_993,
    queue(3, topic="TopicTest"): 1470,
    queue(0, topic="TopicTest", broker="broker-b"): 0,
}


# ---- memory --------------------------------------------------------------------------------------


def test_updates_increase_unless_told_otherwise() -> None:
    table = OffsetTable()
    assert table.read(Q0) is None
    table.update(Q0, 5)
    table.update(Q0, 3)
    assert table.read(Q0) == 5
    table.update(Q0, 3, increase_only=False)
    assert table.read(Q0) == 3


@pytest.mark.spec("client.8.26")
def test_a_frozen_offset_is_not_overwritten_by_late_results() -> None:
    table = OffsetTable()
    table.update(Q0, 500)
    table.update_and_freeze(Q0, 100)
    table.update(Q0, 501)
    table.update(Q0, 0, increase_only=False)
    assert table.to_save({Q0}) == {Q0: 100}
    table.update(Q1, 7)
    table.forget(Q0)
    assert table.read(Q0) is None
    table.update(Q0, 101)
    assert table.snapshot() == {Q1: 7, Q0: 101}


@pytest.mark.spec("client.8.36")
def test_saving_some_does_not_forget_the_others() -> None:
    table = OffsetTable()
    for each, offset in ((Q0, 1), (Q1, 2), (queue(0, topic="Other"), 3)):
        table.update(each, offset)
    assert table.to_save([Q1, Q2]) == {Q1: 2}
    assert table.to_save([Q0]) == {Q0: 1}
    assert table.snapshot("T") == {Q0: 1, Q1: 2}


def test_what_is_no_longer_assigned_is_forgotten() -> None:
    table = OffsetTable()
    table.update_and_freeze(Q0, 1)
    table.update(Q1, 2)
    table.retain([Q1])
    assert table.snapshot() == {Q1: 2}
    table.update(Q0, 9)
    assert table.read(Q0) == 9


# ---- the file ------------------------------------------------------------------------------------


@pytest.mark.spec("client.8.32")
def test_the_text_is_that_of_java() -> None:
    assert encode_offsets(PRINTED).encode() == (GOLDEN / "offsets-5.5.0.json").read_bytes()
    assert encode_offsets({}) == '{\n\t"offsetTable":{}\n}'


@pytest.mark.spec("client.8.32")
@pytest.mark.parametrize("version", ["5.5.0", "4.9.8"])
def test_files_of_java_are_read(version: str, tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes((GOLDEN / f"offsets-{version}.json").read_bytes())
    assert LocalOffsetFile(path).load() == PRINTED


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.builds(
            MessageQueue,
            topic=st.text(st.characters(codec="utf-8")),
            broker_name=st.text(st.characters(codec="utf-8")),
            queue_id=st.integers(0, 2**31 - 1),
        ),
        st.integers(0, 2**63 - 1),
    )
)
def test_what_was_written_is_read(offsets: dict[MessageQueue, int]) -> None:
    assert decode_offsets(encode_offsets(offsets).encode()) == offsets


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damage_is_one_kind_of_error(data: st.DataObject) -> None:
    good = encode_offsets(PRINTED).encode()
    position = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:position] + data.draw(st.binary(max_size=3)) + good[position + 1 :]
    with contextlib.suppress(RemoteProtocolError):
        decode_offsets(damaged)


def test_the_path_is_that_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    path = local_offset_path(None, "10.0.0.1@DEFAULT", "G")
    assert path == Path("/h/.rocketmq_offsets/10.0.0.1@DEFAULT/G/offsets.json")
    assert local_offset_path(Path("/d"), "c", "G") == Path("/d/c/G/offsets.json")


def test_saving_merges(tmp_path: Path) -> None:
    file = LocalOffsetFile(tmp_path / "c" / "G" / "offsets.json")
    assert file.load() == {}
    file.save({Q0: 1, Q1: 2})
    file.save({Q1: 3, Q2: 4})
    assert file.load() == {Q0: 1, Q1: 3, Q2: 4}
    assert sorted(each.name for each in file.path.parent.iterdir()) == [
        "offsets.json",
        "offsets.json.bak",
    ]
    assert decode_offsets(file.path.with_name("offsets.json.bak").read_bytes()) == {Q0: 1, Q1: 2}


def test_nothing_is_written_without_a_change(tmp_path: Path) -> None:
    file = LocalOffsetFile(tmp_path / "offsets.json")
    file.save({Q0: 1})
    before = file.path.stat().st_ino
    file.save({Q0: 1})
    assert file.path.stat().st_ino == before


@pytest.mark.spec("client.8.32")
@pytest.mark.parametrize("content", [None, b"", b"  \n", b'{\n\t"offsetTable":{\n\t\t{', b"\xff"])
def test_the_copy_is_used_if_the_file_is_of_no_use(
    content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = LocalOffsetFile(tmp_path / "offsets.json")
    file.save({Q0: 1})
    file.save({Q0: 2})
    if content is None:
        file.path.unlink()
    else:
        file.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert file.load() == {Q0: 1}
    assert "offsets are read from" in caplog.text
    file.save({Q1: 5})  # the broken file is not copied over the sound one
    assert file.load() == {Q0: 1, Q1: 5}
    assert decode_offsets(file.path.with_name("offsets.json.bak").read_bytes()) == {Q0: 1}


def test_a_broken_file_without_copy_begins_anew(tmp_path: Path) -> None:
    file = LocalOffsetFile(tmp_path / "offsets.json")
    file.path.write_bytes(b"{")
    assert file.load() == {}


def test_two_broken_files_are_an_error(tmp_path: Path) -> None:
    file = LocalOffsetFile(tmp_path / "offsets.json")
    file.path.with_name("offsets.json.bak").write_bytes(b"{")
    with pytest.raises(ClientError, match="cannot be read"):
        file.load()
    with pytest.raises(ClientError, match="cannot be read"):
        file.save({Q0: 1})


def test_a_crash_at_any_step_leaves_old_or_new_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LocalOffsetFile(tmp_path / "offsets.json")
    file.save({Q0: 1})
    real = os.fsync
    for steps in range(3):
        left = [steps]

        def fsync(handle: int, left: list[int] = left) -> None:
            if not left[0]:
                raise OSError("the machine stopped here")
            left[0] -= 1
            real(handle)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            if steps < 2:
                with pytest.raises(OSError, match="stopped"):
                    file.save({Q0: 2})
                assert file.load() == {Q0: 1}
            else:
                file.save({Q0: 2})
    assert file.load() == {Q0: 2}


def test_too_many_queues_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_store, "OFFSET_FILE_SIZE_MAX", 200)
    file = LocalOffsetFile(tmp_path / "offsets.json")
    file.save({Q0: 1})
    with pytest.raises(ClientError, match="do not fit"):
        file.save({Q1: 1, Q2: 1})
    assert file.load() == {Q0: 1}
    file.path.write_bytes(file.path.read_bytes() + b" " * 200)
    assert file.load() == {}
