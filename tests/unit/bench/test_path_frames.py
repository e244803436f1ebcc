"""Recorded frames of Java clients: what was kept of them, and what a replay changes."""

from __future__ import annotations

import json
import re
import socket
import threading

import pytest

from bench.harness import BenchError
from bench.path_load.connection import Connection, is_success, join_frame, request_frame
from bench.path_load.frames import CURRENT, OLDER, load, unique_key
from bench.path_load.record import name_of, neutral, pick, split_frames
from bench.path_load.rows import BATCH, ROWS, Row, make_work, select

VERSIONS = (CURRENT, *OLDER)
NAMES = {"batch", "commit", "half", "heartbeat", "pull", "send 100", "send 1024"}
POP_NAMES = {"ack", "pop"}  # in a file of their own, only of the current release


def parts(frame: bytes) -> tuple[dict[str, str], int, bytes]:
    """Fields, opaque and body of a frame."""
    ((header, body),) = split_frames(frame)
    command = json.loads(header)
    return command.get("extFields") or {}, command["opaque"], body


# ---- frames -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_each_client_has_every_frame(version: str) -> None:
    frames = load(version, "path-07")
    assert set(frames) == NAMES | (POP_NAMES if version == CURRENT else set())
    for size in (100, 1024):
        send = frames[f"send {size}"]
        assert len(send.body) == size
        assert send.fields["b"] == "path-07"
        # What sets the clients apart: who ends the last property.
        assert send.fields["i"].endswith("\x02") is (version == CURRENT)
    assert frames["pull"].fields["maxMsgNums"] == str(BATCH)
    assert b'"path-07"' in frames["heartbeat"].body


def test_a_replay_changes_what_must_differ_and_nothing_else() -> None:
    send = load(CURRENT, "t")["send 100"]
    first, opaque, body = parts(send.frame(17, e=3))
    assert (first["e"], opaque, body) == ("3", 17, send.body)
    assert first["i"].startswith("KEYS\x01order-00017\x02UNIQ_KEY\x017F000001")
    assert unique_key(send.frame(17)).endswith("000000000011")
    assert len(unique_key(send.frame(17))) == len(unique_key(send.header))
    rest = {name: text for name, text in first.items() if name not in "ei"}
    assert rest == {name: text for name, text in send.fields.items() if name not in "ei"}
    assert len(send.frame(17)) == len(send.frame(99))


def test_messages_of_a_batch_have_keys_of_their_own() -> None:
    _, _, body = parts(load(CURRENT, "t")["batch"].batch(2, BATCH, e=0))
    keys = re.findall(rb"UNIQ_KEY\x01[0-9A-F]+([0-9A-F]{12})\x02", body)
    assert keys == [b"%012X" % number for number in range(2 * BATCH, 3 * BATCH)]


def test_fields_of_a_commit_are_not_renumbered() -> None:
    commit = load(CURRENT, "t")["commit"]
    key = "7F000001" + "0" * 24 + "59034E0E2F2A58BF79720023"
    fields, _, _ = parts(commit.frame(1, msgId=key, commitLogOffset=123))
    assert (fields["msgId"], fields["commitLogOffset"]) == (key, "123")


# ---- rows ---------------------------------------------------------------------------------------


def test_rows_are_chosen_by_name_or_pattern() -> None:
    assert select("") == list(ROWS)
    assert [row.name for row in select("batch*, pull*")] == ["batch of 32", "pull of 32"]
    one = "send 100 B, 16 in a read"  # a comma is part of the name
    assert [row.name for row in select(one)] == [one]
    assert [row.name for row in select("*4.9.8")] == [
        "send 100 B, one at a time, 4.9.8",
        "send 100 B, 16 in a read, 4.9.8",
    ]
    with pytest.raises(BenchError, match="no row matches nosuch"):
        select("pull*,nosuch")


def test_frames_of_a_write_are_those_of_a_read() -> None:
    row = Row("send", "send", 3, in_a_read=4)
    work = make_work(row, "t")
    assert row.units == 12
    found = [[parts(request_of(pair))[1] for pair in split_frames(w)] for w in work.writes]
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert Row("batch", "batch", 3).units == 3 * BATCH
    assert Row("half", "half", 3).unit == "transaction"


def request_of(pair: tuple[bytes, bytes]) -> bytes:
    return join_frame(*pair)


def test_pulls_know_the_subscription_of_the_heartbeat() -> None:
    frames = load(CURRENT, "t")
    fields, _, _ = parts(make_work(Row("pull", "pull", 3), "t").writes[2])
    assert fields["queueOffset"] == str(2 * BATCH)
    assert f'"subVersion":{fields["subVersion"]}'.encode() in frames["heartbeat"].body


# ---- the connection -----------------------------------------------------------------------------


def reply(code: int = 0, flag: int = 1) -> bytes:
    return join_frame(json.dumps({"code": code, "flag": flag}, separators=(",", ":")).encode(), b"")


def test_a_refusal_is_an_error_and_a_request_of_the_broker_is_no_reply() -> None:
    assert is_success(reply()[4:])
    assert not is_success(reply(40, flag=2)[4:])
    with pytest.raises(BenchError, match=r"refused a request: .\"code\":2,"):
        is_success(reply(2)[4:])


def test_replies_are_counted_however_they_arrive() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1 << 16)
                stream = reply() + reply(40, flag=2) + reply()
                for place in range(len(stream)):
                    peer.send(stream[place : place + 1])

        thread = threading.Thread(target=serve)
        thread.start()
        with Connection(f"127.0.0.1:{server.getsockname()[1]}") as connection:
            assert connection.exchange(request_frame(30, {}), 2) == [reply()[4:]] * 2
            with pytest.raises(BenchError, match="closed the connection"):
                connection.exchange(b"", 1)
        thread.join()


# ---- recording ----------------------------------------------------------------------------------


def test_the_address_of_the_machine_is_not_recorded() -> None:
    tail = "59034E0E2F2A58BF79470000"
    for address in ("C0A80001", "FD0000000000000000000000000000AB"):
        kept = "7F000001".ljust(len(address), "0")
        for text in ("UNIQ_KEY\\u0001%s\\u0002", "UNIQ_KEY\x01%s\x02", '"msgId":"%s"'):
            assert neutral((text % (address + tail)).encode()) == (text % (kept + tail)).encode()


def test_the_first_request_of_each_kind_is_picked() -> None:
    def request(code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
        header = json.dumps({"code": code, "extFields": fields}).encode()
        return join_frame(header, body)

    stream = (
        request(105, {"topic": "t"})
        + request(310, {"f": "0"}, bytes(100))
        + request(310, {"f": "0"}, b"x" * 100)
        + request(310, {"f": "4"}, bytes(100))
        + request(11, {"topic": "%RETRY%g", "queueOffset": "0"})
        + request(11, {"topic": "t", "queueOffset": "0"})
        + request(34, {}, b'{"producers"}')
        + request(34, {}, b'{"topic":"t"}')
    )
    found = pick([stream[:-1] + stream[-1:], stream[:7]], "t")
    assert [line["name"] for line in found] == ["half", "heartbeat", "pull", "send 100"]
    assert found[3]["body"] == "A" * 134 + "=="
    assert name_of(320, {}, b"", "t") == "batch"
    assert name_of(37, {}, b"", "t") == "commit"
